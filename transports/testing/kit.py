"""The conformance kit: runs checks of the promises in transports.base and transports.onesided on a transport."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from transports.auth import new_secret
from transports.base import Group, Member, Transport
from transports.errors import AbortedError
from transports.rendezvous import MemoryStore
from transports.testing.bench import Bench
from transports.testing.leaks import Leaks
from transports.testing.ranks import run_threads

SETTLE_SECONDS: Final = 2.0
"""Seconds for the threads and descriptors of a check to end."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and the code that checks it, run by every rank.

    least       minimum number of ranks
    every_size  run with every size, not only with the first that is large enough
    opens       the transport is opened before the check
    ends        the check leaves the transport aborted or closed
    """

    run: Callable[[Bench], None]
    least: int = 1
    every_size: bool = True
    opens: bool = True
    ends: bool = False

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def promise(self) -> str:
        """The sentence of the contract."""
        return " ".join((self.run.__doc__ or "").split())

    def sizes(self, sizes: Sequence[int]) -> list[int]:
        """The subset of `sizes` with which the check is run."""
        fit = [size for size in sizes if size >= self.least]
        return fit if self.every_size else fit[:1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one check with one number of ranks."""

    check: str
    promise: str
    size: int
    error: BaseException | None

    def __str__(self) -> str:
        verdict = "kept" if self.error is None else "BROKEN"
        return f"{verdict:6} {self.check}, {self.size} rank{'s' * (self.size > 1)}: {self.promise}"


@dataclass(frozen=True, slots=True)
class Report:
    """All outcomes of a transport, in the order tried."""

    transport: str
    outcomes: tuple[Outcome, ...]

    @property
    def broken(self) -> tuple[Outcome, ...]:
        """The outcomes of broken promises."""
        return tuple(outcome for outcome in self.outcomes if outcome.error is not None)

    def __str__(self) -> str:
        return "\n".join([f"transport {self.transport!r}", *map(str, self.outcomes)])


class ConformanceError(AssertionError):
    """A transport breaks promises. The text has each of them with its traceback, `report` all outcomes."""

    def __init__(self, report: Report) -> None:
        parts = [f"transport {report.transport!r} breaks {len(report.broken)} of {len(report.outcomes)} promises"]
        for outcome in report.broken:
            assert outcome.error is not None
            parts += [str(outcome), "".join(traceback.format_exception(outcome.error))]
        super().__init__("\n\n".join(parts))
        self.report = report


def run_check(check: Check, make: Callable[[Group], Transport], size: int, seconds: float) -> None:
    """Run one check with `size` ranks, as threads. Raises the error of the first rank that failed, or LeakError.

    seconds  time limit of the check, and of every wait in it
    """
    store, secret = MemoryStore(), new_secret()
    members = (Member("localhost", "localhost", os.getpid()),) * size
    deadline = time.monotonic() + seconds

    def body(rank: int) -> None:
        transport = transports[rank]
        try:
            if check.opens:
                transport.open(deadline)
            check.run(Bench(transport, check.name, deadline))
            transport.close(deadline)
        except BaseException as error:
            transport.abort(AbortedError(f"rank {rank} failed: {error!r}", rank=rank))
            transport.close(deadline)
            raise

    def release() -> None:
        for transport in transports:
            transport.abort(AbortedError("the check ran out of time"))

    with Leaks(settle=min(SETTLE_SECONDS, seconds)):
        transports = [make(Group(rank, members, store, secret)) for rank in range(size)]
        run_threads(body, size, timeout=seconds + 1.0, release=release)


def try_checks(
    checks: Collection[Check],
    make: Callable[[Group], Transport],
    sizes: Sequence[int],
    seconds: float,
) -> Report:
    """Run all `checks`, each with new transports."""
    outcomes: list[Outcome] = []
    for check in checks:
        for size in check.sizes(sizes):
            error: BaseException | None = None
            try:
                run_check(check, make, size, seconds)
            except Exception as caught:  # noqa: BLE001 - the report contains it
                error = caught
            outcomes.append(Outcome(check.name, check.promise, size, error))
    probe = make(Group(0, (Member("localhost", "localhost", os.getpid()),), MemoryStore()))
    return Report(probe.name, tuple(outcomes))
