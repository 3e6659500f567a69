"""Job: one call on its arrays, checked and planned, to be run now, later, or when all ranks have named it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from collectives.arrays import Array
from collectives.operations.reduction import Reduction
from collectives.operations.signature import Signature

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

    @abstractmethod
    def run(self, deadline: float) -> T_co:
        """Do it before the deadline (monotonic seconds); returns the result of the call."""


class FunctionJob(Job[T_co]):
    """A job that calls a function of the deadline."""

    __slots__ = ("_function", "_packable", "_signature")

    def __init__(
        self,
        function: Callable[[float], T_co],
        timeout: float,
        signature: Signature,
        packable: Packable | None = None,
    ) -> None:
        super().__init__(timeout)
        self._function = function
        self._signature = signature
        self._packable = packable

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def packable(self) -> Packable | None:
        return self._packable

    def run(self, deadline: float) -> T_co:
        return self._function(deadline)
