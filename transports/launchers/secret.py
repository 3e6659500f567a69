"""The job's secret, where the user gives it: in the variable RONDE_SECRET, or in a private file."""

from __future__ import annotations

import os
import stat
from typing import Final

from transports.auth import MIN_SECRET, check_secret
from transports.errors import ConfigError
from transports.launchers.variables import Env

VARIABLE: Final = "RONDE_SECRET"
FILE_VARIABLE: Final = "RONDE_SECRET_FILE"
HOW: Final = (
    f"{VARIABLE} or {FILE_VARIABLE}: is needed, the same for all ranks; `python -c 'import secrets; "
    "print(secrets.token_hex(32))'` makes one (an empty one means no authentication)"
)
"""The ways to set a secret, for errors."""
_LONGEST: Final = 4096


def given_secret(env: Env) -> bytes | None:
    """The secret in RONDE_SECRET, or in the file that RONDE_SECRET_FILE names; None if neither is set. b"", from the
    variable alone, means that nothing is authenticated.

    Raises ConfigError, which never shows the secret: it must be at least 32 hexadecimal digits, and the file must
    belong to this user and be closed to all others.
    """
    text, source = env.get(VARIABLE), VARIABLE
    if text is None and FILE_VARIABLE in env:
        path = env[FILE_VARIABLE]
        text, source = _read_private(path).strip(), f"the file {path!r} ({FILE_VARIABLE})"
        if not text:  # as where the command that was to write it has failed
            raise ConfigError(f"{source}: is empty; set {VARIABLE} to nothing for a job without authentication")
    if text is None:
        return None
    try:
        return check_secret(bytes.fromhex(text))
    except ValueError:
        allowed = "an even number, or empty" if source == VARIABLE else "an even number"
        raise ConfigError(
            f"{source}: must be at least {2 * MIN_SECRET} hexadecimal digits, {allowed} "
            f"(its value, {len(text)} characters, is not shown)"
        ) from None


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, also a pipe that nobody writes to."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_private(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace", opener=_open_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{FILE_VARIABLE}={path!r}: must be a regular file")
            if os.name == "posix" and found.st_uid != os.geteuid():
                raise ConfigError(
                    f"{FILE_VARIABLE}={path!r}: belongs to user {found.st_uid}: it must belong to the user who runs "
                    f"the job ({os.geteuid()})"
                )
            if os.name == "posix" and found.st_mode & 0o077:
                raise ConfigError(
                    f"{FILE_VARIABLE}={path!r}: has mode {stat.S_IMODE(found.st_mode):04o}: must be closed to group "
                    f"and others (chmod 600)"
                )
            return file.read(_LONGEST)
    except OSError as error:
        raise ConfigError(f"{FILE_VARIABLE}={path!r}: cannot be read: {error.strerror}") from None
