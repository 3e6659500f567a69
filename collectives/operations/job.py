"""Job: one call on its arrays, checked and planned, to be run now, later, or when all ranks have named it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from collectives.arrays import Array
from collectives.operations.reduction import Reduction
from collectives.operations.signature import Signature
from collectives.written import Span

T_co = TypeVar("T_co", covariant=True)


class Part(NamedTuple):
    """One array of an allreduce, of `size` elements: flat and contiguous; `source` may be `target`. Both are None for
    a rank that has joined and gives zeros."""

    reduction: Reduction
    size: int
    source: Array | None
    target: Array | None


class Packable(NamedTuple):
    """An operation that is nothing but an allreduce of each of its arrays; `finish` gives its result afterwards."""

    parts: Sequence[Part]
    finish: Callable[[], Any]


class Job(ABC, Generic[T_co]):
    """One call on its arrays.

    timeout    seconds that it may take from its begin
    signature  the description of a named operation, which must be equal on all ranks
    written    the memory that an allreduce writes its results to, where it is on the host
    packable    its arrays, if they may travel with those of other operations; then `run` need not be called
    """

    __slots__ = ("timeout",)

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    @property
    @abstractmethod
    def signature(self) -> Signature:
        """See above."""

    @property
    def packable(self) -> Packable | None:
        """See above."""
        return None

    @property
    def written(self) -> Sequence[Span]:
        """See above."""
        return ()

    @abstractmethod
    def run(self, deadline: float) -> Any:
        """Do all exchanges before the deadline (monotonic seconds); returns the product for `finish`. For an
        exception that is none of Ronde's see call_turn.answer_for."""

    def finish(self, product: Any) -> T_co:
        """The result of the call, made of the product of `run` by this rank alone. Its errors concern this rank."""
        return product  # type: ignore[no-any-return]

    def complete(self, deadline: float) -> T_co:
        """`run` and `finish`, as a part of another job."""
        return self.finish(self.run(deadline))


class FunctionJob(Job[T_co]):
    """A job made of two functions: `run` of the deadline, and `finish` of its product."""

    __slots__ = ("_finish", "_packable", "_run", "_signature", "_written")

    def __init__(
        self,
        run: Callable[[float], Any],
        timeout: float,
        signature: Signature,
        packable: Packable | None = None,
        finish: Callable[[Any], T_co] | None = None,
        written: Callable[[], Sequence[Span]] = tuple,
    ) -> None:
        super().__init__(timeout)
        self._run = run
        self._finish = finish
        self._packable = packable
        self._written = written
        self._signature = signature

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def packable(self) -> Packable | None:
        return self._packable

    @property
    def written(self) -> Sequence[Span]:
        return self._written()

    def run(self, deadline: float) -> Any:
        return self._run(deadline)

    def finish(self, product: Any) -> T_co:
        return super().finish(product) if self._finish is None else self._finish(product)
