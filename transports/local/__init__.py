"""Ranks as threads of one process: the reference transport, which most tests use.

Nothing is copied on the way: a send keeps the caller's view and completes when the receive has copied from it
(rendezvous). Other transports buffer, so a protocol that is sound here is sound there; one that needs buffering
deadlocks here, where it can be found. `eager_bytes` allows buffering up to a size.

`link` is the link, `hub` is the state that all ranks share, `seat` is a rank as its peers see it, `window` has the
one-sided windows. No rank waits for the lock of another one's engine: if that is not free, it puts a frame into the
other one's inbox and rings its doorbell.
"""

from __future__ import annotations

from collections.abc import Sequence

from transports.base import Group
from transports.engine import Engine
from transports.local.link import LocalLink
from transports.local.options import Options
from transports.local.transport import LocalTransport

__all__ = ["LocalTransport", "Options", "create", "link", "usable"]


def create(group: Group, options: Options) -> LocalTransport:
    """A transport between threads that is not yet open. No I/O."""
    return LocalTransport(group, options)


def link(engine: Engine, ranks: Sequence[int], options: Options) -> LocalLink:
    """A link for another transport. No I/O."""
    return LocalLink(engine, ranks, options)


def usable() -> str | None:
    """Threads are everywhere."""
    return None
