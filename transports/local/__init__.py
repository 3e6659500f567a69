"""Ranks as threads of one process: the reference transport, which most tests use.

Nothing is copied on the way: a send keeps the caller's view and completes when the receive has copied from it
(rendezvous). Other transports buffer, so a protocol that is sound here is sound there; one that needs buffering
deadlocks here, where it can be found. `eager_bytes` allows buffering up to a size.

One lock per group guards everything, and every rank has a condition of its own on it. Copies run under the lock,
which costs nothing: they hold the interpreter's lock anyway.
"""

from __future__ import annotations

from transports.base import Group, Transport
from transports.local.transport import LocalTransport, Options

__all__ = ["LocalTransport", "Options", "create", "usable"]


def create(group: Group, options: Options) -> Transport:
    """A transport between threads. No I/O."""
    return LocalTransport(group, options)


def usable() -> str | None:
    """Threads are everywhere."""
    return None
