"""Large reductions through a shared window: every rank combines its share, in segments that stay in the cache.

A segment takes two steps, and the steps of successive segments overlap, so that ranks wait for each other once per
segment. Slots come in two halves, used in turn: in each, slot k holds what is staged for the rank k + 1 behind the own
one, and the last slot, where others want it, the result of the own share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from collectives.algorithms.combining import TreeOrder
from collectives.algorithms.direct import nothing, wait_for_all
from collectives.algorithms.registry import Cost, algorithm
from collectives.patterns import Run, around, canonical_siblings
from collectives.schedule import Geometry, Ref, Step, copy, inp, out, signal, stage


def _share(g: Geometry) -> float:
    return (g.size - 1) / g.size


class _Segment:
    """Segment `s` as one rank sees it, with so many slots in a half."""

    def __init__(self, g: Geometry, s: int, slots: int) -> None:
        self.g = g
        self.s = s
        self.slots = slots
        self.label = f"segment {s + 1}/{g.segments}"

    def chunk(self, block: int) -> int:
        return block * self.g.segments + self.s

    def slot(self, block: int, rank: int = -1) -> Ref:
        """Where `rank` (the own one by default) has `block` in STAGE."""
        owner = self.g.rank if rank < 0 else rank
        number = (block - owner - 1) % self.g.size
        return stage(self.s % 2 * self.slots + number, self.chunk(block), rank=rank)

    def offer(self) -> Iterator[Step]:
        """Stage what the others combine."""
        for block in around(self.g.rank, self.g.size):
            yield copy(inp(self.chunk(block)), self.slot(block), f"{self.label} stage")

    def combine(self, siblings: Mapping[Run, tuple[Run, Run]], target: Ref) -> Iterator[Step]:
        """Combine the own share, from the own IN and the others' STAGE, in the order of the tree `siblings`."""
        order = TreeOrder(siblings, target, 0, f"{self.label} combine")
        for rank in range(self.g.size):
            mine = self.g.rank
            value = inp(self.chunk(mine)) if rank == mine else self.slot(mine, rank)
            yield from order.arrive(rank, value)

    def collect(self, own: bool) -> Iterator[Step]:
        """Copy all shares of the result to OUT; the own one only if it is not there yet."""
        mine = self.g.rank
        if own:
            yield copy(self.slot(mine), out(self.chunk(mine)), f"{self.label} copy own share")
        for peer in around(mine, self.g.size):
            yield copy(self.slot(peer, peer), out(self.chunk(peer)), f"{self.label} fetch")


def _two_steps(g: Geometry, collects: bool, shared: bool) -> Iterator[Step]:
    """Signal s + 1 says that segment s is staged, that segment s - 1 is combined, and that segment s - 2 is read.

    collects   this rank wants the whole result
    shared     others want this rank's share, so it is left in STAGE
    """
    segments = [_Segment(g, s, g.size) for s in range(g.segments)]
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    siblings = canonical_siblings(g.size)
    yield from segments[0].offer()
    yield signal(1, "staged")
    for s, segment in enumerate(segments):
        mine = segment.chunk(g.rank)
        yield from wait_for_all(g, s + 1, f"{segment.label} others staged")
        yield from segment.combine(siblings, segment.slot(g.rank) if shared else out(mine))
        if collects and s:
            yield from segments[s - 1].collect(shared)
        if s + 1 < g.segments:
            yield from segments[s + 1].offer()
        yield signal(s + 2, f"{segment.label} combined")
    if collects:
        yield from wait_for_all(g, g.segments + 1, "others combined")
        yield from segments[-1].collect(shared)


@algorithm(
    "allreduce",
    "direct_segmented",
    traffic=nothing,
    cost=lambda g: Cost(g.segments + 1 if g.size > 1 else 0, 0, _share(g), 1 + _share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    slots=lambda size: size,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Reduce-scatter and allgather by reading. Per rank: stages (p - 1) / p N, combines (p - 1) / p N, copies N."""
    yield from _two_steps(g, True, True)


@algorithm(
    "reduce",
    "direct_segmented",
    traffic=nothing,
    cost=lambda g: Cost(g.segments + 1 if g.size > 1 else 0, 0, _share(g), 1 + _share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    slots=lambda size: size,
)
def reduce(g: Geometry) -> Iterator[Step]:
    """Every rank combines its share, the root collects them."""
    yield from _two_steps(g, g.rank == g.root, g.rank != g.root)


@algorithm(
    "reduce_scatter",
    "direct",
    traffic=nothing,
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, _share(g), _share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    slots=lambda size: size - 1,
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Every rank stages what the others combine, and combines its block. Who has signalled segment s has read segment
    s - 2, and has been waited for in segment s - 1."""
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    siblings = canonical_siblings(g.size)
    for s in range(g.segments):
        segment = _Segment(g, s, g.size - 1)
        yield from segment.offer()
        yield signal(s + 1, f"{segment.label} staged")
        yield from wait_for_all(g, s + 1, f"{segment.label} others staged")
        yield from segment.combine(siblings, out(segment.chunk(g.rank)))
