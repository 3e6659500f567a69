"""Rendezvous through torch's store: rank 0 serves a store of Ronde's and publishes its address in torch's store.

torch's own store is sufficient to connect the ranks, but not for later use, such as waiting for rare events.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from transports import rendezvous
from transports.auth import new_secret
from transports.errors import DeadlineExceeded, RendezvousError
from transports.interfaces import choose_address
from transports.liveness import Identity
from transports.packed import pack, unpack
from transports.store import Store
from transports.tls import Tls

_KEY = "ronde/store"
_SHORTEST = 0.01
_PAUSE = 0.05
_LAST = 1.0
"""Seconds that a rank which leaves waits for rank 0 to end torch's store."""


def open_store(
    theirs: Any, rank: int, deadline: float, resources: contextlib.ExitStack, tls: Tls | None
) -> tuple[Store, bytes]:
    """Open the store of a group whose ranks share torch's store `theirs`; return it and the secret for authentication.

    torch's store may outlive the ranks: torchrun starts them again with the same one, and a process may leave a group
    and enter the next one while rank 0 is still in the first. So the address that a rank finds there may be that of a
    store that has ended, or in which this process has been before; then it waits for another address.

    The secret is created here and published in torch's store, so it keeps out clients that can reach the ports but not
    that store. `resources` closes what is opened. Raises DeadlineExceeded or RendezvousError.
    """
    try:
        if rank == 0:
            secret = new_secret()
            server = resources.enter_context(rendezvous.TcpStoreServer(_address(), secret=secret, tls=tls))
            resources.callback(server.drain)
            theirs.set(_KEY, pack([server.url, secret]))
        while True:
            left = max(_SHORTEST, deadline - time.monotonic())
            theirs.wait([_KEY], timedelta(seconds=left))
            found = _opened(unpack(theirs.get(_KEY)), rank, deadline - _PAUSE, tls)
            if found is not None:
                resources.callback(found[0].close)
                return found
            time.sleep(_PAUSE)  # nothing in torch's store announces a key that is set anew
    except RuntimeError as error:  # torch has one error for a late key and for a store that is gone
        kind = DeadlineExceeded if time.monotonic() >= deadline - _SHORTEST else RendezvousError
        raise kind(f"rank {rank} did not hear from rank 0 in torch's store: {error}", rank=rank) from error


def own_part(theirs: Any, secret: bytes) -> dist.PrefixStore:
    """Return a part of torch's store `theirs` in which nothing is left of other groups, for the ranks that have this
    group's `secret`. torch gives a group that is made anew the name of the one before, so also the keys."""
    return dist.PrefixStore(f"ronde/{hashlib.blake2b(secret, digest_size=8).hexdigest()}", theirs)


@contextlib.contextmanager
def leaving(theirs: Any) -> Iterator[None]:
    """Context in which a rank other than 0 leaves the default group. At its end it waits for rank 0 to end torch's
    store `theirs`, 1 s at most: if the process made its next group before, at the same address, it would find that
    store. The store of torchrun does not end, and is not waited for.
    """
    store = theirs
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        yield
        return
    with contextlib.ExitStack() as opened:
        watched = None
        with contextlib.suppress(OSError):  # it has ended
            watched = opened.enter_context(socket.create_connection((store.host, store.port), _LAST))
        yield
        if watched is not None:
            with contextlib.suppress(OSError):
                watched.recv(1)  # the store says nothing to a client that has not spoken


def _opened(told: object, rank: int, last: float, tls: Tls | None) -> tuple[Store, bytes] | None:
    """The store at a published address, and its secret; None if it does not answer. After `last` (absolute) it raises
    the reason, a RendezvousError."""
    match told:
        case [str(url), bytes(secret)]:
            pass
        case _:
            raise RendezvousError("torch's store holds a value that is not the address of Ronde's store", rank=rank)
    store = rendezvous.open_store(url, secret, time.monotonic(), tls=tls)  # it was published after it was opened
    with contextlib.ExitStack() as opened:
        opened.callback(store.close)
        try:
            if store.add(f"{_KEY}/{rank}/{_process()}", 1) > 1:
                raise RendezvousError(
                    f"rank {rank} has left a group, and rank 0 has not: it leaves later, or enters no other one",
                    rank=rank,
                    peer=0,
                )
        except RendezvousError:
            if time.monotonic() >= last:
                raise
            return None
        opened.pop_all()
    return store, secret


def _process() -> str:
    """A name of this process: it has been here before if its name has."""
    own = Identity.own()
    return f"{socket.gethostname()}/{own.space}/{own.pid}/{own.start}"


def _address() -> str:
    """Return an address of this host that the other ranks can reach: on the interface towards torch's master, if there
    is one."""
    return choose_address("", os.environ.get("MASTER_ADDR"))
