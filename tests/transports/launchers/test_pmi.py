"""The PMI-1 client, against a server of the test's."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transports.errors import ConfigError, DeadlineExceeded, RendezvousError
from transports.launchers import find, pmi
from transports.launchers.pmi import Pmi

BOUND = 30.0


def soon(seconds: float = BOUND) -> float:
    return time.monotonic() + seconds


class Server:
    """PMI-1 for some processes, as hydra and Flux serve it: values of `vallen` bytes, one barrier.

    says   answers in place of the right ones, by command
    """

    def __init__(self, size: int, vallen: int = 1024) -> None:
        self.size = size
        self.vallen = vallen
        self.says: dict[str, bytes] = {}
        self.values: dict[str, str] = {}
        self.commands: list[str] = []
        self._barrier = threading.Barrier(size)
        self.ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def environment(self, rank: int) -> dict[str, str]:
        """The environment of the process `rank`; its end of the connection is open in this process."""
        ours, theirs = socket.socketpair()
        self.ends += [ours, theirs]
        self._serve(ours, rank)
        return {"PMI_RANK": str(rank), "PMI_SIZE": str(self.size), "PMI_FD": str(theirs.fileno())}

    def _serve(self, end: socket.socket, rank: int) -> None:
        thread = threading.Thread(target=self._run, args=(end, rank))
        thread.start()
        self._threads.append(thread)

    def _run(self, end: socket.socket, rank: int) -> None:
        with contextlib.suppress(OSError, threading.BrokenBarrierError), end.makefile("rb") as lines:
            for line in lines:
                fields = dict(word.split("=", 1) for word in line.decode().split())
                self.commands.append(fields["cmd"])
                end.sendall(self.says.get(fields["cmd"]) or self._answer(fields, rank))

    def _answer(self, fields: dict[str, str], rank: int) -> bytes:
        match fields["cmd"]:
            case "initack":
                assert fields["pmiid"] == str(rank)
                return f"cmd=initack rc=0\ncmd=set size={self.size}\ncmd=set rank={rank}\ncmd=set debug=0\n".encode()
            case "get_maxes":
                return f"cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max={self.vallen}\n".encode()
            case "get_my_kvsname":
                return b"cmd=my_kvsname rc=0 kvsname=kvs_1\n"
            case "put":
                assert len(fields["value"]) < self.vallen
                assert fields["kvsname"] == "kvs_1"
                if fields["key"] in self.values:
                    return b"cmd=put_result rc=-1 msg=duplicate_key\n"
                self.values[fields["key"]] = fields["value"]
                return b"cmd=put_result rc=0\n"
            case "barrier_in":
                self._barrier.wait()
                return b"cmd=barrier_out rc=0\n"
            case "get":
                value = self.values.get(fields["key"])
                return (f"rc=0 value={value}" if value else "rc=-1").join(["cmd=get_result ", "\n"]).encode()
        raise AssertionError(fields)

    def listen(self) -> socket.socket:
        """A listener that serves one process, rank 0, at PMI_PORT."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.ends.append(listener)

        def accept() -> None:
            with contextlib.suppress(OSError):
                end, _ = listener.accept()
                self.ends.append(end)
                self._run(end, 0)

        self._threads.append(threading.Thread(target=accept))
        self._threads[-1].start()
        return listener

    def close(self) -> None:
        self._barrier.abort()
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(BOUND)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as opened:
        yield lambda *arguments: opened.enter_context(contextlib.closing(Server(*arguments)))


@pytest.fixture(autouse=True)
def no_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections of these tests are closed before the interpreter exits."""
    monkeypatch.setattr(pmi, "_finalize_at_exit", lambda *_, **__: None)


@pytest.mark.parametrize("vallen", [1024, 256, 16])
def test_values_reach_all_ranks_in_chunks(serve: Callable[..., Server], vallen: int) -> None:
    server = serve(3, vallen)
    value = bytes(range(100))

    def rank(number: int) -> list[bytes]:
        found = []
        for meeting in range(2):
            with Pmi(server.environment(number), soon()) as values:
                if number == 0:
                    values.put(f"ronde-{meeting}", value + bytes([meeting]), soon())
                values.fence(soon())
                found.append(values.get(f"ronde-{meeting}", soon()))
        return found

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(rank, range(3), timeout=BOUND)) == [[value + b"\0", value + b"\1"]] * 3
    assert not {"init", "finalize"} & set(server.commands)


def test_rank_and_size_at_a_port(serve: Callable[..., Server]) -> None:
    server = serve(1)
    port = server.listen().getsockname()[1]
    env = {"PMI_PORT": f"127.0.0.1:{port}", "PMI_ID": "0", "PMI_FD": "0"}  # the descriptor of an outer launcher
    launch = find(env)
    assert launch is not None
    assert (launch.family, launch.rank, launch.size) == ("mpich-port", 0, 1)
    with Pmi(pmi.of_port(env), soon()) as values:  # on the same connection: the server accepts one
        values.put("key", b"value", soon())
        values.fence(soon())
        assert values.get("key", soon()) == b"value"
    pmi._connected(f"127.0.0.1:{port}", "0", os.getpid()).socket.close()


def test_nobody_at_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"PMI_PORT='127.0.0.1:{port}'.* PMI-1 server"):
        find({"PMI_PORT": f"127.0.0.1:{port}", "PMI_ID": "0"})


@pytest.mark.parametrize(
    ("command", "answer", "error"),
    [
        ("get_maxes", b"cmd=maxes rc=0\n", "vallen_max$"),
        ("get_maxes", b"cmd=maxes rc=0 vallen_max=many\n", "vallen_max='many'"),
        ("get_maxes", b"cmd=barrier_out rc=0\n", "'cmd=barrier_out rc=0', .*cmd=maxes"),
        ("get_maxes", b"\xff\xfe\n", "cmd=maxes"),
        ("get_maxes", b"x" * (pmi.MAX_LINE + 2), "PMI-1 .*closed"),
        ("put", b"cmd=put_result rc=-1 msg=no\n", "'cmd=put_result rc=-1 msg=no'"),
        ("get", b"cmd=get_result rc=0 value=99\n", "key 'key' .*does not hold .*rank 0"),
        ("get", b"cmd=get_result rc=0 value=x\n", "key 'key' .*does not hold .*rank 0"),
    ],
)
def test_answers_that_are_none(serve: Callable[..., Server], command: str, answer: bytes, error: str) -> None:
    server = serve(1)
    env = server.environment(0)
    server.says[command] = answer

    def exchange() -> None:
        with Pmi(env, soon()) as values:
            values.put("key", b"value", soon())
            values.fence(soon())
            values.get("key", soon())

    with pytest.raises(RendezvousError, match=error):
        exchange()


def test_another_file_with_the_number_of_the_connection(tmp_path: Path) -> None:
    """A shell between the launcher and the rank has it: `exec 9>log`."""
    path = tmp_path / "log"
    with path.open("wb") as file, pytest.raises(RendezvousError, match=rf"PMI_FD={file.fileno()}: is no connection"):
        Pmi({"PMI_FD": str(file.fileno())}, soon())
    assert path.read_bytes() == b""
    with pytest.raises(RendezvousError, match="PMI_FD=987: cannot be used"):
        Pmi({"PMI_FD": "987"}, soon())


def test_rank_that_does_not_come(serve: Callable[..., Server]) -> None:
    with (
        Pmi(serve(2).environment(0), soon()) as values,
        pytest.raises(DeadlineExceeded, match=r"not all ranks .*PMI-1 barrier"),
    ):
        values.fence(soon(0.05))


def test_launcher_that_goes_away(serve: Callable[..., Server]) -> None:
    server = serve(2)
    env = server.environment(0)
    with Pmi(env, soon()) as values:
        timer = threading.Timer(0.05, server.ends[0].shutdown, [socket.SHUT_RDWR])
        timer.start()
        with pytest.raises(RendezvousError, match=r"PMI-1 .*closed"):
            values.fence(soon())
        timer.join()


def test_too_many_bytes(serve: Callable[..., Server]) -> None:
    with Pmi(serve(1).environment(0), soon()) as values, pytest.raises(RendezvousError, match="65536 bytes"):
        values.put("key", bytes(1 << 16), soon())


FAREWELL = """
import os, sys
from transports.launchers.pmi import Pmi
import time
for _ in range(2):
    Pmi(os.environ, time.monotonic() + 30).fence(time.monotonic() + 30)
if os.fork() == 0:
    sys.exit()  # a forked child says nothing
os.wait()
"""


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_process_says_finalize_once_when_it_exits(serve: Callable[..., Server]) -> None:
    server = serve(1)
    env = server.environment(0)
    server.says["finalize"] = b"cmd=finalize_ack rc=0\n"
    subprocess.run(
        [sys.executable, "-c", FAREWELL],
        env=os.environ | env | {"PYTHONPATH": os.getcwd()},
        pass_fds=[int(env["PMI_FD"])],
        timeout=BOUND,
        check=True,
    )
    assert server.commands[-2:] == ["barrier_in", "finalize"]
    assert server.commands.count("finalize") == 1
