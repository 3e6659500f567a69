"""Algorithms that copy once: ranks of one host read each other's arrays where these lie, in private memory.

The transport does that, through the system (`Window.read`), which on many machines has to allow it. A byte is moved by
one copy instead of two, but the kernel's, which finds every page first: it pays for large arrays. (H.-W. Jin, S. Sur,
L. Chai and D. K. Panda, "LiMIC: support for high-performance MPI intra-node communication on Linux cluster", 2005.)

Nobody reads a peer's array before that peer has signalled that it is in the call, nor leaves the call before all who
read its own have signalled that they are done.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.combining import TreeOrder
from collectives.algorithms.direct import nothing, wait_for_all
from collectives.algorithms.registry import Cost, algorithm
from collectives.patterns import around, canonical_siblings
from collectives.schedule import Geometry, Step, copy, inp, out, signal, wait


def _rounds(g: Geometry, count: int = 2) -> int:
    return count if g.size > 1 else 0


def _share(g: Geometry) -> float:
    return (g.size - 1) / g.size


def _done(g: Geometry, phase: int = 2) -> Iterator[Step]:
    yield signal(phase, "done")
    yield from wait_for_all(g, phase, "others done")


def _combine(g: Geometry) -> Iterator[Step]:
    """Combine the own share of everybody's IN, segment by segment while that is in the cache."""
    for s in range(g.segments):
        chunk, label = g.rank * g.segments + s, f"segment {s + 1}/{g.segments}"
        order = TreeOrder(canonical_siblings(g.size), out(chunk), 0, f"{label} combine")
        yield from order.arrive(g.rank, inp(chunk))
        for peer in around(g.rank, g.size):
            if s == 0:
                yield wait(peer, 1, "others here")
            value = order.take()
            yield copy(inp(chunk, rank=peer), value, f"{label} read")
            yield from order.arrive(peer, value)


@algorithm(
    "reduce_scatter",
    "single_copy",
    traffic=nothing,
    cost=lambda g: Cost(_rounds(g), 0, _share(g), 0, read=_share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    lends=True,
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Everybody reads its block of the others' arrays, and combines it."""
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    yield signal(1, "here")
    yield from _combine(g)
    yield from _done(g)


@algorithm(
    "allreduce",
    "single_copy",
    traffic=nothing,
    cost=lambda g: Cost(_rounds(g, 3), 0, _share(g), 0, read=2 * _share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    lends=True,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Everybody combines its share of what the others have, and then reads theirs of the result."""
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    yield signal(1, "here")
    yield from _combine(g)
    yield signal(2, "combined")
    for peer in around(g.rank, g.size):
        yield wait(peer, 2, "others combined")
        share = peer * g.segments
        yield copy(out(share, g.segments, rank=peer), out(share, g.segments), "read")
    yield from _done(g, 3)


@algorithm(
    "allgather",
    "single_copy",
    traffic=nothing,
    cost=lambda g: Cost(_rounds(g), 0, 0, 1 / g.size, read=_share(g)),
    onesided=True,
    lends=True,
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Everybody reads everybody's block."""
    if g.size > 1:
        yield signal(1, "here")
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    if g.size > 1:
        for peer in around(g.rank, g.size):
            yield wait(peer, 1, "others here")
            yield copy(inp(peer, rank=peer), out(peer), "read")
        yield from _done(g)


@algorithm(
    "alltoall",
    "single_copy",
    traffic=nothing,
    cost=lambda g: Cost(_rounds(g), 0, 0, 1 / g.size, read=_share(g)),
    uniform=True,
    onesided=True,
    lends=True,
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """Everybody reads its column from the others' rows."""
    if g.size > 1:
        yield signal(1, "here")
    own = g.rank * g.size + g.rank
    yield copy(inp(own), out(own), "copy own block")
    if g.size > 1:
        for peer in around(g.rank, g.size):
            block = peer * g.size + g.rank
            yield wait(peer, 1, "others here")
            yield copy(inp(block, rank=peer), out(block), "read")
        yield from _done(g)


@algorithm(
    "broadcast",
    "single_copy",
    blocks=lambda size: 1,
    traffic=nothing,
    cost=lambda g: Cost(_rounds(g), 0, 0, 0, read=1 if g.size > 1 else 0),
    onesided=True,
    lends=True,
)
def broadcast(g: Geometry) -> Iterator[Step]:
    """Everybody reads the root's array, which has no work with it."""
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
        return
    yield signal(1, "here")
    if g.rank == g.root:
        yield copy(inp(0), out(0), "copy")
    else:
        yield wait(g.root, 1, "root here")
        yield copy(inp(0, rank=g.root), out(0), "read")
    yield signal(2, "done")
    for peer in around(g.rank, g.size):
        if g.rank == g.root:
            yield wait(peer, 2, "others done")
        elif peer != g.root:
            yield wait(peer, 1, "others here")
