"""Files that are made once, and the folders that can be trusted with them."""

from __future__ import annotations

import errno
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pytest

from collectives.jit import cache, obstacle
from collectives.jit.cache import (
    UnusableFolder,
    begin_making,
    cache_folder,
    find,
    folder_for_making,
    host_folders,
    keep,
    keeping_folder,
)

NEEDS_USERS = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The cache folder and the one of the host, which do not exist yet."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache.sys, "platform", "linux")
    first = host_folders()[0]
    monkeypatch.setattr(cache, "host_folders", lambda: [first])
    return cache_folder(), first


def test_what_was_kept_is_found(folders: tuple[Path, Path]) -> None:
    assert find("a") is None
    keep("a", b"text")
    keep("b", b"")
    assert (find("a"), find("b")) == (b"text", b"")
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("one", [0, 1])
def test_one_folder_is_enough(folders: tuple[Path, Path], one: int) -> None:
    keep("a", b"text")
    (folders[one] / "a").unlink()
    assert find("a") == b"text"
    for path in folders[one].iterdir():
        path.unlink()
    folders[one].rmdir()
    folders[one].write_text("a file")
    assert find("a") == b"text"
    keep("a", b"new")
    assert find("a") == b"new"


@pytest.mark.parametrize("damaged", [b"", b"short", bytes(40)])
def test_a_damaged_file_is_none(folders: tuple[Path, Path], damaged: bytes) -> None:
    keep("a", b"text")
    for folder in folders:
        (folder / "a").write_bytes(damaged)
    assert find("a") is None
    keep("a", b"new")
    assert find("a") == b"new"


def test_a_file_of_another_name_is_none(folders: tuple[Path, Path]) -> None:
    keep("a", b"text")
    for folder in folders:
        (folder / "a").rename(folder / "b")
    assert find("b") is None


def test_what_is_no_file_is_none(folders: tuple[Path, Path]) -> None:
    for folder, make in zip(folders, (os.mkfifo, os.mkdir), strict=True):
        folder.mkdir(mode=0o700, parents=True)
        make(folder / "a")
    assert find("a") is None


def test_one_process_has_the_right_at_a_time() -> None:
    folder = folder_for_making()
    first = begin_making(folder)
    assert first is not None
    assert begin_making(folder) is None
    first.close()
    second = begin_making(folder)
    assert second is not None
    second.close()


def _open_to_others(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def _of_another_user(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    folder.mkdir(mode=0o700, parents=True)
    os.chown(folder, 65534, 65534)


def _a_link(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)


@NEEDS_USERS
@pytest.mark.parametrize("plant", [_open_to_others, _of_another_user, _a_link])
def test_a_planted_folder_of_the_host_is_not_used(folders: tuple[Path, Path], plant: Any) -> None:
    plant(folders[1])
    assert folder_for_making() == folders[0]
    keep("a", b"text")
    assert not (folders[1] / "a").exists()
    (folders[0] / "a").rename(folders[1] / "a")
    assert find("a") is None


@NEEDS_USERS
def test_a_planted_file_is_not_used(folders: tuple[Path, Path]) -> None:
    keep("a", b"text")
    (folders[0] / "a").unlink()
    (folders[1] / "a").chmod(0o666)
    assert find("a") is None
    (folders[1] / "a").rename(folders[1] / "b")
    (folders[1] / "a").symlink_to(folders[1] / "b")
    assert find("a") is None


@NEEDS_USERS
def test_without_a_folder_nothing_is_made(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        _open_to_others(folder)
    with pytest.raises(UnusableFolder, match=str(folders[0])):
        folder_for_making()
    with pytest.raises(UnusableFolder):
        keep("a", b"text")


def test_a_full_disk_is_found_before_a_file_is_made(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tempfile.TemporaryFile

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            return

        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def temporary(dir: Path, buffering: int) -> Any:
        return Full() if dir == folders[1] else made(dir=dir, buffering=buffering)

    monkeypatch.setattr(cache.tempfile, "TemporaryFile", temporary)
    assert folder_for_making() == folders[0]


def test_the_folder_that_keeps_is_told(folders: tuple[Path, Path], tmp_path: Path) -> None:
    assert keeping_folder() == folders[0]
    folders[0].rmdir()
    folders[0].parent.rmdir()
    folders[0].parent.write_text("no folder")
    assert keeping_folder() == folders[1]
    keep("a", b"text")
    assert (folders[1] / "a").exists()
    (folders[1] / "a").unlink()
    folders[1].rmdir()
    folders[1].write_text("no folder")
    assert keeping_folder() is None


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ronde"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "ronde"


def test_a_user_without_a_home_has_a_folder(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(cache.Path, "home", none)
    assert cache_folder() == folders[1]
    keep("a", b"text")
    assert find("a") == b"text"


@pytest.mark.parametrize("lock", [True, False])
def test_p6_a_build_without_the_lock_has_no_machine_code(monkeypatch: pytest.MonkeyPatch, lock: bool) -> None:
    """Such a build can take the lock at any time, as for an extension: the answer is that of the build. Both kinds of
    a version have the same cache tag, and objects of different sizes."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: lock, raising=False)
    monkeypatch.setitem(sysconfig.get_config_vars(), "Py_GIL_DISABLED", 1)
    assert "lock" in str(obstacle())
    monkeypatch.setitem(sysconfig.get_config_vars(), "Py_GIL_DISABLED", 0)
    assert "lock" not in str(obstacle())
