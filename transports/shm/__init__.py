"""The shared-memory backend: ranks of one host.

`link` is the link, `board` is the memory that all ranks map, `ring` carries frames,
`window` and `exposing` are the one-sided windows, `doorbell` wakes a sleeping rank. Other rooms use only the names
below, through the registry.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from transports.base import Group
from transports.engine import Engine
from transports.shm.fence import unclaimed
from transports.shm.link import ShmLink
from transports.shm.options import Options
from transports.shm.segments import default_directory, remove_abandoned
from transports.shm.transport import ShmTransport

__all__ = ["Options", "ShmLink", "ShmTransport", "create", "link", "remove_abandoned", "usable"]


def create(group: Group, options: Options) -> ShmTransport:
    """A shared-memory transport that is not yet open. No I/O."""
    return ShmTransport(group, options)


def link(engine: Engine, ranks: Sequence[int], options: Options) -> ShmLink:
    """A link for another transport. No I/O."""
    return ShmLink(engine, ranks, options)


def usable() -> str | None:
    """None if processes can share memory on this machine, else the reason."""
    directory = default_directory()
    if (reason := unclaimed()) is None and not os.access(directory, os.W_OK | os.X_OK):
        return f"shared memory needs a directory to write to, and {directory} is not"
    return reason
