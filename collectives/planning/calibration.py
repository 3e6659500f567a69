"""Calibration: from which size on each collective uses a single-copy algorithm instead of a staged one.

A staged algorithm copies every byte twice, through memory that all ranks map; a single-copy algorithm copies it once,
by a system call with a fixed cost. Which one is faster depends on the machine and on the cores that the ranks run on,
and no cost model knows these. So there is a usual size for each collective, and a measurement, made once, when a
communicator gets its staging window (execution/calibration.py), changes it where the machine is a clear exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

NEVER: Final = 0
"""In `single_copy_from`: the collective does not use single copy."""
USUAL: Final[Mapping[str, int]] = {
    "allreduce": NEVER,
    "reduce_scatter": 16 << 20,
    "broadcast": 4 << 20,
    "allgather": 4 << 20,
    "alltoall": 1 << 20,
}
"""Bytes from which a collective uses single copy unless the measurement is clearly against it. On virtual machines the
cores of two ranks may share a cache at one moment and none at the next, and arrays have huge pages or small ones. These
sizes cost least in the worst case; decisions/0055 has the figures."""
SHARED_BYTES: Final = 1 << 16
"""Bytes of the array that peers read from which all of these collectives use single copy where arrays are born shared:
no system call reads them then, so the state of the cores and pages matters to both ways alike."""
SIZES: Final = (8 << 20, 2 << 20, 512 << 10, 128 << 10)
"""Bytes of the calls that are measured, in this order."""
CLEAR: Final = 4.0
"""Speed-up from which a measurement counts: of the slowest run of one algorithm, by the fastest of the other. Smaller
ones may come from the state of the moment (see `USUAL`) or from other processes, and the same program must get the same
plans whenever it starts."""
BUDGET: Final = 0.1
"""Seconds after which nothing more is measured."""

Compare = Callable[[str, int], tuple[Sequence[float], Sequence[float]] | None]
"""(collective, bytes) -> seconds of each run of the staged and of the single-copy algorithm, the same on all ranks.
None if there is nothing to choose or no time left."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of one calibration. The same on all ranks of the communicator.

    single_copy_from   collective -> bytes from which on single copy is used, or NEVER; absent ones have `USUAL`
    measured           (collective, bytes) -> seconds of the staged and of the single-copy algorithm, the fastest runs
    seconds            time that the calibration took
    """

    single_copy_from: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    seconds: float = 0.0

    def describe(self) -> str:
        """'single copy of allreduce from 4194304 bytes, of allgather never (measured in 0.05 s)', for people."""
        found = [
            f"of {collective} {'never' if start == NEVER else f'from {start} bytes on'}"
            for collective, start in self.single_copy_from.items()
        ]
        return f"single copy {', '.join(found) or 'as usual'} (measured in {self.seconds:.3f} s)"


def shared_arrays(size: int) -> Calibration:
    """Return the calibration of so many ranks whose arrays are born shared. It is not measured."""
    return Calibration({name: SHARED_BYTES * (size if name == "allgather" else 1) for name in USUAL})


def find_thresholds(
    collectives: Iterable[str], compare: Compare
) -> tuple[dict[str, int], dict[tuple[str, int], tuple[float, float]]]:
    """`single_copy_from` and `measured` of a Calibration.

    Each collective is measured at the largest size. If single copy is clearly slower there, it is never used; if it is
    clearly faster, it is used from there on, and smaller sizes are measured as long as it is. All are measured at one
    size before the next, so that a lack of time costs the small sizes first.
    """
    candidates = list(collectives)
    thresholds = {collective: USUAL[collective] for collective in candidates}
    measured: dict[tuple[str, int], tuple[float, float]] = {}
    for nbytes in SIZES:
        winners: list[str] = []
        for collective in candidates:
            times = compare(collective, nbytes)
            if times is None:
                continue
            staged, single = times
            measured[collective, nbytes] = min(staged), min(single)
            if CLEAR * max(single) <= min(staged):
                thresholds[collective] = min(nbytes, thresholds[collective] or nbytes)
                winners.append(collective)
            elif nbytes == SIZES[0] and CLEAR * max(staged) <= min(single):
                thresholds[collective] = NEVER
        candidates = winners
    return thresholds, measured
