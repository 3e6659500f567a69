"""Algorithms by collective and name. A module of algorithms registers its generators with `@algorithm(...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from collectives.schedule import Buf, Geometry, Step

Generator = Callable[[Geometry], Iterator[Step]]


class Cost(NamedTuple):
    """The alpha-beta-gamma terms of one run on its critical path.

    rounds        messages or signals one after the other, in units of alpha
    sent          bytes through the busiest rank, in units of N
    reduced       bytes combined by the busiest rank, in units of N
    copied        bytes copied locally by the busiest rank, in units of N
    local_rounds  of `rounds`, those that an algorithm which knows the hosts keeps inside one
    local_sent    of `sent`, likewise
    read          bytes that the kernel copies out of peers' private memory, in units of N

    N is the size of all blocks together (alltoall: of one rank's row).
    """

    rounds: float
    sent: float
    reduced: float = 0.0
    copied: float = 0.0
    local_rounds: float = 0.0
    local_sent: float = 0.0
    read: float = 0.0


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A schedule generator and what the planner and the prover must know about it.

    blocks     number of blocks it cuts the data into, for collectives that leave that open
    traffic    bytes sent two-sidedly by all ranks together, in units of N (blocks of equal size); the prover checks it
    cost       its terms in the cost model
    segmented  it makes use of `Geometry.segments` > 1
    tree_order it combines contributions in the order of `patterns.canonical_tree`, whatever the segmenting
    finishes   it marks the last combination of every element, so that averages can be divided there
    uniform    it needs blocks of equal size
    onesided   it needs a window that all ranks of the communicator map
    multihost  it needs `Geometry.hosts` and is only sensible when they span several hosts
    windows    which of IN and OUT must lie in windows themselves, on all ranks
    lends      peers read IN and OUT where they lie, in private memory
    slots      STAGE slots that a segment takes, each of the size of the largest chunk; see `staged`
    native     it is not Ronde's, but the transport's own: one NATIVE step, about which nothing can be proved here
    """

    collective: str
    name: str
    generate: Generator
    blocks: Callable[[int], int]
    traffic: Callable[[Geometry], Fraction]
    cost: Callable[[Geometry], Cost]
    segmented: bool = False
    tree_order: bool = False
    finishes: bool = False
    uniform: bool = False
    onesided: bool = False
    multihost: bool = False
    windows: tuple[Buf, ...] = ()
    lends: bool = False
    slots: Callable[[int], int] = lambda size: 0
    native: bool = False

    @property
    def exposed(self) -> tuple[Buf, ...]:
        """Which of IN and OUT peers may touch."""
        return (Buf.IN, Buf.OUT) if self.lends else self.windows

    def staged(self, size: int, segments: int) -> int:
        """Slots that so many segments need of a window's half: they use two sets in turn."""
        return self.slots(size) * min(segments, 2)


_ALGORITHMS: dict[str, dict[str, Algorithm]] = {}


def algorithm(
    collective: str,
    name: str,
    *,
    traffic: Callable[[Geometry], Fraction],
    cost: Callable[[Geometry], Cost],
    blocks: Callable[[int], int] = lambda size: size,
    segmented: bool = False,
    tree_order: bool = False,
    finishes: bool = False,
    uniform: bool = False,
    onesided: bool = False,
    multihost: bool = False,
    windows: tuple[Buf, ...] = (),
    lends: bool = False,
    slots: Callable[[int], int] = lambda size: 0,
    native: bool = False,
) -> Callable[[Generator], Generator]:
    """Register the decorated generator as `name` for `collective`. Raises ValueError if that name is taken."""

    def register(generate: Generator) -> Generator:
        names = _ALGORITHMS.setdefault(collective, {})
        if name in names:
            raise ValueError(f"algorithm {name!r} for {collective} is registered already")
        names[name] = Algorithm(
            collective,
            name,
            generate,
            blocks,
            traffic,
            cost,
            segmented,
            tree_order,
            finishes,
            uniform,
            onesided,
            multihost,
            windows,
            lends,
            slots,
            native,
        )
        return generate

    return register


def algorithms(collective: str, *, native: bool = False) -> dict[str, Algorithm]:
    """All algorithms of a collective by name, in order of registration; those that are the transport's own if asked."""
    return {name: found for name, found in _ALGORITHMS.get(collective, {}).items() if native or not found.native}
