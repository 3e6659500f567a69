"""The folders of flight records: one for each world that this host remembers, in a folder of the user alone.

    $XDG_RUNTIME_DIR/ronde/flights/WORLD/rank-0.flight       or, without that variable or where it cannot be written,
    $TMPDIR/ronde-UID/flights/WORLD/rank-0.flight

A rank holds a lock on its file as long as it lives, so the kernel tells which worlds are over. The newest DEAD_KEPT of
those stay, for `ronde why`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from collectives.flight.layout import SUFFIX
from collectives.folders import own_folder, runtime_folders

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

DEAD_KEPT: Final = 8
"""Worlds that are over and whose records stay."""


def new_folder(world: str) -> Path:
    """The folder of a world, which its ranks make together; old worlds are forgotten. Raises OSError."""
    refused: OSError | None = None
    for parent in runtime_folders():
        try:
            own_folder(parent)
            own_folder(parent / "flights")
            folder = parent / "flights" / world
            if not folder.exists():
                _forget(parent / "flights")
            own_folder(folder)
        except OSError as error:
            refused = error
        else:
            return folder
    assert refused is not None
    raise refused


def worlds() -> list[Path]:
    """The folders of all worlds that this host remembers, the newest first."""
    found: list[tuple[float, Path]] = []
    for parent in runtime_folders() if fcntl is not None else ():
        with contextlib.suppress(OSError):
            own_folder(parent / "flights")
            found += [(path.stat().st_mtime, path) for path in (parent / "flights").iterdir() if path.is_dir()]
    return [path for _, path in sorted(found, reverse=True)]


def records(folder: Path) -> list[Path]:
    """The records of a world on this host, in the order of their ranks."""
    found = {path.stem.removeprefix("rank-"): path for path in folder.glob(f"rank-*{SUFFIX}")}
    return [found[rank] for rank in sorted((rank for rank in found if rank.isdecimal()), key=int)]


def is_alive(path: Path) -> bool:
    """True while the rank of a record lives."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _forget(parent: Path) -> None:
    """Remove the folders of old worlds. Several ranks may do it at once."""
    found: list[tuple[float, Path]] = []
    for path in parent.iterdir():
        with contextlib.suppress(OSError):
            if not any(is_alive(record) for record in path.iterdir()):
                found.append((path.stat().st_mtime, path))
    for _, path in sorted(found)[: max(0, len(found) - DEAD_KEPT + 1)]:
        shutil.rmtree(path, ignore_errors=True)
