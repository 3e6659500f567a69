"""Which kernel copies fastest between processes, to and from memory that both map, by trial.

Between some KiB and the size of the L2 cache the C library's memcpy, which is behind slice assignment and
numpy.copyto, is `rep movsb` on some processors. On AMD Zen 3 that is several times slower than vector stores where
another core has the target in its cache: us per copy, memcpy : vector stores with their call, 2 KiB 0.3 : 2.4, 4 KiB
2.7 : 2.5, 64 KiB 31 : 4.5, 256 KiB 89 : 11, 1 MiB 37 : 29, 4 MiB 122 : 140. On Zen 4 memcpy is the faster one there, by
up to a quarter, but takes 1.2 to 2 times as long to bring what another core has written to an array that is too large
for the cache. So the first copies in each of these circumstances try both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Kernel = Callable[[Any, Any], None]

TRIED_FROM: Final = 1 << 11
TRIED_UPTO: Final = 1 << 20
TRIALS: Final = 96
"""Copies of a kind before one of the kernels is chosen. So many that the first pages of new arrays, which the system
has to find, do not decide."""
MARGIN: Final = 1.1
"""How many times as fast vector stores must be to be chosen."""
_TURNS: Final = 0x6996
"""Which kernel has the turn, by bit: the Thue-Morse sequence, which keeps step with nothing that recurs."""


def assign(target: Any, source: Any) -> None:
    """Copy as the C library does."""
    target[:] = source


def store_array(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy between flat, contiguous arrays of one dtype by vector stores: NumPy's loop for bitwise_or on bytes is
    compiled to them, whatever the alignment, and x | x is x."""
    octets = source.view(np.uint8)
    np.bitwise_or(octets, octets, target.view(np.uint8))


def store_bytes(target: memoryview, source: memoryview) -> None:
    """`store_array` for views of format 'B'."""
    octets = np.frombuffer(source, np.uint8)
    np.bitwise_or(octets, octets, np.frombuffer(target, np.uint8))


class Choice:
    """The kernel for copies of about one size: `copy(target, source)`. They do not overlap, or are the same."""

    __slots__ = ("_clock", "_kernels", "_times", "copy")

    def __init__(self, store: Kernel, clock: Callable[[], int]) -> None:
        self.copy: Kernel = self._try
        self._kernels = (assign, store)
        self._times: tuple[list[int], list[int]] = ([], [])
        self._clock = clock

    def _try(self, target: Any, source: Any) -> None:
        assigned, stored = self._times
        turn = _TURNS >> (len(assigned) + len(stored)) % 16 & 1
        began = self._clock()
        self._kernels[turn](target, source)
        self._times[turn].append(self._clock() - began)
        if len(assigned) + len(stored) >= TRIALS:
            self.copy = self._kernels[median(assigned) > MARGIN * median(stored)]


class Copying:
    """Copies by a kernel for each kind of copies. `store` is the one that memcpy is tried against."""

    def __init__(self, store: Kernel, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._store = store
        self._clock = clock
        self._choices: dict[Hashable, Choice] = {}

    def choice(self, nbytes: int, whole: int = 0, fetches: bool = False) -> Choice | None:
        """What to copy so many bytes by; None if nothing but `assign` is worth a trial.

        whole    bytes of the array that they are a piece of, which says whether that stays in the cache
        fetches  whether another process has written what is copied
        """
        if not TRIED_FROM < nbytes <= TRIED_UPTO:
            return None
        kind = (nbytes - 1).bit_length(), max(0, whole - 1).bit_length(), fetches
        choice = self._choices.get(kind)
        if choice is None:
            choice = self._choices[kind] = Choice(self._store, self._clock)
        return choice

    def copy(self, target: memoryview, source: memoryview) -> None:
        """Copy bytes between views of equal length, format 'B'."""
        choice = self.choice(len(source))
        if choice is None:
            assign(target, source)
        else:
            choice.copy(target, source)
