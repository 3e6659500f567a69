"""The kernel for copies to and from memory that several processes map: memcpy or vector stores.

Slice assignment and numpy.copyto use the C library's memcpy. Between some KiB and the size of the L2 cache memcpy is
`rep movsb` on some processors. On AMD Zen 3 this is several times slower than vector stores if another core has the
target in its cache: us per copy, memcpy : vector stores with their call, 2 KiB 0.3 : 2.4, 4 KiB 2.7 : 2.5, 64 KiB
31 : 4.5, 256 KiB 89 : 11, 1 MiB 37 : 29, 4 MiB 122 : 140. On Zen 4 memcpy is faster in this case, by up to a quarter,
but takes 1.2 to 2 times as long to copy another core's data into an array that is too large for the cache.

So both kernels are timed once per process, in some milliseconds, when the first staging window is made (`calibrate`).
Before that, and for sizes that are not measured, all copies use memcpy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transports.onesided import Window

log = logging.getLogger("ronde.copies")

Kernel = Callable[[Any, Any], None]

MEASURED_BYTES: Final = (1 << 16, 1 << 14, 1 << 18, 1 << 12, 1 << 20)
"""Sizes of copies that are measured, in this order. Each stands for the sizes from a quarter of it, exclusive."""
MARGIN: Final = 1.5
"""Minimum speed-up for vector stores. They are either several times as fast or about equal; in the latter case noise
must not decide, so that two runs on one machine use the same kernels."""
BUDGET: Final = 0.005
"""Seconds after which no further size is measured."""
CACHED_BYTES: Final = 1 << 20
"""Maximum bytes of an array that is assumed to stay in a core's own cache between two calls."""
_LARGE_BYTES: Final = 4 << 20
"""Size of the array that stands for larger ones in the measurement."""
_FIRST_EPOCH: Final = 3
"""The first epoch of the calibration, after those of `Window.can_read_peers`."""
_RING_BYTES: Final = 1 << 13
"""Minimum bytes of a copy by vector stores: for smaller ones the call takes longer than the copy."""


class Circumstance(NamedTuple):
    """The properties of a copy on which the faster kernel depends.

    fetched  True: another process has written the source; False: this process writes data that others will read
    large    True: the copy is a piece of a private array of more than CACHED_BYTES
    nbytes   one of MEASURED_BYTES
    """

    fetched: bool
    large: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class KernelTable:
    """The circumstances in which vector stores are used. All other copies use memcpy."""

    vector: frozenset[Circumstance] = frozenset()
    seconds: float = 0.0

    def uses_vector(self, nbytes: int, fetched: bool, large: bool) -> bool:
        """True if a copy of `nbytes` uses vector stores."""
        measured = min((size for size in MEASURED_BYTES if nbytes <= size), default=0)
        return nbytes > min(MEASURED_BYTES) // 2 and Circumstance(fetched, large, measured) in self.vector

    def describe(self) -> str:
        """'memcpy everywhere', or the copies that use vector stores."""
        groups: dict[str, list[str]] = {}
        for fetched, large, nbytes in sorted(self.vector):
            name = f"{'fetch' if fetched else 'write'}, {'large' if large else 'cached'} array"
            groups.setdefault(name, []).append(f"{nbytes >> 10} KiB")
        found = "; ".join(f"{name}: {', '.join(sizes)}" for name, sizes in groups.items())
        return f"vector stores for {found}" if found else "memcpy everywhere"


def assign(target: Any, source: Any) -> None:
    """Copy by the C library's memcpy."""
    target[:] = source


def store_array(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy between flat, contiguous arrays of one dtype by vector stores: compilers turn NumPy's loop for bitwise_or on
    bytes into vector stores for any alignment, and x | x is x."""
    octets = source.view(np.uint8)
    np.bitwise_or(octets, octets, target.view(np.uint8))


def store_bytes(target: memoryview, source: memoryview) -> None:
    """`store_array` for views of format 'B'."""
    octets = np.frombuffer(source, np.uint8)
    np.bitwise_or(octets, octets, np.frombuffer(target, np.uint8))


class _Process:
    """The kernels of this process."""

    def __init__(self) -> None:
        self.table: KernelTable | None = None
        self.bytes_kernels = {fetched: [assign] * 65 for fetched in (False, True)}
        """fetched -> kernel by the bit length of the size less 1."""

    def install(self, table: KernelTable) -> None:
        self.table = table
        for fetched, kernels in self.bytes_kernels.items():
            for bits in range(_RING_BYTES.bit_length() - 1, 64):
                kernels[bits] = store_bytes if table.uses_vector(1 << bits, fetched, False) else assign


_process = _Process()


def kernel_table() -> KernelTable | None:
    """The table of this process; None before it is calibrated."""
    return _process.table


def install(table: KernelTable) -> None:
    """Use `table` from now on, unless the process has a table already: kernels never change during a program."""
    if _process.table is None:
        _process.install(table)


def array_kernel(nbytes: int, whole: int = 0, fetched: bool = False) -> Kernel | None:
    """The kernel for copies between flat, contiguous arrays of one dtype; None for plain assignment.

    whole  bytes of the whole array, of which the copy is a piece
    """
    table = _process.table
    return store_array if table is not None and table.uses_vector(nbytes, fetched, whole > CACHED_BYTES) else None


def write_bytes(target: memoryview, source: memoryview) -> None:
    """Copy bytes for another process to read, between views of equal length, format 'B'."""
    _process.bytes_kernels[False][(len(source) - 1).bit_length()](target, source)


def fetch_bytes(target: memoryview, source: memoryview) -> None:
    """Copy bytes that another process has written, between views of equal length, format 'B'."""
    _process.bytes_kernels[True][(len(source) - 1).bit_length()](target, source)


def calibrate(
    window: Window, deadline: float, clock: Callable[[], float] = time.perf_counter, budget: float = BUDGET
) -> None:
    """Time both kernels with the other ranks of a window, if any of their processes has no table yet. Collective; only
    `can_read_peers` may use the window before. It overwrites the ranks' parts. Raises the errors of `Window.wait`.

    Every rank writes into its own part and reads its neighbour's part, which stays in its own cache, alternately by
    either kernel. All ranks stop when one of them has used up `budget` seconds. Each keeps its own result.
    """
    trial = _Trial(window, deadline, clock)
    if not trial.any(_process.table is None):
        return
    began = clock()  # the budget does not include the wait for late ranks
    times: dict[Circumstance, list[float]] = {}
    for nbytes in MEASURED_BYTES:
        if trial.any(clock() - began >= budget):
            break
        if nbytes < window.nbytes:
            times.update(trial.measure(nbytes))
    vector = frozenset(kind for kind, (assigned, stored) in times.items() if MARGIN * stored < assigned)
    if _process.table is None:
        table = KernelTable(vector, clock() - began)
        install(table)
        log.info("calibrated copies of rank %d in %.4f s: %s", window.index, table.seconds, table.describe())


class _Trial:
    """Copies to and from a window, synchronized with the other ranks."""

    def __init__(self, window: Window, deadline: float, clock: Callable[[], float]) -> None:
        self._window = window
        self._deadline = deadline
        self._clock = clock
        self._epoch = _FIRST_EPOCH - 1
        size = len(window.ranks)
        self._parts = [np.frombuffer(window.view(index), np.uint8) for index in range(size)]
        self._own = self._parts[window.index]
        self._next, self._previous = (window.index + 1) % size, (window.index - 1) % size
        self._private: NDArray[Any] | None = None

    def any(self, mine: bool) -> bool:
        """True if `mine` is true on any rank. Collective."""
        self._own[-1] = mine
        ranks = range(len(self._parts))
        self._meet(ranks)
        found = any(bool(part[-1]) for part in self._parts)
        self._meet(ranks)  # no rank may change its answer before all have read it
        return found

    def measure(self, nbytes: int) -> Iterator[tuple[Circumstance, list[float]]]:
        """The shortest seconds of each kernel, memcpy first, by circumstance."""
        if self._private is None:
            self._private = np.zeros(_LARGE_BYTES, np.uint8)
            self._private.fill(1)
        repeats = 6 if nbytes <= 1 << 16 else 3 if nbytes <= 1 << 18 else 2
        for large in (False, True):
            written, fetched = [[], []], [[], []]  # type: tuple[list[list[float]], list[list[float]]]
            at = 0
            for turn in range(2 * repeats):
                kernel = (assign, store_array)[turn % 2]
                piece = self._private[at : at + nbytes]
                at = (at + nbytes) % _LARGE_BYTES if large else 0
                written[turn % 2].append(self._time(kernel, self._own[:nbytes], piece))
                self._meet([self._next])
                fetched[turn % 2].append(self._time(kernel, piece, self._parts[self._next][:nbytes]))
                self._meet([self._previous])
            for is_fetch, seconds in ((False, written), (True, fetched)):
                yield Circumstance(is_fetch, large, nbytes), [min(each) for each in seconds]

    def _time(self, kernel: Kernel, target: NDArray[Any], source: NDArray[Any]) -> float:
        began = self._clock()
        kernel(target, source)
        return self._clock() - began

    def _meet(self, ranks: Any) -> None:
        """Publish this rank's progress, and wait until `ranks` have made the same progress."""
        self._epoch += 1
        self._window.publish(self._epoch)
        for index in ranks:
            if index != self._window.index:
                self._window.wait(index, self._epoch, self._deadline)
