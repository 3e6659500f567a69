"""What making a job begins with: the checks of arguments that collectives share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from collectives.buffers import Array, Target
from collectives.config import Config
from collectives.execute import Executor
from collectives.program import split_evenly
from collectives.progress import Job
from collectives.select import Selector
from collectives.terms import Terms
from collectives.trace import Trace

if TYPE_CHECKING:
    from collectives.fusion import Packable

T = TypeVar("T")


class JobMaker:
    """A call's arguments -> a job for the stream. All checks happen while the job is made, before anything is sent."""

    def __init__(self, rank: int, size: int, executor: Executor, selector: Selector, config: Config) -> None:
        self.rank = rank
        self.size = size
        self._executor = executor
        self._selector = selector
        self._config = config

    @property
    def trace(self) -> Trace:
        """Where the communicator's events go."""
        return self._executor.meter.trace

    def job(
        self, run: Callable[[float], T], timeout: float | None, terms: Terms, packable: Packable | None = None
    ) -> Job[T]:
        """`run` with its time limit. Raises ValueError for a bad timeout."""
        return Job(run, self.timeout(timeout), terms, packable)

    def timeout(self, timeout: float | None) -> float:
        """The seconds that a call may take. Raises ValueError for a bad value."""
        if timeout is None:
            return self._config.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < float("inf"):
            raise ValueError(f"timeout={timeout!r}: must be a positive, finite number of seconds")
        return float(timeout)

    def deadline(self) -> float:
        """Until when what is asked for now must be known."""
        return time.monotonic() + self._config.timeout

    def check_rank(self, rank: int, name: str) -> None:
        """Raises TypeError or ValueError, naming the argument, unless `rank` is one of this communicator."""
        if not isinstance(rank, (int, np.integer)) or isinstance(rank, bool):
            raise TypeError(f"{name}={rank!r}: must be an int")
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: must be a rank of this communicator, 0 to {self.size - 1}")

    def rows(self, array: Array, given: Sequence[int] | None, name: str, even: bool) -> list[int]:
        """How many rows of axis 0 belong to each rank."""
        if array.ndim == 0:
            raise ValueError("x: has no axis to split; it must have at least one dimension")
        rows = array.shape[0]
        if given is None:
            if even and rows % self.size:
                raise ValueError(
                    f"x: its first dimension {rows} is not divisible by {self.size} ranks; "
                    f"give {name}= for uneven parts"
                )
            return split_evenly(rows, self.size)
        numbers = np.asarray(given)
        if numbers.shape != (self.size,) or numbers.dtype.kind not in "iu":
            raise ValueError(f"{name}={given!r}: must be {self.size} ints, one for each rank")
        if numbers.min() < 0 or int(numbers.sum()) != rows:
            raise ValueError(f"{name}={given!r}: must be at least 0 each and {rows} together, the first dimension of x")
        return [int(number) for number in numbers]


def apart(source: Array, target: Target) -> Array:
    """`source`, copied if its memory overlaps the target's in a way other than being the very same."""
    if target.given and np.may_share_memory(source, target.flat):
        return source.copy()
    return source


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """'float32', 'bfloat16': what np.dtype gives back."""
    return dtype.name
