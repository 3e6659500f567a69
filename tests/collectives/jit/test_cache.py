"""Files that are made once."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collectives.jit import cache
from collectives.jit.cache import UnusableFolder, cache_folder, find_or_make


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path / "ronde")
    return tmp_path / "ronde"


def soon() -> float:
    return time.monotonic() + 20


def refuse() -> bytes:
    raise AssertionError("it is made again")


def test_what_was_made_is_found() -> None:
    assert find_or_make("a", lambda: b"text", soon()) == b"text"
    assert find_or_make("a", refuse, soon()) == b"text"
    assert find_or_make("b", lambda: b"", soon()) == b""


@pytest.mark.parametrize("damaged", [b"", b"short", bytes(40)])
def test_a_damaged_file_is_made_again(folder: Path, damaged: bytes) -> None:
    find_or_make("a", lambda: b"text", soon())
    (folder / "a").write_bytes(damaged)
    assert find_or_make("a", lambda: b"new", soon()) == b"new"
    assert find_or_make("a", refuse, soon()) == b"new"


def test_of_many_that_ask_one_makes_it() -> None:
    made = []

    def make() -> bytes:
        made.append(threading.get_ident())
        time.sleep(0.1)
        return b"text"

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: find_or_make("a", make, soon()), range(4))) == {b"text"}
    assert len(made) == 1


def test_who_waits_for_too_long_gives_up() -> None:
    making, end = threading.Event(), threading.Event()

    def make() -> bytes:
        making.set()
        assert end.wait(20)
        return b"text"

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(find_or_make, "a", make, soon())
        assert making.wait(20)
        with pytest.raises(TimeoutError, match="another process"):
            find_or_make("a", refuse, time.monotonic())
        end.set()
        assert other.result(20) == b"text"


def test_a_failure_leaves_the_lock_free() -> None:
    with pytest.raises(ZeroDivisionError):
        find_or_make("a", lambda: bytes(1 // 0), soon())
    assert find_or_make("a", lambda: b"text", soon()) == b"text"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_folder_that_others_can_write_is_not_used(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UnusableFolder, match="must not be writable by others"):
        find_or_make("a", refuse, soon())


def test_a_folder_that_cannot_be_made_is_not_used(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(UnusableFolder):
        find_or_make("a", refuse, soon())


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ronde"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "ronde"


def test_a_user_without_a_home_has_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(cache.Path, "home", none)
    assert cache_folder().parent == Path(tempfile.gettempdir())
