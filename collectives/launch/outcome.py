"""The outcome of a rank started by `run`, in a form that can be sent between processes."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, Protocol, TypeGuard

from collectives.failure import is_consequence


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
    substitute = RuntimeError(f"rank {rank} raised {error!r}")
    substitute.__cause__ = error
    return Failure(rank, substitute)


def dump(outcome: Outcome, pickler: Callable[[object], bytes] = pickle.dumps) -> bytes:
    """Pickle an outcome. `pickler`: another one, such as cloudpickle.dumps, whose bytes pickle can read.

    An error that cannot be pickled and unpickled becomes a RuntimeError with its text; a result that cannot be pickled
    becomes a failure.
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
    trace = "".join(traceback.format_exception(outcome.error)).rstrip()
    try:
        data = pickler(Failure(rank, outcome.error, trace, outcome.consequence))
        pickle.loads(data)
    except Exception:  # noqa: BLE001  likewise
        text = f"rank {rank} raised {type(outcome.error).__qualname__}: {outcome.error}"
        return pickle.dumps(Failure(rank, RuntimeError(text), trace, outcome.consequence))
    return data


def load(rank: int, data: bytes) -> Outcome:
    """Unpickle an outcome made by `dump`. If that fails, the outcome is a failure of that rank."""
    try:
        outcome = pickle.loads(data)
    except Exception as error:  # noqa: BLE001  unpickling runs code of the object, which may raise anything
        return Failure(rank, RuntimeError(f"the result of rank {rank} cannot be unpickled: {error!r}"))
    if not _is_complete(outcome) or outcome.rank != rank:
        return Failure(rank, RuntimeError(f"the result of rank {rank} cannot be unpickled: it is not an outcome of it"))
    return outcome


def _is_complete(outcome: object) -> TypeGuard[Outcome]:
    """True for an outcome that has all its fields; unpickling does not check that."""
    return isinstance(outcome, Outcome) and vars(outcome).keys() == {field.name for field in fields(outcome)}
