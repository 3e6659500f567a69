"""The table of algorithms by collective and name. `@algorithm(...)` registers a generator of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Concatenate, Final, NamedTuple, ParamSpec

from collectives.algorithms.symmetry import Symmetry
from collectives.schedule import Buf, Geometry, Step

P = ParamSpec("P")
Generator = Callable[[Geometry], Iterator[Step]]


class Cost(NamedTuple):
    """The alpha-beta-gamma terms of one call on its critical path.

    rounds        successive messages or signals, in units of alpha
    sent          bytes through the busiest rank, in units of N
    reduced       bytes combined by the busiest rank, in units of N
    copied        bytes copied locally by the busiest rank, in units of N
    local_rounds  the part of `rounds` inside a host, for algorithms that know the hosts
    local_sent    the part of `sent` inside a host, likewise
    read          bytes that the kernel copies from peers' private memory, in units of N
    flight        messages of the other rounds that are under way at a time: the latency of one is hidden behind the
                  bytes of the others

    N is the size of all blocks together (alltoall: of one rank's row).
    """

    rounds: float
    sent: float
    reduced: float = 0.0
    copied: float = 0.0
    local_rounds: float = 0.0
    local_sent: float = 0.0
    read: float = 0.0
    flight: int = 1


def share(g: Geometry) -> float:
    """Return (p - 1) / p: the other ranks' part of N."""
    return (g.size - 1) / g.size


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A generator of steps, and its properties as the planner and the prover need them.

    generate      the steps of one rank
    cost          terms of the cost model
    traffic       bytes sent in messages by all ranks together, in units of N, for blocks of equal size; by default
                  none. The prover checks it
    blocks        number of blocks that the data is cut into, for collectives whose blocks do not belong to ranks; by
                  default one for each rank
    segmented     works with `Geometry.segments` > 1
    chunk_bytes   smallest chunk with which the planner considers it
    tree_order    combines contributions in the order of `canonical_tree` (prefixes: from left to right), for any number
                  of segments
    finishes      marks every combination (schedule.Marks): it can average while it combines
    uniform       needs blocks of equal size
    multihost     needs `Geometry.hosts`; pays only if the ranks are on several hosts
    onesided      needs a window that all ranks of the communicator map
    stage_chunks  chunks that one segment occupies in this rank's STAGE
    windows       the buffers among IN and OUT that must lie in windows on all ranks
    single_copy   peers read IN and OUT in private memory
    symmetry      the symmetry of its ranks; None where one program does not stand for many
    only_size     the only number of ranks that it is for; 0: any
    native        one NATIVE step, the transport's own collective; there is nothing to prove
    """

    generate: Generator
    collective: str
    name: str
    _: KW_ONLY
    cost: Callable[[Geometry], Cost]
    traffic: Callable[[Geometry], Fraction] = lambda g: Fraction(0)
    blocks: Callable[[int], int] = lambda size: size
    segmented: bool = False
    chunk_bytes: int = 0
    tree_order: bool = False
    finishes: bool = False
    uniform: bool = False
    multihost: bool = False
    onesided: bool = False
    stage_chunks: Callable[[int], int] = lambda size: 0
    windows: tuple[Buf, ...] = ()
    single_copy: bool = False
    symmetry: Callable[[Geometry], Symmetry | None] = lambda g: None
    only_size: int = 0
    native: bool = False

    @property
    def exposed(self) -> tuple[Buf, ...]:
        """The buffers among IN and OUT that peers access."""
        return (Buf.IN, Buf.OUT) if self.single_copy else self.windows

    def staged_chunks(self, size: int, segments: int) -> int:
        """Return the chunks that a call occupies in STAGE: successive segments alternate between two sets."""
        return self.stage_chunks(size) * min(segments, 2)


REGISTERED: Final[dict[str, dict[str, Algorithm]]] = {}
"""Collective -> name -> algorithm."""


def add(made: Algorithm) -> None:
    """Register an algorithm. Raises ValueError if the collective has one of this name."""
    names = REGISTERED.setdefault(made.collective, {})
    if made.name in names:
        raise ValueError(f"algorithm {made.name!r} for {made.collective} is registered already")
    names[made.name] = made


def _decorator(
    make: Callable[Concatenate[Generator, P], Algorithm],
) -> Callable[P, Callable[[Generator], Generator]]:
    """Return a decorator with the arguments of `make` after the first; it registers what `make` returns."""

    def algorithm(*args: P.args, **kwargs: P.kwargs) -> Callable[[Generator], Generator]:
        """Register the decorated generator. The arguments are the fields of `Algorithm` after `generate`.

        Raises ValueError if the collective has an algorithm of this name.
        """

        def register(generate: Generator) -> Generator:
            add(make(generate, *args, **kwargs))
            return generate

        return register

    return algorithm


algorithm = _decorator(Algorithm)


def algorithms(collective: str, *, native: bool = False) -> dict[str, Algorithm]:
    """Return the algorithms of a collective by name, in order of registration; `native` includes the transport's."""
    return {name: found for name, found in REGISTERED.get(collective, {}).items() if native or not found.native}
