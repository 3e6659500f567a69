"""Folders of this user alone, for what running programs share; and the check of a path that a caller gives.

$XDG_RUNTIME_DIR/ronde    where the system has such a folder
$TMPDIR/ronde-UID         else; its name can be guessed, so its owner is checked
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def path_of(value: str | os.PathLike[str], name: str) -> Path:
    """The path that an argument gives. Raises TypeError, naming the argument."""
    try:
        return Path(os.fspath(value))
    except TypeError as error:
        raise TypeError(f"{name}={value!r}: must be a path, str or os.PathLike") from error


def temporary_folder() -> Path:
    """The one among the temporary files."""
    given = os.environ.get("TMPDIR", "")
    parent = Path(given if os.path.isabs(given) else "/tmp")  # tempfile would also take the current folder
    return parent / f"ronde-{os.geteuid()}"


def runtime_folders() -> list[Path]:
    """All of them, the best first."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    return [Path(given) / "ronde", temporary_folder()] if os.path.isabs(given) else [temporary_folder()]


def own_folder(folder: Path) -> None:
    """Make a folder that this user alone may enter. Raises OSError if it cannot be made, or somebody else has."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_owner(folder)
    folder.chmod(0o700)


def check_owner(folder: Path) -> None:
    """Raise OSError if the folder is not there, or somebody else has made it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} does not belong to this user")
