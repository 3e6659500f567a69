"""The Unix socket by which commands reach a running elastic job."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectives.folders import runtime_folders
from collectives.launch.hosts import Ssh, StoreKeeper
from collectives.launch.job import Elastic, fixed, parse_list
from collectives.launch.supervision import control
from collectives.launch.supervision.control import ControlSocket
from collectives.launch.supervision.elastic import ElasticJob
from collectives.scaling import Terms
from frontends.command_line import cli
from tests.transports.tcp_ranks import wait_until
from transports.errors import ConfigError


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "ronde"


def answer(request: dict[str, Any]) -> dict[str, str]:
    if request.get("drain") == "bad":
        raise ConfigError("host 'bad': is not known")
    if "drain" not in request:
        raise ConfigError("unknown request")
    return {"text": f"drained {request['drain']}"}


def test_a_look_for_jobs_leaves_a_socket_that_does_not_listen_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    class Looking(socket.socket):
        def listen(self, backlog: int = 1) -> None:
            assert control.running_jobs() == []
            super().listen(backlog)

    monkeypatch.setattr(socket, "socket", Looking)
    with selectors.DefaultSelector() as selector, contextlib.closing(ControlSocket(selector, "0a", answer)) as door:
        assert control.running_jobs() == ["0a"]
        assert [path.name for path in door.path.parent.iterdir()] == ["0a.sock"]


@contextlib.contextmanager
def serving(selector: selectors.BaseSelector) -> Iterator[None]:
    """A thread makes the calls of a selector meanwhile."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            for key, _ in selector.select(0.02):
                key.data()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def served(name: str) -> Iterator[ControlSocket]:
    """A socket that a thread serves."""
    with (
        selectors.DefaultSelector() as selector,
        contextlib.closing(ControlSocket(selector, name, answer)) as made,
        serving(selector),
    ):
        yield made


def test_drain(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served("0a"):
        assert os.stat(runtime).st_mode & 0o777 == 0o700
        assert cli.main(["drain", "h2"]) == 0
        assert capsys.readouterr().out == "drained h2\n"
        assert cli.main(["drain", "bad", "--job", "0a"]) == 2
        assert "job 0a: host 'bad': is not known" in capsys.readouterr().err
        with served("0b"):
            assert cli.main(["drain", "h2"]) == 2
            assert "several elastic jobs run (0a, 0b); name one by --job" in capsys.readouterr().err
            assert cli.main(["drain", "h2", "--job", "0b"]) == 0
    assert not list(runtime.iterdir())
    assert cli.main(["drain", "h2"]) == 2
    assert "no elastic job runs in" in capsys.readouterr().err


def test_no_such_job(runtime: Path) -> None:
    with pytest.raises(ConfigError, match="job 0a: no such"):
        control.ask_job("0a", {"drain": "h"})


def test_the_socket_of_a_launcher_that_was_killed_is_removed(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(runtime / "0c.sock"))
    assert control.running_jobs() == []
    assert not list(runtime.iterdir())


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b"{}\n", b"x" * 5000, b"", b"[" * 4000 + b"\n"])
def test_bad_requests_do_no_harm(line: bytes) -> None:
    """L9 of the list of faults: thousands of brackets, too."""
    with served("0a") as made, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(made.path))
        client.sendall(line)
        reply = b""
        with contextlib.suppress(ConnectionResetError, OSError):  # a line that is too long is not read to its end
            client.shutdown(socket.SHUT_WR)
            reply = client.recv(1000)
        assert not reply or b"error" in reply
        assert control.ask_job("0a", {"drain": "h"}) == "drained h"


def _missing(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/none")


def _a_file(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.write_text("a file")


def _of_another_user(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("only root gives files away")
    runtime.mkdir(mode=0o700)
    os.chown(runtime, 65534, 65534)


def _too_long(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / ("x" * 110)))


@pytest.mark.parametrize("spoil", [_missing, _a_file, _of_another_user, _too_long])
def test_l8_an_unusable_folder_is_replaced(runtime: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    spoil(runtime, monkeypatch)
    with served("0a") as made:
        assert made.path.parent == runtime_folders()[1]
        assert control.running_jobs() == ["0a"]
        assert control.ask_job("0a", {"drain": "h"}) == "drained h"


def test_a_folder_of_somebody_else_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with selectors.DefaultSelector() as selector, pytest.raises(ConfigError, match="belong to this user"):
        ControlSocket(selector, "0a", answer)
    with pytest.raises(ConfigError, match="belong to this user"):
        control.ask_job("0a", {})


@contextlib.contextmanager
def opened(job: ElasticJob, selector: selectors.BaseSelector) -> Iterator[None]:
    """A job that has found its hosts, and answers commands."""
    job.open()
    with serving(selector):
        wait_until(lambda: job.places)
        yield


@pytest.mark.parametrize("name", ["localhost", socket.gethostname(), "127.0.0.1", "::1", "LOCALHOST."])
@pytest.mark.parametrize("known", ["localhost", socket.gethostname()])
def test_this_machine_is_drained_by_any_of_its_names(known: str, name: str) -> None:
    hosts = parse_list(f"{known}:2,h2")
    with selectors.DefaultSelector() as selector, contextlib.closing(StoreKeeper({})) as keeper:
        terms = Elastic(Terms(1), fixed(hosts), Ssh())
        job = ElasticJob(terms, "0a", selector, keeper, lambda text: None, lambda code, reason: None)
        with contextlib.closing(job), opened(job, selector):
            assert control.ask_job("0a", {"drain": name}) == f"host {name}: no process runs there"
            with pytest.raises(ConfigError, match=rf"host 'h3': .*hosts: {known}, h2"):
                control.ask_job("0a", {"drain": "h3"})
