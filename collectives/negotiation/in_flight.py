"""The named operations in flight on one rank, and when they expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from collectives.metering import Finished, Trace, now
from collectives.negotiation.messages import JOIN
from collectives.operations import Job, Promise
from collectives.written import WrittenMemory

NEVER: Final = float("inf")


class Operation:
    """A named operation of this rank; join is one without a job.

    expires    moment at which the rank stops waiting for the others (monotonic seconds); NEVER once all agreed
    arrivals   on rank 0, while there is a timeline: ranks that have submitted it, and when rank 0 heard of it
    withdrawn  True after its expiry was reported to the coordinator
    """

    __slots__ = ("agreed", "arrivals", "began", "expires", "job", "name", "submitted", "timeout", "withdrawn", "work")

    def __init__(
        self, name: str, job: Job[Any] | None, timeout: float, check_wait: Callable[[], object] = lambda: None
    ) -> None:
        """`check_wait`: see Promise."""
        self.name = name
        self.job = job
        self.work: Promise[Any] = Promise(check_wait)  # Promise[Any](...) takes five times as long
        self.timeout = timeout
        self.expires = time.monotonic() + timeout
        self.withdrawn = False
        self.submitted, self.agreed, self.began = now(), 0, 0
        self.arrivals: Sequence[tuple[int, int]] = ()

    def record(self, trace: Trace) -> None:
        """Write the phases of the finished operation into the timeline, if it was on during all of them."""
        if trace.on and self.agreed and self.began and self.job is not None:
            call = self.job.signature
            trace.operation(
                Finished(
                    name=self.name,
                    kind=call.kind,
                    op=call.op,
                    dtype=call.dtypes[0] if call.dtypes else "",
                    shape=call.shapes[0] if call.shapes else (),
                    description=self.describe(),
                    submitted=self.submitted,
                    agreed=self.agreed,
                    began=self.began,
                    ended=now(),
                    arrivals=tuple(self.arrivals),
                    signature=call._asdict(),
                )
            )

    def describe(self) -> str:
        """Format the operation for messages: "allreduce(float32 (3, 4), op=sum) named 'x'"."""
        return "join" if self.job is None else f"{self.job.signature.describe()} named {self.name!r}"


class NameInFlightError(ValueError):
    """The name of an operation is that of another one that is in flight on this rank."""


class MemoryInFlightError(ValueError):
    """An operation would reduce into memory into which another one reduces, which is in flight on this rank."""


class InFlight:
    """The operations that this rank has submitted and that have not ended, by name.

    The engine's lock guards it, except for `get`.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Operation] = {}
        self._written = WrittenMemory()
        self.get = self._by_name.get
        """The operation of a name, None if it is not in flight here."""

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def add(self, operation: Operation) -> None:
        """Add an operation. Raises NameInFlightError if its name is in flight, MemoryInFlightError, ValueError if join
        is."""
        name = operation.name
        if JOIN in self._by_name:
            raise ValueError(f"name={name!r}: this rank has joined; it can submit again once all ranks have joined")
        if name in self._by_name:
            raise NameInFlightError(f"name={name!r}: an operation of this name is in flight on this rank")
        written = () if operation.job is None else operation.job.written
        if written:
            owner = self._written.owner(written)
            if owner is not None:
                raise MemoryInFlightError(
                    f"name={name!r}: its result is written to memory of {owner!r}, which is in flight on this rank; "
                    "wait for that operation first, or give a copy"
                )
        self._by_name[name] = operation  # first: an interrupt here aborts if the operation is found
        self._written.add(name, written)

    def remove(self, name: str) -> Operation | None:
        """Remove an operation that has ended; None if it is not in flight here."""
        self._written.remove(name)
        return self._by_name.pop(name, None)

    def remove_all(self) -> list[Operation]:
        """Remove all operations and return them."""
        operations = list(self._by_name.values())
        self._by_name.clear()
        self._written.clear()
        return operations

    def agree(self, names: Iterable[str]) -> None:
        """Note that all ranks have agreed to run these operations: from now on the executor's deadlines apply.

        While a rank waits in join, its timeout starts again whenever the others run something.
        """
        moment = now()
        for name in names:
            operation = self._by_name.get(name)
            if operation is not None:
                operation.expires = NEVER
                operation.agreed = moment
        join = self._by_name.get(JOIN)
        if join is not None:
            join.expires = time.monotonic() + join.timeout

    def expired(self, moment: float) -> list[Operation]:
        """Operations that have expired by `moment`."""
        return [operation for operation in self._by_name.values() if operation.expires <= moment]

    @property
    def next_expiry(self) -> float:
        """The moment at which the first operation expires; NEVER if none will."""
        return min((operation.expires for operation in self._by_name.values()), default=NEVER)

    def describe(self) -> list[str]:
        """A text for every operation, for messages."""
        return [operation.describe() for operation in self._by_name.values()]
