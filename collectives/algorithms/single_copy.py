"""Single-copy algorithms: ranks of one host read each other's arrays in private memory, without staging.

    staged        IN of rank 0 --copy--> STAGE of rank 0 --copy--> OUT of rank 1
    single copy   IN of rank 0 ---------------- read ------------> OUT of rank 1

The operating system reads (`Window.read`); some systems forbid it. It looks up every page, so the method pays for large
arrays only. (H.-W. Jin, S. Sur, L. Chai and D. K. Panda, "LiMIC: support for high-performance MPI intra-node
communication on Linux cluster", 2005.)

A rank reads a peer's array after the peer has signalled that it has entered the call, and leaves the call after all
readers of its own arrays have signalled that they are done.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.combining import TreeOrder
from collectives.algorithms.registry import Cost, algorithm, share
from collectives.algorithms.signals import meet
from collectives.schedule import Geometry, Step, around, canonical_siblings, copy, inp, out, signal, wait


def _rounds(g: Geometry, count: int = 2) -> int:
    """Return the number of successive signals."""
    return count if g.size > 1 else 0


def _combine(g: Geometry) -> Iterator[Step]:
    """Combine the own share of all ranks' IN, in segments that stay in the cache."""
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
    cost=lambda g: Cost(_rounds(g), 0, share(g), 0, read=share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    single_copy=True,
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Every rank reads its block of the peers' IN and combines it."""
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    yield signal(1, "here")
    yield from _combine(g)
    yield from meet(g, 2, "done")


@algorithm(
    "allreduce",
    "single_copy",
    cost=lambda g: Cost(_rounds(g, 3), 0, share(g), 0, read=2 * share(g)),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    single_copy=True,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Every rank combines its share of all IN, then reads the peers' shares of the result."""
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
    yield from meet(g, 3, "done")


@algorithm(
    "allgather",
    "single_copy",
    cost=lambda g: Cost(_rounds(g), 0, 0, 1 / g.size, read=share(g)),
    onesided=True,
    single_copy=True,
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Every rank reads the blocks of all others."""
    if g.size > 1:
        yield signal(1, "here")
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    if g.size > 1:
        for peer in around(g.rank, g.size):
            yield wait(peer, 1, "others here")
            yield copy(inp(peer, rank=peer), out(peer), "read")
        yield from meet(g, 2, "done")


@algorithm(
    "alltoall",
    "single_copy",
    cost=lambda g: Cost(_rounds(g), 0, 0, 1 / g.size, read=share(g)),
    uniform=True,
    onesided=True,
    single_copy=True,
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """Every rank reads its column from the peers' rows."""
    if g.size > 1:
        yield signal(1, "here")
    own = g.rank * g.size + g.rank
    yield copy(inp(own), out(own), "copy own block")
    if g.size > 1:
        for peer in around(g.rank, g.size):
            block = peer * g.size + g.rank
            yield wait(peer, 1, "others here")
            yield copy(inp(block, rank=peer), out(block), "read")
        yield from meet(g, 2, "done")


@algorithm(
    "broadcast",
    "single_copy",
    blocks=lambda size: 1,
    cost=lambda g: Cost(_rounds(g), 0, 0, 0, read=1 if g.size > 1 else 0),
    onesided=True,
    single_copy=True,
)
def broadcast(g: Geometry) -> Iterator[Step]:
    """Every rank reads the root's array; the root only waits."""
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
