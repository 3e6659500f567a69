"""The named operations that one answer lets run: small allreduces together, the others one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from collectives.fusion import Packable, bundles, reduce_together
from collectives.progress import Job, Promise
from collectives.reduction_jobs import ReductionJobs
from collectives.terms import Terms
from collectives.trace import Trace, now
from transports.errors import RondeError


class Operation:
    """A named operation in flight on this rank, or join (without a job)."""

    __slots__ = ("agreed", "began", "expires", "job", "name", "submitted", "timeout", "withdrawn", "work")

    def __init__(self, name: str, job: Job[Any] | None, timeout: float) -> None:
        self.name = name
        self.job = job
        self.work: Promise[Any] = Promise()  # Promise[Any]() takes five times as long
        self.timeout = timeout
        self.expires = time.monotonic() + timeout
        self.withdrawn = False
        self.submitted, self.agreed, self.began = now(), 0, 0

    def show(self, trace: Trace) -> None:
        """Put what has become of it into the timeline, now that it is over; nothing if that began in between."""
        if trace.on and self.agreed and self.began:
            trace.add("negotiation", self.name, self.submitted, self.agreed)
            trace.add("queue", self.name, self.agreed, self.began)
            trace.add("operations", self.name, self.began, operation=self.describe())

    def describe(self) -> str:
        """'allreduce(float32 (3, 4), op=sum) named 'x'', for messages."""
        return "join" if self.job is None else f"{self.job.terms.describe()} named {self.name!r}"


class Item(NamedTuple):
    """What is to be run; without an operation this rank has joined, and gives zeros."""

    operation: Operation | None
    name: str
    terms: Terms


class End(NamedTuple):
    """How an operation ended."""

    name: str
    result: Any = None
    error: BaseException | None = None


def run_all(items: Sequence[Item], jobs: ReductionJobs, fusion: int, timeout: float) -> Iterator[End]:
    """Run operations in the order that all ranks come to, and yield each one's end as soon as it is over.

    timeout   seconds for what no operation of this rank has a timeout for

    An error that is raised, not yielded, has aborted the communicator, or must.
    """
    packs = [_pack(item, jobs) for item in items]
    left = [-1 if pack is None else len(pack.parts) for pack in packs]
    for bundle in bundles([item.terms for item in items], jobs.buffer.limit(fusion)):
        owners = [items[place.operation].operation for place in bundle]
        deadline = time.monotonic() + max((owner.timeout for owner in owners if owner is not None), default=timeout)
        for owner in owners:
            if owner is not None and not owner.began:
                owner.began = now()
        parts = [pack.parts[place.array] for place in bundle if (pack := packs[place.operation]) is not None]
        if len(parts) > 1:
            with jobs.trace.span("fusion", f"{len(parts)} arrays", names=[items[p.operation].name for p in bundle]):
                reduce_together(parts, jobs.buffer, deadline)
        elif parts:
            reduce_together(parts, jobs.buffer, deadline)
        elif owners[0] is not None:
            yield _alone(owners[0], deadline)
        for place in bundle:
            left[place.operation] -= 1
            pack = packs[place.operation]
            if pack is not None and not left[place.operation]:
                yield _finished(items[place.operation].name, pack)
    for item, pack in zip(items, packs, strict=True):
        if pack is not None and not pack.parts:
            yield _finished(item.name, pack)


def _pack(item: Item, jobs: ReductionJobs) -> Packable | None:
    """The arrays of an allreduce; None for other operations."""
    if item.operation is None:
        return jobs.zeros(item.terms)
    assert item.operation.job is not None
    return item.operation.job.packable


def _alone(operation: Operation, deadline: float) -> End:
    assert operation.job is not None
    try:
        return End(operation.name, operation.job.run(deadline))
    except (RondeError, TypeError, ValueError) as error:
        return End(operation.name, error=error)


def _finished(name: str, pack: Packable) -> End:
    try:
        return End(name, pack.finish())
    except Exception as error:  # noqa: BLE001 - the other ranks are done with it
        return End(name, error=error)
