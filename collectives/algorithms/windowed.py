"""Algorithms for arrays that lie in windows: ranks read and write each other's arrays, and nothing is staged.

Nobody touches a peer's array before that peer has signalled that it is in the call, nor leaves the call before all
others have signalled that they are done with its own array.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.combining import TreeOrder
from collectives.algorithms.direct import nothing, wait_for_all
from collectives.algorithms.registry import Cost, algorithm
from collectives.patterns import around, canonical_siblings
from collectives.schedule import Buf, Geometry, Ref, Step, copy, inp, out, signal


def _share(g: Geometry) -> float:
    return (g.size - 1) / g.size


def _meet(g: Geometry) -> Iterator[Step]:
    yield signal(1, "here")
    yield from wait_for_all(g, 1, "others here")


def _part(g: Geometry) -> Iterator[Step]:
    yield signal(2, "done")
    yield from wait_for_all(g, 2, "others done")


def _combine(g: Geometry, chunk: int, target: Ref, label: str) -> Iterator[Step]:
    """Combine all ranks' IN."""
    order = TreeOrder(canonical_siblings(g.size), target, 0, label)
    for rank in range(g.size):
        yield from order.arrive(rank, inp(chunk, rank=-1 if rank == g.rank else rank))


@algorithm(
    "allreduce",
    "windowed",
    traffic=nothing,
    cost=lambda g: Cost(2 if g.size > 1 else 0, 0, _share(g), _share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    windows=(Buf.IN, Buf.OUT),
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Every rank combines its share and writes it into everybody's OUT, segment by segment while that is in the cache.
    Per rank: combines (p - 1) / p N, copies (p - 1) / p N."""
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    yield from _meet(g)
    for s in range(g.segments):
        chunk, label = g.rank * g.segments + s, f"segment {s + 1}/{g.segments}"
        yield from _combine(g, chunk, out(chunk), f"{label} combine")
        for peer in around(g.rank, g.size):
            yield copy(out(chunk), out(chunk, rank=peer), f"{label} give")
    yield from _part(g)


@algorithm(
    "reduce_scatter",
    "windowed",
    traffic=nothing,
    cost=lambda g: Cost(2 if g.size > 1 else 0, 0, _share(g), 0),
    tree_order=True,
    finishes=True,
    onesided=True,
    windows=(Buf.IN,),
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Every rank combines its block of everybody's IN."""
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
        return
    yield from _meet(g)
    yield from _combine(g, g.rank, out(g.rank), "combine")
    yield from _part(g)


@algorithm(
    "allgather",
    "windowed",
    traffic=nothing,
    cost=lambda g: Cost(2 if g.size > 1 else 0, 0, 0, 1),
    onesided=True,
    windows=(Buf.OUT,),
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Every rank puts its block into its OUT, and copies the others' from theirs."""
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    if g.size > 1:
        yield from _meet(g)
        for peer in around(g.rank, g.size):
            yield copy(out(peer, rank=peer), out(peer), "fetch")
        yield from _part(g)


@algorithm(
    "alltoall",
    "windowed",
    traffic=nothing,
    cost=lambda g: Cost(2 if g.size > 1 else 0, 0, 0, 1),
    uniform=True,
    onesided=True,
    windows=(Buf.IN,),
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """Everybody copies its column from the others' IN."""
    own = g.rank * g.size + g.rank
    yield copy(inp(own), out(own), "copy own block")
    if g.size > 1:
        yield from _meet(g)
        for peer in around(g.rank, g.size):
            block = peer * g.size + g.rank
            yield copy(inp(block, rank=peer), out(block), "fetch")
        yield from _part(g)
