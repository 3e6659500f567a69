"""The outcomes of ranks that call a function: in a form that can be sent between processes, and the result of all. The
same for processes, threads and every engine."""

from __future__ import annotations

import math
import pickle
import traceback
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn, Protocol

from collectives.failure import is_consequence
from transports.errors import described

REPORT_SECONDS: Final = 5.0
"""Time to wait for the root cause after a failure that looks like a consequence, where an engine brings outcomes."""


@dataclass(frozen=True)
class Success:
    """The function returned `value`."""

    rank: int
    value: Any


@dataclass(frozen=True)
class Failure:
    """The function raised, or the rank died.

    trace        the traceback as text if `error` has lost its own in transit
    consequence  whether it may be the consequence of another failure; by default as `error` and its causes tell. In
                 transit an error loses its causes
    """

    rank: int
    error: Exception
    trace: str = ""
    consequence: bool | None = None

    def __post_init__(self) -> None:
        if self.consequence is None:
            object.__setattr__(self, "consequence", is_consequence(self.error))

    def reraise(self) -> NoReturn:
        """Raise the error, with a note of its rank and traceback."""
        self.error.add_note(f"raised on rank {self.rank}" + (f", traceback:\n{self.trace}" if self.trace else ""))
        raise self.error


Outcome = Success | Failure


class Ranks(Protocol):
    """Ranks that call a function. Call `start` once, `receive` until enough outcomes have arrived, always `close`."""

    def start(self) -> None:
        """Start all ranks. `close` must be called even if this raises."""

    def receive(self, until: float) -> list[Outcome]:
        """Wait for outcomes, at most until that moment; each is returned once, in order of arrival."""

    def close(self, *, abort: bool) -> None:
        """Wait for the ranks and release everything. `abort`: end the ranks that still run."""


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure to report: the first that is not a consequence of another one; if there is none, the first."""
    return next((failure for failure in failures if not failure.consequence), failures[0])


def failure(rank: int, error: BaseException) -> Failure:
    """The failure of a rank that raised `error`.

    SystemExit and KeyboardInterrupt become a RuntimeError: they must not end the caller of `run`.
    """
    if isinstance(error, Exception):
        return Failure(rank, error)
    substitute = RuntimeError(f"rank {rank} raised {described(error)}")
    substitute.__cause__ = error
    return Failure(rank, substitute)


@dataclass(frozen=True)
class _Told:
    """A failure on its way. `text` and `trace` arrive also if the pickled `error` cannot be read."""

    rank: int
    text: str
    trace: str
    consequence: bool | None
    error: bytes


def dump(outcome: Outcome, pickler: Callable[[object], bytes] = pickle.dumps) -> bytes:
    """Pickle an outcome. `pickler`: another one, such as cloudpickle.dumps, whose bytes pickle can read.

    An error that cannot be pickled, or that cannot be unpickled by `load`, becomes a RuntimeError with its name and
    text; a result that cannot be pickled becomes a failure.
    """
    rank = outcome.rank
    if isinstance(outcome, Success):
        try:
            return pickler(outcome)
        except Exception as error:  # noqa: BLE001  pickling runs code of the object, which may raise anything
            kind = type(outcome.value).__qualname__
            return dump(
                failure(rank, TypeError(f"the result of rank {rank} ({kind}) cannot be pickled: {error}")), pickler
            )
    raised = outcome.error
    trace = outcome.trace or "".join(traceback.format_exception(raised)).rstrip()
    try:
        pickled = pickler(raised)
    except Exception:  # noqa: BLE001  likewise
        pickled = b""
    text = f"rank {rank} raised {described(raised)}"
    return pickle.dumps(_Told(rank, text, trace, outcome.consequence, pickled))


def load(rank: int, data: bytes) -> Outcome:
    """Unpickle an outcome made by `dump`. If that fails, the outcome is a failure of that rank."""
    try:
        outcome = pickle.loads(data)
    except Exception as error:  # noqa: BLE001  unpickling runs code of the object, which may raise anything
        return unreadable(rank, described(error))
    if isinstance(outcome, _Told) and _is_complete(outcome) and outcome.rank == rank:
        return Failure(rank, _error(outcome), outcome.trace, outcome.consequence)
    if isinstance(outcome, Success) and _is_complete(outcome) and outcome.rank == rank:
        return outcome
    return unreadable(rank, "it is not an outcome of it")


def unreadable(rank: int, reason: str) -> Failure:
    """The failure of a rank whose result has come, but cannot be read."""
    return Failure(rank, RuntimeError(f"the result of rank {rank} cannot be unpickled: {reason}"))


def _error(told: _Told) -> Exception:
    try:
        error = pickle.loads(told.error)
    except Exception:  # noqa: BLE001  likewise
        return RuntimeError(told.text)
    return error if isinstance(error, Exception) else RuntimeError(told.text)


def _is_complete(outcome: Success | _Told) -> bool:
    """True for an outcome that has all its fields; unpickling does not check that."""
    return vars(outcome).keys() == {field.name for field in fields(outcome)}


class Outcomes:
    """The outcomes of ranks as they arrive: tells when enough are known, and what they come to.

    ranks     the ranks that are to have an outcome
    patience  seconds to wait for the root cause after a failure that looks like a consequence

    waiting  the ranks without an outcome
    until    monotonic seconds after which none is waited for; infinite before the first failure
    """

    def __init__(self, ranks: Iterable[int], patience: float = REPORT_SECONDS) -> None:
        self.waiting = set(ranks)
        self.until = math.inf
        self._patience = patience
        self._failures: list[Failure] = []
        self._values: dict[int, Any] = {}

    def add(self, outcome: Outcome, now: float) -> None:
        """An outcome has arrived."""
        self.waiting.discard(outcome.rank)
        if isinstance(outcome, Success):
            self._values[outcome.rank] = outcome.value
            return
        self._failures.append(outcome)
        self.until = min(self.until, now + self._patience)

    @property
    def failed(self) -> bool:
        """True if a rank has failed."""
        return bool(self._failures)

    @property
    def decided(self) -> bool:
        """True if all have arrived, or a failure is a root cause."""
        return not self.waiting or any(not failure.consequence for failure in self._failures)

    def values(self) -> list[Any]:
        """The results of the ranks that have one, in rank order. Raises the root cause if a rank has failed."""
        if self._failures:
            root_cause(self._failures).reraise()
        return [self._values[rank] for rank in sorted(self._values)]


class ElasticOutcomes:
    """The outcomes of ranks that are replaced when they are lost: tells when enough are known, and what they come to.

    members   the ranks in the world, by any names that stay; a newcomer is added when it has joined
    losses    number of ranks that may be lost; None for no limit
    minimum   the ranks cannot go on with fewer
    patience  as in Outcomes

    until     as in Outcomes
    lost      the failures of the ranks that were lost
    """

    def __init__(
        self, members: Iterable[Hashable], losses: int | None, minimum: int = 1, patience: float = REPORT_SECONDS
    ) -> None:
        self.members = set(members)
        self.until = math.inf
        self.lost: list[Failure] = []
        self._losses = losses
        self._minimum = minimum
        self._patience = patience
        self._failures: list[Failure] = []
        self._values: dict[Hashable, Any] = {}

    def add(self, member: Hashable, outcome: Outcome, now: float) -> None:
        """The function of a member has ended."""
        self.members.discard(member)
        if isinstance(outcome, Success):
            self._values[member] = outcome.value
        else:
            self._failures.append(outcome)
            self.until = min(self.until, now + self._patience)

    def lose(self, member: Hashable, failure: Failure) -> None:
        """A member was lost; the others go on."""
        self.members.discard(member)
        self.lost.append(failure)

    def refuse(self, failure: Failure, coming: int, now: float) -> bool:
        """A newcomer has failed before it was a member. True if the members go on without it; otherwise they would wait
        for it, and the failure is the outcome.

        coming  number of other newcomers on their way
        """
        goes_on = bool(self._values) or len(self.members) + coming >= self._minimum
        if not goes_on:
            self._failures.append(failure)
            self.until = min(self.until, now + self._patience)
        return goes_on

    @property
    def failed(self) -> bool:
        """True if a rank has failed or was lost."""
        return bool(self._failures or self.lost)

    @property
    def decided(self) -> bool:
        """True if all members have ended, a failure is a root cause, or too many ranks were lost."""
        return not self.members or self._too_many or any(not failure.consequence for failure in self._failures)

    @property
    def _too_many(self) -> bool:
        return self._losses is not None and len(self.lost) > self._losses

    def values(self) -> dict[Hashable, Any]:
        """The results of the ranks that there are in the end. Raises the root cause if one has failed, if too many were
        lost, or if the others did not go on."""
        if self._failures or self.members or self._too_many or not self._values:
            root_cause([*self._failures, *self.lost]).reraise()
        return self._values
