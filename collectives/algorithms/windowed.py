"""Algorithms for arrays in windows (`Communicator.empty`): ranks read and write each other's arrays without staging.

A rank accesses a peer's array after the peer has signalled that it has entered the call, and leaves the call after all
others have signalled that they are done with its own arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.combining import TreeOrder
from collectives.algorithms.registry import Cost, algorithm, share
from collectives.algorithms.signals import meet
from collectives.schedule import Buf, Geometry, Ref, Step, around, canonical_siblings, copy, inp, out


def _combine(g: Geometry, chunk: int, target: Ref, label: str) -> Iterator[Step]:
    """Combine one chunk of all ranks' IN in tree order."""
    order = TreeOrder(canonical_siblings(g.size), target, 0, label)
    for rank in range(g.size):
        yield from order.arrive(rank, inp(chunk, rank=-1 if rank == g.rank else rank))


@algorithm(
    "allreduce",
    "windowed",
    cost=lambda g: Cost(2 if g.size > 1 else 0, 0, share(g), share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    windows=(Buf.IN, Buf.OUT),
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Every rank combines its share and writes it into the OUT of all ranks, in segments that stay in the cache.

    Per rank: combines (p - 1) / p N, copies (p - 1) / p N.
    """
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    yield from meet(g, 1, "here")
    for s in range(g.segments):
        chunk, label = g.rank * g.segments + s, f"segment {s + 1}/{g.segments}"
        yield from _combine(g, chunk, out(chunk), f"{label} combine")
        for peer in around(g.rank, g.size):
            yield copy(out(chunk), out(chunk, rank=peer), f"{label} give")
    yield from meet(g, 2, "done")


@algorithm(
    "reduce_scatter",
    "windowed",
    cost=lambda g: Cost(2 if g.size > 1 else 0, 0, share(g), 0),
    tree_order=True,
    finishes=True,
    onesided=True,
    windows=(Buf.IN,),
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Every rank combines its block of all ranks' IN."""
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
        return
    yield from meet(g, 1, "here")
    yield from _combine(g, g.rank, out(g.rank), "combine")
    yield from meet(g, 2, "done")


@algorithm(
    "allgather",
    "windowed",
    cost=lambda g: Cost(2 if g.size > 1 else 0, 0, 0, 1),
    onesided=True,
    windows=(Buf.OUT,),
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Every rank copies its block to its own OUT, and the other blocks from the peers' OUT."""
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    if g.size > 1:
        yield from meet(g, 1, "here")
        for peer in around(g.rank, g.size):
            yield copy(out(peer, rank=peer), out(peer), "fetch")
        yield from meet(g, 2, "done")


@algorithm(
    "alltoall",
    "windowed",
    cost=lambda g: Cost(2 if g.size > 1 else 0, 0, 0, 1),
    uniform=True,
    onesided=True,
    windows=(Buf.IN,),
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """Every rank copies its column from the peers' IN."""
    own = g.rank * g.size + g.rank
    yield copy(inp(own), out(own), "copy own block")
    if g.size > 1:
        yield from meet(g, 1, "here")
        for peer in around(g.rank, g.size):
            block = peer * g.size + g.rank
            yield copy(inp(block, rank=peer), out(block), "fetch")
        yield from meet(g, 2, "done")
