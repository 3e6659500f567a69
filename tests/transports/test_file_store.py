"""The file store: files that processes share, and nobody else's."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from tests.transports.stores import soon
from transports.errors import RendezvousError
from transports.rendezvous import file as file_module
from transports.rendezvous.file import FileStore


def add_in_a_process(directory: str, times: int) -> None:
    store = FileStore(directory)
    store.get("go", soon(60))
    for _ in range(times):
        store.add("counter", 1)
    store.set(f"done by {os.getpid()}", b"")
    store.close()


class Counting(FileStore):
    """Counts its reads of files."""

    reads = 0

    def _read(self, path: str) -> bytes | None:
        self.reads += 1
        return super()._read(path)


def test_a_long_wait_in_slices_reads_ten_times_a_second(tmp_path: Path) -> None:
    with contextlib.closing(Counting(tmp_path / "store")) as store:
        awaited = store.awaited("one", "other")
        began = time.monotonic()
        for _ in range(3):
            assert awaited.wait(time.monotonic() + 0.12) is None
        seconds = time.monotonic() - began
        assert store.reads <= 2 * (10 * seconds + 2 * 3)  # and one at each end of a wait


@pytest.mark.processes
def test_files_are_shared_by_processes(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with contextlib.closing(FileStore(tmp_path / "store")) as store:
        children = [spawn.Process(target=add_in_a_process, args=(str(tmp_path / "store"), 40)) for _ in range(2)]
        try:
            for child in children:
                child.start()
            store.set("go", b"")
            for _ in range(40):
                store.add("counter", 1)
            for child in children:
                store.get(f"done by {child.pid}", soon(60))
                child.join(60)
                assert child.exitcode == 0
        finally:
            for child in children:
                if child.is_alive():
                    child.kill()
                child.join()
                child.close()
        assert store.get("counter", soon()) == b"120"


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_files_are_private_and_nothing_is_left_beside_them(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    store = FileStore(directory)
    assert not directory.exists()
    store.set("../key", b"value")
    store.add("counter", 1)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    names = sorted(os.listdir(directory))
    assert len(names) == 3
    assert names[0].startswith(".")
    assert {stat.S_IMODE((directory / name).stat().st_mode) for name in names} == {0o600}
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    directory.chmod(mode)
    store = FileStore(directory)
    with pytest.raises(RendezvousError, match=rf"{mode:04o}.*0700"):
        store.set("key", b"")
    with pytest.raises(RendezvousError, match=rf"{mode:04o}.*0700"):
        store.get("key", soon())
    assert os.listdir(directory) == []


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    with pytest.raises(RendezvousError, match=r"user 0\b"):
        FileStore(tmp_path).set("key", b"")


def test_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RendezvousError, match=r"file .*directory"):
        FileStore(tmp_path / "file").set("key", b"")
    with pytest.raises(RendezvousError, match=r"below .*File exists"):
        FileStore(tmp_path / "file" / "below").set("key", b"")


def test_failed_write_leaves_the_old_value_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "store")
    store.set("key", b"old")
    before = sorted(os.listdir(tmp_path / "store"))

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(RendezvousError, match="no room"):
            store.set("key", b"new")
    assert sorted(os.listdir(tmp_path / "store")) == before
    assert store.get("key", soon()) == b"old"
    store.set("key", b"new")


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock to be missing on one file system only")
def test_file_system_without_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", missing)
    store = FileStore(tmp_path / "store")
    assert [store.add("counter", 1) for _ in range(3)] == [1, 2, 3]
    assert not (tmp_path / "store" / ".taken").exists()


def test_lock_that_is_never_released_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "fcntl", None)
    monkeypatch.setattr(file_module, "LOCK_SECONDS", 0.05)
    store = FileStore(tmp_path / "store")
    store.set("key", b"value")
    (tmp_path / "store" / ".taken").write_bytes(b"")
    with pytest.raises(RendezvousError, match=r"locked for 0.05 s.*\.taken"):
        store.add("counter", 1)
    assert store.get("key", soon()) == b"value"
