"""Calibration: from which size on each collective uses a single-copy algorithm instead of a staged one.

A staged algorithm copies every byte twice, through memory that all ranks map; a single-copy algorithm copies it once,
by a system call with a fixed cost. Which one is faster depends on the machine and on the cores that the ranks run on,
and no cost model knows these. So it is measured once, when a communicator gets its staging window
(execution/calibration.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

NEVER: Final = 0
"""In `single_copy_from`: the collective does not use single copy."""
SIZES: Final = (8 << 20, 2 << 20, 512 << 10, 128 << 10)
"""Bytes of the calls that are measured, in this order. Each stands for the sizes from it to four times of it: below a
size at which single copy wins it may well lose."""
MARGINS: Final = (1.25, 2.0, 2.0, 2.0)
"""Speed-ups from which single copy is preferred, by size. On cores that share a cache staging is faster, up to twice at
the largest size and up to three times at smaller ones; on cores that share none single copy is, by 1.5 to 3 times. Some
virtual machines change between these states. So a choice that is wrong in one state must clearly win in the other."""
BUDGET: Final = 0.1
"""Seconds after which nothing more is measured."""

Compare = Callable[[str, int], tuple[float, float] | None]
"""(collective, bytes) -> seconds of the staged and of the single-copy algorithm, the same on all ranks. None if there
is nothing to choose or no time left."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of one calibration. The same on all ranks of the communicator.

    single_copy_from   collective -> bytes from which on single copy is used, or NEVER; the cost model decides for
                       collectives that are absent
    measured           (collective, bytes) -> seconds of the staged and of the single-copy algorithm
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
        return f"single copy {', '.join(found) or 'as the cost model says'} (measured in {self.seconds:.3f} s)"


def find_thresholds(
    collectives: Iterable[str], compare: Compare
) -> tuple[dict[str, int], dict[tuple[str, int], tuple[float, float]]]:
    """`single_copy_from` and `measured` of a Calibration.

    Single copy has a fixed cost and a lower cost per byte: if it loses at one size it loses at all smaller ones. So
    each collective is measured from the largest size downwards until single copy loses. All are measured at one size
    before the next, so that a lack of time costs the small sizes first.
    """
    thresholds: dict[str, int] = {}
    measured: dict[tuple[str, int], tuple[float, float]] = {}
    candidates = list(collectives)
    for nbytes, margin in zip(SIZES, MARGINS, strict=True):
        winners: list[str] = []
        for collective in candidates:
            times = compare(collective, nbytes)
            if times is None:
                continue
            staged, single = measured[collective, nbytes] = times
            if margin * single <= staged:
                thresholds[collective] = nbytes
                winners.append(collective)
            else:
                thresholds.setdefault(collective, NEVER)
        candidates = winners
    return thresholds, measured
