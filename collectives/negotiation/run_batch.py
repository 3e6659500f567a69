"""Running the named operations of one answer: small allreduces packed together, the others one by one."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from collectives.execution import Executor
from collectives.flight import BATCH, BATCHES, Description
from collectives.metering import now
from collectives.negotiation.in_flight import Operation
from collectives.operations import HostOperations, Job, Packable, Signature, bundles, reduce_together, run_whole

_KEPT: Final = 256
"""Descriptions of batches that are kept."""


class BatchItem(NamedTuple):
    """An operation to run. Without an `operation` this rank has joined, and contributes zeros."""

    operation: Operation | None
    name: str
    signature: Signature


class Outcome(NamedTuple):
    """The end of an operation: a result or an error."""

    name: str
    result: Any = None
    error: BaseException | None = None


class BatchRunner:
    """Runs batches of operations. Only the engine's thread uses it."""

    def __init__(self, operations: HostOperations, timeout: float) -> None:
        """
        operations   no one else runs any of them; `stage` has not been called yet
        timeout      seconds for collectives to which this rank contributes nothing but zeros
        """
        self.trace = operations.trace
        self._operations = operations
        self._timeout = timeout
        self._staged = False
        self._descriptions: dict[tuple[str, ...], Description] = {}

    def run(self, items: Sequence[BatchItem], fusion: int) -> Iterator[Outcome]:
        """Run operations, whose order is the same on all ranks; yield the outcome of each as soon as it has ended.

        `fusion`: maximum bytes per packed collective. An error raised instead of yielded has aborted the communicator,
        or must abort it.
        """
        if not self._staged:
            self._operations.stage()  # the first batch: all ranks are here, as they must be
            self._staged = True
        self.trace.cycle()
        log = self._operations.executor.notes(BATCHES, "batches")
        ready = max([item.operation.submitted for item in items if item.operation is not None], default=None)
        noted = log.begin(self._description(items), ready)
        buffer = self._operations.buffer
        jobs = [self._job(item) for item in items]
        packables = [job.packable for job in jobs]
        remaining = [-1 if packable is None else len(packable.parts) for packable in packables]
        for bundle in bundles([item.signature for item in items], buffer.limit(fusion)):
            owners = [items[array.operation].operation for array in bundle]
            timeouts = [owner.timeout for owner in owners if owner is not None]
            deadline = time.monotonic() + max(timeouts, default=self._timeout)
            for owner in owners:
                if owner is not None and not owner.began:
                    owner.began = now()
            parts = [
                packable.parts[array.array] for array in bundle if (packable := packables[array.operation]) is not None
            ]
            if len(parts) > 1:
                names = [items[array.operation].name for array in bundle]
                with self.trace.span("fusion", f"{len(parts)} arrays", names=names):
                    reduce_together(parts, buffer, deadline)
            elif parts:
                reduce_together(parts, buffer, deadline)
            else:
                alone = bundle[0].operation
                yield _run_alone(items[alone].name, jobs[alone], self._operations.executor, deadline)
            for array in bundle:
                remaining[array.operation] -= 1
                packable = packables[array.operation]
                if packable is not None and not remaining[array.operation]:
                    yield _finish(items[array.operation].name, packable)
        for item, packable in zip(items, packables, strict=True):
            if packable is not None and not packable.parts:
                yield _finish(item.name, packable)
        log.end(noted)

    def _description(self, items: Sequence[BatchItem]) -> Description:
        """The description of a batch for the flight record; that of the last ones is kept."""
        first = items[0]
        key = first.signature.kind, *[item.name for item in items]
        found = self._descriptions.get(key)
        if found is None:
            if len(self._descriptions) >= _KEPT:
                self._descriptions.clear()
            more = len(items) - 1
            text = f"{first.signature.kind} {first.name!r}{f' and {more} more' if more else ''}"
            digest = zlib.crc32("\0".join(key).encode())
            found = self._descriptions[key] = Description(text, BATCH, 0, "", digest, -1, "")
        return found

    def _job(self, item: BatchItem) -> Job[Any]:
        """This rank's part in an operation."""
        if item.operation is None:
            return self._operations.zeros(item.signature)
        assert item.operation.job is not None
        return item.operation.job


def _run_alone(name: str, job: Job[Any], executor: Executor, deadline: float) -> Outcome:
    try:
        return Outcome(name, job.finish(run_whole(executor, job, deadline)))
    except Exception as error:  # noqa: BLE001 - it is the operation's; in the middle of a call it has aborted
        return Outcome(name, error=error)


def _finish(name: str, packable: Packable) -> Outcome:
    try:
        return Outcome(name, packable.finish())
    except Exception as error:  # noqa: BLE001 - the collective has completed, so the error concerns this rank alone
        return Outcome(name, error=error)
