"""Large reductions through a shared window: every rank combines its share, in segments that stay in the cache.

A segment is staged, combined and collected in successive rounds. A round begins when all ranks have signalled the end
of the round before, so ranks wait for each other once per segment:

    round 0                             stage 0
    round 1    combine 0                stage 1
    round 2    combine 1   collect 0    stage 2
    round 3    combine 2   collect 1    stage 3

Successive segments alternate between two sets of slots in STAGE. A set of rank r among p ranks:

    slot   0            1            ...   p - 2        p - 1
           for r + 1    for r + 2          for r - 1    result of the share of r, if others need it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from collectives.algorithms.combining import TreeOrder
from collectives.algorithms.registry import Cost, algorithm, share
from collectives.algorithms.signals import wait_for_all
from collectives.schedule import Geometry, Ref, Run, Step, around, canonical_siblings, copy, inp, out, signal, stage


class _Segment:
    """Segment `s` of one rank; `slots` is the number of slots of one segment."""

    def __init__(self, g: Geometry, s: int, slots: int) -> None:
        self.g = g
        self.s = s
        self.slots = slots
        self.label = f"segment {s + 1}/{g.segments}"

    def chunk(self, block: int) -> int:
        return block * self.g.segments + self.s

    def slot(self, block: int, rank: int = -1) -> Ref:
        """Return the slot of `block` in the STAGE of `rank`, by default the own rank."""
        owner = self.g.rank if rank < 0 else rank
        number = (block - owner - 1) % self.g.size
        return stage(self.s % 2 * self.slots + number, self.chunk(block), rank=rank)

    def offer(self) -> Iterator[Step]:
        """Stage the shares that the other ranks combine."""
        for block in around(self.g.rank, self.g.size):
            yield copy(inp(self.chunk(block)), self.slot(block), f"{self.label} stage")

    def combine(self, siblings: Mapping[Run, tuple[Run, Run]], target: Ref) -> Iterator[Step]:
        """Combine the own share, from the own IN and the peers' STAGE, in the order of the tree `siblings`."""
        order = TreeOrder(siblings, target, 0, f"{self.label} combine")
        for rank in range(self.g.size):
            mine = self.g.rank
            value = inp(self.chunk(mine)) if rank == mine else self.slot(mine, rank)
            yield from order.arrive(rank, value)

    def collect(self, own: bool) -> Iterator[Step]:
        """Copy the peers' shares of the result to OUT; if `own` is set, the own share too."""
        mine = self.g.rank
        if own:
            yield copy(self.slot(mine), out(self.chunk(mine)), f"{self.label} copy own share")
        for peer in around(mine, self.g.size):
            yield copy(self.slot(peer, peer), out(self.chunk(peer)), f"{self.label} fetch")


def _two_steps(g: Geometry, collects: bool, shared: bool) -> Iterator[Step]:
    """Signal s + 1 means that segment s is staged, segment s - 1 is combined, and segment s - 2 is read.

    collects   this rank needs the whole result
    shared     other ranks need this rank's share, so it is combined in STAGE
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
    cost=lambda g: Cost(g.segments + 1 if g.size > 1 else 0, 0, share(g), 1 + share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    stage_chunks=lambda size: size,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Reduce-scatter and allgather by reading. Per rank: stages (p - 1) / p N, combines (p - 1) / p N, copies N."""
    yield from _two_steps(g, True, True)


@algorithm(
    "reduce",
    "direct_segmented",
    cost=lambda g: Cost(g.segments + 1 if g.size > 1 else 0, 0, share(g), 1 + share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    stage_chunks=lambda size: size,
)
def reduce(g: Geometry) -> Iterator[Step]:
    """Every rank combines its share; the root collects all shares."""
    yield from _two_steps(g, g.rank == g.root, g.rank != g.root)


@algorithm(
    "reduce_scatter",
    "direct",
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, share(g), share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    stage_chunks=lambda size: size - 1,
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Every rank stages the blocks of the others and combines its own block."""
    # A rank that has staged segment s has combined segment s - 1. All ranks wait for that signal before they stage
    # segment s + 1 in the slots of s - 1.
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
