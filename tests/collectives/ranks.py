"""Ranks that are processes of their own, for tests of what happens to them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from collectives import Communicator, Config, RondeError, connect
from transports.rendezvous.bootstrap import join, open_store
from transports.rendezvous.server import TcpStoreServer

SECRET: Final = b"a secret for tests only"
SECONDS: Final = 60.0


@contextlib.contextmanager
def meeting_place() -> Iterator[str]:
    """The URL of a store, for `member`."""
    with TcpStoreServer("127.0.0.1", secret=SECRET) as server:
        yield server.url


@contextlib.contextmanager
def member(
    rank: int,
    size: int,
    url: str,
    *,
    generation: int = 0,
    hosts: Sequence[str] = (),
    patience: float = 5.0,
    **settings: Any,
) -> Iterator[Communicator]:
    """A rank's communicator, closed in the end, for which it has `patience`. `hosts` are those that the ranks pretend
    to be on."""
    deadline = time.monotonic() + SECONDS
    config = Config.load(
        {"timeout": SECONDS, "calibrate": False, "tcp": {"interface": "lo"}, **settings}, environment={}
    )
    with contextlib.closing(open_store(url, SECRET, deadline)) as store:
        group = join(rank, size, store, secret=SECRET, generation=generation, deadline=deadline)
        if hosts:
            members = zip(group.members, hosts, strict=True)
            group = dataclasses.replace(group, members=tuple(dataclasses.replace(m, host=h) for m, h in members))
        comm = connect(group, config, deadline)
        try:
            yield comm
        finally:
            comm.close(patience)


def await_failure(comm: Communicator, seconds: float = SECONDS) -> RondeError | None:
    """Wait without a call until the watchdog aborts the communicator; returns the cause."""
    end = time.monotonic() + seconds
    while comm.failure is None and time.monotonic() < end:
        time.sleep(0.01)
    return comm.failure
