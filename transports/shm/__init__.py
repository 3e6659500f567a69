"""The shared-memory backend: ranks of one host.

`transport` is the transport, `loop` moves its bytes, `board` is the memory that all ranks map, `ring` carries frames,
`window` and `exposing` are the one-sided windows, `doorbell` wakes a sleeping rank. Other rooms use only the names
below, through the registry.
"""

from __future__ import annotations

import os

from transports.base import Group
from transports.shm.fence import unordered
from transports.shm.options import Options
from transports.shm.segments import default_directory
from transports.shm.transport import ShmTransport

__all__ = ["Options", "ShmTransport", "create", "usable"]


def create(group: Group, options: Options) -> ShmTransport:
    """A shared-memory transport that is not yet open. No I/O."""
    return ShmTransport(group, options)


def usable() -> str | None:
    """None if processes can share memory on this machine, else the reason."""
    if os.name != "posix":
        return "shared memory needs a POSIX system: open files must be removable"
    directory = default_directory()
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"shared memory needs a directory to write to, and {directory} is not"
    return unordered()
