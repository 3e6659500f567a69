"""The door of a world: a file beside the records of its ranks, by which a viewer on this host reaches their store.

It holds the secret of the job, so this user alone may read it. The first rank of each host writes it, and removes it
when the world closes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

from transports.packed import MAX_BYTES, pack, unpack
from transports.store import Place

_NAME: Final = "door"


class Door(NamedTuple):
    """The way to the ranks of a world.

    place   of the store that the ranks of the group share
    secret  of the job; empty if there is none
    tls     paths of certificate, key and authorities; empty without TLS
    hosts   the ranks of each host
    """

    place: Place
    secret: bytes
    tls: tuple[str, ...]
    hosts: tuple[tuple[int, ...], ...]

    def write(self, folder: Path) -> None:
        """Write it into the folder of the world. Raises OSError."""
        made = folder / f"{_NAME}.{os.getpid()}"
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(pack(self))
            made.replace(folder / _NAME)
        except BaseException:
            made.unlink(missing_ok=True)
            raise


def remove_door(folder: Path) -> None:
    """Remove the door of a world. Never raises."""
    with contextlib.suppress(OSError):
        (folder / _NAME).unlink(missing_ok=True)


def read_door(folder: Path) -> Door | None:
    """The door of a world; None if there is none."""
    try:
        (url, purpose, prefix), secret, tls, hosts = unpack((folder / _NAME).read_bytes(), max_bytes=16 * MAX_BYTES)
        place = Place(str(url), bytes(purpose), str(prefix))
        return Door(place, bytes(secret), tuple(map(str, tls)), tuple(tuple(map(int, host)) for host in hosts))
    except (OSError, ValueError, TypeError):
        return None
