"""How a rank of `run` ended, in a form that travels between processes."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, Protocol, TypeGuard

from collectives.launch.blame import is_consequence


@dataclass(frozen=True)
class Success:
    """What a rank returned."""

    rank: int
    value: Any


@dataclass(frozen=True)
class Failure:
    """A rank that raised, or died. `trace` is its traceback as text where the error itself cannot carry it."""

    rank: int
    error: Exception
    trace: str = ""

    def reraise(self) -> NoReturn:
        """Raise the error, with a note that says where it comes from."""
        self.error.add_note(f"raised on rank {self.rank}" + (f", where it was:\n{self.trace}" if self.trace else ""))
        raise self.error


Outcome = Success | Failure


def cause(failures: Sequence[Failure]) -> Failure:
    """The failure to report: the first that is no consequence of another one, else the first."""
    return next((failure for failure in failures if not is_consequence(failure.error)), failures[0])


def failure(rank: int, error: BaseException) -> Failure:
    """The failure of a rank that raised `error`. What is no Exception (SystemExit, KeyboardInterrupt) becomes a
    RuntimeError: it was meant for the rank, not for the caller of `run`."""
    if isinstance(error, Exception):
        return Failure(rank, error)
    substitute = RuntimeError(f"rank {rank} raised {error!r}")
    substitute.__cause__ = error
    return Failure(rank, substitute)


def dump(outcome: Outcome) -> bytes:
    """The outcome as bytes. An error that does not survive the journey becomes a RuntimeError with its text; a result
    that cannot be pickled is a failure."""
    rank = outcome.rank
    if isinstance(outcome, Success):
        try:
            return pickle.dumps(outcome)
        except Exception as error:  # noqa: BLE001  pickling runs code of the object, which may raise anything
            kind = type(outcome.value).__qualname__
            return dump(failure(rank, TypeError(f"the result of rank {rank} ({kind}) cannot be pickled: {error}")))
    trace = "".join(traceback.format_exception(outcome.error)).rstrip()
    try:
        data = pickle.dumps(Failure(rank, outcome.error, trace))
        pickle.loads(data)
    except Exception:  # noqa: BLE001  likewise
        text = f"rank {rank} raised {type(outcome.error).__qualname__}: {outcome.error}"
        return pickle.dumps(Failure(rank, RuntimeError(text), trace))
    return data


def load(rank: int, data: bytes) -> Outcome:
    """The outcome that `dump` made bytes of. What cannot be unpickled here is a failure of that rank."""
    try:
        outcome = pickle.loads(data)
    except Exception as error:  # noqa: BLE001  unpickling runs code of the object, which may raise anything
        return Failure(rank, RuntimeError(f"the result of rank {rank} cannot be unpickled: {error!r}"))
    if not _complete(outcome) or outcome.rank != rank:
        return Failure(rank, RuntimeError(f"the result of rank {rank} cannot be unpickled: it is no outcome of it"))
    return outcome


def _complete(outcome: object) -> TypeGuard[Outcome]:
    """True for an outcome with all its fields: unpickling makes objects without asking what they lack."""
    return isinstance(outcome, Outcome) and vars(outcome).keys() == {field.name for field in fields(outcome)}


class Ranks(Protocol):
    """Ranks that call a function. `start` once, `receive` until there are enough outcomes, `end` in any case."""

    def start(self) -> None:
        """Start all of them. After an error here `end` must still be called."""

    def receive(self, until: float) -> list[Outcome]:
        """Wait, until then at most, for outcomes that have not been told before; in the order in which they came."""

    def end(self, *, at_once: bool) -> None:
        """Release everything. `at_once` ends ranks that are not done yet."""
