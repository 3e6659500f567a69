"""From torch's store to ours: the first rank of a group serves one, and torch's tells the others where.

torch's own store would do for a rendezvous, but not for what comes after it, such as waiting for news that seldom come.
"""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta
from typing import Any

from transports.auth import new_secret
from transports.errors import DeadlineExceeded, RendezvousError
from transports.interfaces import choose_address
from transports.packed import pack, unpack
from transports.rendezvous import bootstrap
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.store import Store
from transports.tls import Tls

_KEY = "ronde/store"
_SHORTEST = 0.01


def open_store(
    theirs: Any, rank: int, deadline: float, resources: contextlib.ExitStack, tls: Tls | None
) -> tuple[Store, bytes]:
    """The store of a group whose ranks share torch's store `theirs`, and the secret by which they prove themselves.

    The secret is made here and left in torch's store: it keeps out whoever can reach the ports but not that store.
    `resources` closes what is opened. Raises DeadlineExceeded or RendezvousError.
    """
    try:
        if rank == 0:
            secret = new_secret()
            server = resources.enter_context(TcpStoreServer(_address(), secret=secret, tls=tls))
            theirs.set(_KEY, pack([server.url, secret]))
        left = max(_SHORTEST, deadline - time.monotonic())
        theirs.wait([_KEY], timedelta(seconds=left))
        told = unpack(theirs.get(_KEY))
    except RuntimeError as error:  # torch has one error for a late key and for a store that is gone
        kind = DeadlineExceeded if time.monotonic() >= deadline - _SHORTEST else RendezvousError
        raise kind(f"rank {rank} did not hear from rank 0 in torch's store: {error}", rank=rank) from error
    match told:
        case [str(url), bytes(secret)]:
            store = bootstrap.open_store(url, secret, deadline, tls=tls)
        case _:
            raise RendezvousError("torch's store holds something else where the address of ours should be", rank=rank)
    resources.callback(store.close)
    return store, secret


def _address() -> str:
    """An address of this host that the other ranks reach: towards torch's master, if there is one."""
    return choose_address("", os.environ.get("MASTER_ADDR"))
