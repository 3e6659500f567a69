"""The programs of the ranks in the tests: functions that a Crew runs on every rank, and their reports.

Times are `time.monotonic()`, which is one clock for all hosts of a Network.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import collectives
from collectives import Communicator
from collectives.planning.select import Demand, Selector
from collectives.schedule.steps import Geometry
from tests.collectives.mixed import one
from tests.netns.worker import Link
from transports.errors import RondeError
from transports.onesided import OneSided

CLOSE_SECONDS = 10.0
HEAR_SECONDS = 30.0


@dataclass(frozen=True)
class World:
    """The data by which every rank finds the others."""

    size: int
    store: str
    secret: bytes
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Failure:
    """An error as its rank saw it."""

    kind: str
    message: str
    peer: int | None
    at: float


@dataclass
class Story:
    """The report of a rank.

    calls    collectives that ended well, with right results
    longest  seconds that the longest of them took
    failure  the error that ended it, None if all ended well
    ended    what came of shrinking after it, if that is an error
    recovered  seconds that shrinking took
    closed   when everything was released
    """

    rank: int
    hostname: str
    pid: int
    calls: int = 0
    longest: float = 0.0
    failure: Failure | None = None
    ended: Failure | None = None
    recovered: float | None = None
    closed: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, begun: float) -> None:
        """Another collective, begun at that time, has ended well."""
        self.calls += 1
        self.longest = max(self.longest, time.monotonic() - begun)

    def note(self, error: RondeError) -> None:
        """The first error is the failure, a later one the end."""
        failure = Failure(type(error).__name__, error.message, error.peer, time.monotonic())
        if self.failure is None:
            self.failure = failure
        else:
            self.ended = failure

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.hostname}, pid {self.pid})"


@contextlib.contextmanager
def told(rank: int) -> Iterator[Story]:
    """The story of a rank, to which an error of Ronde's is added at the end. Shuts the world down."""
    story = Story(rank, socket.gethostname(), os.getpid())
    try:
        yield story
    except RondeError as error:
        story.note(error)
    finally:
        collectives.shutdown(CLOSE_SECONDS)
        story.closed = time.monotonic()


def join(rank: int, world: World) -> Communicator:
    """The world communicator."""
    return collectives.init(rank=rank, size=world.size, store=world.store, secret=world.secret, config=world.config)


def stream(link: Link, rank: int, world: World, count: int, steps: int, late: tuple[int, float] = (-1, 0.0)) -> Story:
    """`steps` allreduces of `count` numbers, each checked. Says "streaming" after the first five. If late[0] is this
    rank, it comes to the sixth late[1] seconds late."""
    with told(rank) as story:
        comm = join(rank, world)
        for step in range(steps):
            if step == 5:
                link.mark("streaming")
                if rank == late[0]:
                    time.sleep(late[1])
            _checked_allreduce(comm, story, count, step)
    return story


def broadcasts(link: Link, rank: int, world: World, count: int, root: int) -> Story:
    """Broadcasts without end: the others only receive. Says "streaming" after the first five."""
    with told(rank) as story:
        comm = join(rank, world)
        for step in itertools.count():
            if step == 5:
                link.mark("streaming")
            _checked_broadcast(comm, story, count, root)
    return story


def survive(link: Link, rank: int, world: World, count: int) -> Story:
    """Allreduces until one fails, then five in what the world shrinks to. Says "streaming" after the first five."""
    with told(rank) as story:
        comm = join(rank, world)
        try:
            for step in itertools.count():
                if step == 5:
                    link.mark("streaming")
                _checked_allreduce(comm, story, count, step)
        except RondeError as error:
            story.note(error)
        begun = time.monotonic()
        comm = comm.shrink()
        story.recovered = time.monotonic() - begun
        story.notes["now"] = comm.rank, comm.size
        for step in range(5):
            _checked_allreduce(comm, story, count, step)
    return story


def pause(link: Link, rank: int, world: World, count: int) -> Story:
    """An allreduce; then says "asleep" and does nothing until it is told to go on; then another one."""
    with told(rank) as story:
        comm = join(rank, world)
        _checked_allreduce(comm, story, count, 0)
        link.mark("asleep")
        link.hear(HEAR_SECONDS)
        _checked_allreduce(comm, story, count, 1)
    return story


def begin_late(link: Link, rank: int, world: World, count: int, root: int) -> Story:
    """Like `pause`, without the call before, and then a broadcast: when it begins, there are no connections at all."""
    with told(rank) as story:
        comm = join(rank, world)
        link.mark("asleep")
        link.hear(HEAR_SECONDS)
        _checked_broadcast(comm, story, count, root)
    return story


def mixture(link: Link, rank: int, world: World, calls: int, seed: int) -> Story:
    """`calls` random collectives of random sizes, each checked."""
    rng = np.random.default_rng(seed)
    with told(rank) as story:
        comm = join(rank, world)
        for _ in range(calls):
            begun = time.monotonic()
            one(comm, rng)
            story.add(begun)
    return story


def traffic(link: Link, rank: int, world: World, count: int) -> Story:
    """One allreduce between two waits for a word, "before" and "after". Notes which algorithm it was, and which ranks
    this one reaches through shared memory."""
    with told(rank) as story:
        comm = join(rank, world)
        names = [member.host for member in comm.members]
        geometry = Geometry(comm.rank, comm.size, hosts=tuple(map(names.index, names)))
        selector = Selector.from_config(comm.config, comm.transport)
        demand = Demand("allreduce", geometry, 4 * count, 4 * count)
        story.notes["algorithm"] = selector.choose(demand).algorithm.name
        windows = comm.transport.ability(OneSided)
        if windows is not None:
            pairs = [(peer, tuple(sorted({rank, peer}))) for peer in range(comm.size)]
            story.notes["mapped"] = [peer for peer, both in pairs if windows.reaches(both)]
        _checked_allreduce(comm, story, count, 0)
        link.mark("before")
        link.hear(HEAR_SECONDS)
        _checked_allreduce(comm, story, count, 1)
        link.mark("after")
        link.hear(HEAR_SECONDS)
    return story


def _checked_allreduce(comm: Communicator, story: Story, count: int, step: int) -> None:
    x = np.arange(step, step + count, dtype=np.float32) % 1000
    begun = time.monotonic()
    y = comm.allreduce(x + np.float32(comm.rank))
    story.add(begun)
    expected = x * comm.size + np.float32(sum(range(comm.size)))
    np.testing.assert_array_equal(y, expected, f"allreduce {step} of rank {comm.rank}")


def _checked_broadcast(comm: Communicator, story: Story, count: int, root: int) -> None:
    x = np.arange(count, dtype=np.float32)
    begun = time.monotonic()
    y = comm.broadcast(x if comm.rank == root else np.zeros_like(x), root)
    story.add(begun)
    np.testing.assert_array_equal(y, x, f"broadcast to rank {comm.rank}")
