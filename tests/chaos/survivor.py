"""The program of a rank in a case, for threads and processes: it computes until it fails, reports, and goes on."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from collectives import Communicator, RondeError
from tests.chaos.calls import Wrong, perform
from tests.chaos.case import Case
from tests.chaos.faults import Said

SHRINK_SECONDS: Final = 5.0
"""Seconds in which the survivors must meet."""
CALLS_AFTER: Final = 3
"""The number of collectives of the survivors, besides the exchange of their identities."""


class UserError(Exception):
    """The error of a rank's own code in the case `raise`."""


@dataclass
class Told:
    """A rank's report on a case.

    calls      completed, each with the right result
    said       the error that ended them
    wrong      a wrong result, a changed input, or an error of no kind that the contract knows
    survivors  the ranks of the smaller communicator, by their numbers before
    recovery   seconds from the call of shrink to the first right result
    trouble    why there was no recovery
    leaks      what was left behind
    """

    calls: int = 0
    said: Said | None = None
    wrong: str = ""
    survivors: tuple[int, ...] = ()
    recovery: float | None = None
    trouble: str = ""
    leaks: list[str] = field(default_factory=list)


def compute(
    comm: Communicator,
    case: Case,
    told: Told,
    *,
    largest: float,
    go_on: Callable[[int], bool],
) -> None:
    """Calls 0, 1, ... of the case, each while `go_on(number)`, until one fails, and a barrier. What becomes of it is
    in `told`.

    Only what `go_on` raises, and what is no Exception, is raised.
    """
    going = True
    while going:
        going = go_on(told.calls)
        try:
            if going:
                perform(
                    comm, case.seed, told.calls, timeout=case.timeout, largest=largest, objects=not case.fault.unchecked
                )
            else:
                comm.barrier(timeout=case.timeout)  # so that nobody ends before it could hear of a failure
        except RondeError as error:
            told.said = Said.of(error, time.monotonic())
        except Wrong as error:
            told.wrong = "" if case.fault.unchecked else f"call {told.calls}: {error}"
        except Exception:  # whatever it is, it is to be told
            told.wrong = "" if case.fault.unchecked else f"call {told.calls}: {traceback.format_exc()}"
            comm.abort("a call raised what it must not")
        if told.said is not None or told.wrong:
            if comm.failure is None:
                comm.abort(f"gave up after: {told.said.message if told.said else told.wrong}")
            return
        told.calls += 1


def recover(comm: Communicator, rank: int, case: Case, told: Told) -> Communicator | None:
    """Go on with the ranks that are left; their communicator, None if that fails. What becomes of it is in `told`."""
    begun = time.monotonic()
    try:
        smaller = comm.shrink(timeout=SHRINK_SECONDS)
        told.survivors = tuple(np.asarray(smaller.allgather(np.array([rank]))).tolist())
        told.recovery = time.monotonic() - begun
        for number in range(CALLS_AFTER):
            perform(smaller, case.seed + 1, number)
    except Exception:  # whatever it is, it is to be told
        told.trouble = traceback.format_exc()
        return None
    return smaller
