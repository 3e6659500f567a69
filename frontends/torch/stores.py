"""From torch's store to ours: the first rank of a group serves one, and torch's tells the others where.

torch's own store would do for a rendezvous, but not for what comes after it, such as waiting for news that seldom come.
"""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta
from typing import Any

import msgpack

from transports.auth import new_secret
from transports.errors import DeadlineExceeded, RendezvousError
from transports.interfaces import choose_address
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.store import Store
from transports.rendezvous.tcp import TcpStore
from transports.rendezvous.wire import parse_url

_KEY = "ronde/store"
_SHORTEST = 0.01


def open_store(theirs: Any, rank: int, deadline: float, resources: contextlib.ExitStack) -> tuple[Store, bytes]:
    """The store of a group whose ranks share torch's store `theirs`, and the secret by which they prove themselves.

    The secret is made here and left in torch's store: it keeps out whoever can reach the ports but not that store.
    `resources` closes what is opened. Raises DeadlineExceeded or RendezvousError.
    """
    try:
        if rank == 0:
            secret = new_secret()
            server = resources.enter_context(TcpStoreServer(_address(), secret=secret))
            theirs.set(_KEY, msgpack.packb([server.url, secret]))
        left = max(_SHORTEST, deadline - time.monotonic())
        theirs.wait([_KEY], timedelta(seconds=left))
        url, secret = msgpack.unpackb(theirs.get(_KEY), max_array_len=2)
    except RuntimeError as error:  # torch has one error for a late key and for a store that is gone
        kind = DeadlineExceeded if time.monotonic() >= deadline - _SHORTEST else RendezvousError
        raise kind(f"rank {rank} did not hear from rank 0 in torch's store: {error}", rank=rank) from error
    store = TcpStore(*parse_url(url), secret, connect_deadline=deadline)
    resources.callback(store.close)
    return store, secret


def _address() -> str:
    """An address of this host that the other ranks reach: towards torch's master, if there is one."""
    return choose_address("", os.environ.get("MASTER_ADDR"))
