"""Groups of threads and of processes, for tests of transports."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from transports import registry
from transports.base import Group, Member, Transport
from transports.errors import AbortedError
from transports.rendezvous.memory import MemoryStore
from transports.store import Store
from transports.testing import run_threads

T = TypeVar("T")

SECRET = b"a secret for tests only"
SECONDS = 60.0


def soon() -> float:
    """A deadline for what ends well."""
    return time.monotonic() + SECONDS


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def groups(size: int, hosts: Sequence[str] = ()) -> list[Group]:
    """The groups of `size` threads; `hosts` has the host of each, by default one for all."""
    store, hosts = MemoryStore(), hosts or ["here"] * size
    members = tuple(Member(host, "localhost", os.getpid()) for host in hosts)
    return [Group(rank, members, store, SECRET) for rank in range(size)]


def group_of_processes(rank: int, size: int, store: Store, hosts: Sequence[str] = ()) -> Group:
    """The group of a rank that is a process; the ranks tell each other their process ids."""
    store.set(f"pid/{rank}", b"%d" % os.getpid())
    pids = [int(store.get(f"pid/{other}", soon())) for other in range(size)]
    hosts = hosts or ["here"] * size
    members = tuple(Member(host, "localhost", pid) for host, pid in zip(hosts, pids, strict=True))
    return Group(rank, members, store.prefixed("group"), SECRET)


def backend_of(name: str, **settings: Any) -> Callable[[Group], Transport]:
    """Makes transports by name."""
    options = registry.make_options(name, {setting: (value, "test") for setting, value in settings.items()})
    return lambda group: registry.backend(name).create(group, options)


def on_ranks(
    make: Callable[[Group], Transport], body: Callable[[Transport], T], size: int = 2, hosts: Sequence[str] = ()
) -> list[T]:
    """Run body(transport) on `size` threads, once all transports are open; they are closed after it."""
    transports = [make(group) for group in groups(len(hosts) or size, hosts)]
    opened = threading.Barrier(len(transports))

    def run(rank: int) -> T:
        transport = transports[rank]
        try:
            transport.open(soon())
            opened.wait(SECONDS)
            return body(transport)
        except BaseException as error:
            transport.abort(AbortedError(f"a test failed: {error!r}"))
            raise
        finally:
            transport.close(soon())

    return run_threads(run, len(transports), timeout=2 * SECONDS)


def send(transport: Transport, peer: int, tag: int, payload: bytes, check: int = 0) -> None:
    """Send and wait."""
    transport.isend(peer, tag, memoryview(payload), check).wait(soon())


def recv(transport: Transport, peer: int, tag: int, nbytes: int, check: int = 0) -> bytes:
    """Receive and wait."""
    buffer = bytearray(nbytes)
    transport.irecv(peer, tag, memoryview(buffer), check).wait(soon())
    return bytes(buffer)
