"""The values that torchrun, horovodrun and PMIx carry, as far as they can be had without a launcher."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.transports.launchers.real import run
from tests.transports.stores import soon
from transports.errors import DeadlineExceeded, RendezvousError
from transports.launchers import pmix, pmix_client
from transports.launchers.horovod_store import HorovodStore
from transports.launchers.torch_store import TorchStore


@contextlib.contextmanager
def serving(answers: bytes, *, silent: bool = False) -> Iterator[int]:
    """The port of a server that takes a connection, says `answers` whatever it hears, and no more; or is silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(answers)
                if not silent:
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


# torchrun's store


WITH_TORCH = """
import threading, time
from datetime import timedelta
import torch.distributed as dist
from transports.errors import DeadlineExceeded
from transports.launchers.torch_store import TorchStore
soon = time.monotonic() + 60
theirs = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=timedelta(seconds=60), wait_for_workers=False)
with TorchStore("127.0.0.1", theirs.port, "ronde/x", soon) as ours:
    ours.put("key", b"v" * 3000, soon)
    ours.fence(soon)
    assert ours.get("key", soon) == theirs.get("ronde/x/key") == b"v" * 3000
    threading.Timer(0.1, theirs.set, ["ronde/x/later", b"value"]).start()
    assert ours.get("later", soon) == b"value"
    try:
        ours.get("never", time.monotonic() + 0.05)
    except DeadlineExceeded:
        print("as it should be")
"""


@pytest.mark.frameworks
@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_real_store_of_torch() -> None:
    """Both ways: what it sets, torch's client reads, and a get waits for torch's set."""
    ended = run([], WITH_TORCH)
    assert (ended.code, ended.lines) == (0, ["as it should be"]), ended


def test_no_store_of_torchrun() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RendezvousError, match=rf"torchrun's store at tcp://127\.0\.0\.1:{port}"):
        TorchStore("127.0.0.1", port, "x", soon())
    with pytest.raises(DeadlineExceeded, match=rf"torchrun.* tcp://127.0.0.1:{port}"):
        TorchStore("127.0.0.1", port, "x", soon(-1))


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        (b"\1", "ended a wait"),
        (b"\0" + struct.pack("=Q", 1 << 40), "sent an invalid answer"),
        (b"\0" + struct.pack("=Q", 9) + b"short", "closed the connection"),
        (b"", "closed the connection"),
    ],
)
def test_store_of_torchrun_that_answers_nonsense(answers: bytes, error: str) -> None:
    with (
        serving(answers) as port,
        TorchStore("127.0.0.1", port, "x", soon()) as store,
        pytest.raises(RendezvousError, match=error),
    ):
        store.get("key", soon())


def test_store_of_torchrun_that_says_nothing() -> None:
    with (
        serving(b"", silent=True) as port,
        TorchStore("127.0.0.1", port, "x", soon()) as store,
        pytest.raises(DeadlineExceeded, match=r"rank 0 .*torchrun's store"),
    ):
        store.get("key", soon(0.05))


# horovodrun's store


class Store(BaseHTTPRequestHandler):
    """PUT and GET as horovodrun's server has them."""

    held: dict[str, bytes]

    def do_PUT(self) -> None:
        self.held[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        value = self.held.get(self.path)
        self.send_response({"/ronde/bad": 500}.get(self.path, 404 if value is None else 200))
        self.send_header("Content-Length", str(len(value or b"")))
        self.end_headers()
        self.wfile.write(value or b"")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def horovod() -> Iterator[HorovodStore]:
    kind = type("Store", (Store,), {"held": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield HorovodStore("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def test_store_of_horovodrun(horovod: HorovodStore) -> None:
    with horovod as values:
        timer = threading.Timer(0.05, values.put, ["key", bytes(range(256)), soon()])
        timer.start()
        values.fence(soon())
        assert values.get("key", soon()) == bytes(range(256))
        timer.join()
        with pytest.raises(DeadlineExceeded, match=r"rank 0 .*horovodrun's store at http://127"):
            values.get("never", soon(0.5))
        with pytest.raises(RendezvousError, match="status 500"):
            values.get("bad", soon())
        with pytest.raises(DeadlineExceeded, match=r"http://127.*answer"):
            values.get("key", soon(-1))


def test_no_store_of_horovodrun() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RendezvousError, match=r"horovodrun's store at http://127.0.0.1:.*refused"):
        HorovodStore("127.0.0.1", port).put("key", b"", soon())
    with pytest.raises(RendezvousError, match=r"horovodrun's store at http:// .*control characters"):
        HorovodStore(" ", port).put("key", b"", soon())


# PMIx


def test_library_of_pmix_is_beside_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda name: f"lib{name}.so.of-the-system")
    ranks = {"PMIX_NAMESPACE": "n", "PMIX_RANK": "0"}
    nowhere = ranks | {"PATH": "/nowhere"}
    assert pmix.find_library(nowhere) == "libpmix.so.of-the-system"
    assert pmix.lacking(nowhere) is None
    library = tmp_path / "lib" / "libpmix.so.2"
    launcher = tmp_path / "bin" / "mpirun"
    for file in (library, launcher):
        file.parent.mkdir()
        file.touch(0o755)
    for env in (
        {"PATH": str(launcher.parent)},
        {"PATH": "/nowhere", "PMIX_PREFIX": str(tmp_path)},
        {"PATH": "/nowhere", "OMPI_LIBDIR_LOC": str(library.parent)},
        {"PATH": "/nowhere", "LD_LIBRARY_PATH": f"/none:{library.parent}"},
    ):
        assert pmix.find_library(env) == str(library)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    assert "libpmix.so.2 was not found" in str(pmix.lacking(nowhere))
    assert "do not" not in str(pmix.lacking(ranks | {"LD_LIBRARY_PATH": str(library.parent)}))
    assert "not speak PMIx" in str(pmix.lacking({"PATH": "/nowhere"}))


@pytest.mark.processes
def test_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match=r"PMIx .*libpmix\.so"):
        pmix.Pmix(str(tmp_path / "libpmix.so"), soon())
    with pytest.raises(RendezvousError, match=r"PMIx .*PMIx_Error_string"):
        pmix.Pmix("libc.so.6", soon())


CLIENT = """
import os, sys, time
print("ok", flush=True)
for line in sys.stdin:
    match line.split():
        case ["put", key, value]: print("ok", flush=True)
        case ["get", key]: print("ok", b"value".hex(), flush=True)
        case ["fence"]: time.sleep(3600)
open(sys.argv[1], "w").write("finalised")
"""


@pytest.mark.processes
def test_client_of_pmix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finalises at the end of its input; one that misses a deadline is killed."""
    program, mark = tmp_path / "client.py", tmp_path / "mark"
    program.write_text(CLIENT)
    monkeypatch.setattr(pmix_client, "__file__", str(program))
    with pmix.Pmix(str(mark), soon()) as values:
        values.put("key", b"value", soon())
        assert values.get("key", soon()) == b"value"
    assert mark.read_text() == "finalised"
    mark.unlink()
    with pmix.Pmix(str(mark), soon()) as values, pytest.raises(DeadlineExceeded, match="PMIx fence"):
        values.fence(soon(0.05))
    assert not mark.exists()
    program.write_text("")
    with pytest.raises(RendezvousError, match="ended without an answer"):
        pmix.Pmix(str(mark), soon())
    monkeypatch.setattr(sys, "executable", os.devnull)
    with pytest.raises(RendezvousError, match=r"PMIx client .*/dev/null"):
        pmix.Pmix(str(mark), soon())
