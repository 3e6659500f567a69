"""Direct algorithms: ranks of one host read each other's STAGE in a shared window. They send no messages.

    rank 0   copy IN to STAGE   signal 1   wait for 1 of rank 1   read STAGE of rank 1
    rank 1   copy IN to STAGE   signal 1   wait for 1 of rank 0   read STAGE of rank 0

Successive segments alternate between two sets of slots. A slot is overwritten only after all its readers have
signalled a later phase. (After Graham and Shipman, "MPI support for multi-core architectures: optimized shared memory
collectives", 2008.) Large reductions are in direct_segmented.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from collectives.algorithms.combining import TreeOrder
from collectives.algorithms.registry import Cost, algorithm, share
from collectives.algorithms.signals import meet, wait_for_all
from collectives.schedule import Geometry, Step, around, canonical_siblings, copy, inp, out, signal, stage, wait


def _combine(g: Geometry, s: int) -> Iterator[Step]:
    """Combine segment `s` of all ranks in tree order.

    The own contribution is read from IN. Reading it from STAGE, whose cache lines peers share, takes twice as long.
    """
    order = TreeOrder(canonical_siblings(g.size), out(s), 0, "combine")
    for rank in range(g.size):
        if rank == g.rank:
            yield from order.arrive(rank, inp(s))
        else:
            yield wait(rank, s + 1, "others staged")
            yield from order.arrive(rank, stage(s % 2, s, rank=rank))


@algorithm(
    "allreduce",
    "direct",
    blocks=lambda size: 1,
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, g.size - 1, 1),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    stage_chunks=lambda size: 1,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Every rank combines all contributions itself. Copies N, combines (p - 1) N."""
    # A rank that has staged segment s has read segment s - 1. All ranks wait for that signal before they stage
    # segment s + 1 in the slots of s - 1.
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    for s in range(g.segments):
        yield copy(inp(s), stage(s % 2, s), "stage")
        yield signal(s + 1, "staged")
        yield from _combine(g, s)


@algorithm(
    "reduce",
    "direct",
    blocks=lambda size: 1,
    cost=lambda g: Cost(int(g.size > 1), 0, g.size - 1, 1),
    tree_order=True,
    finishes=True,
    onesided=True,
    stage_chunks=lambda size: 1,
)
def reduce(g: Geometry) -> Iterator[Step]:
    """The root combines all contributions: one phase, for small arrays. Copies N, combines (p - 1) N."""
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")
        return
    if g.rank != g.root:
        yield copy(inp(0), stage(0, 0), "stage")
    yield signal(1, "staged")
    if g.rank == g.root:
        yield from _combine(g, 0)
    else:
        yield from wait_for_all(g, 1, "others staged")


def _from_root(g: Geometry, blocks: Callable[[int], int], copies: int) -> Iterator[Step]:
    """The root stages every segment in `copies` slots; each reader fetches block `blocks(rank)` from the slot of that
    number.

    A reader's first signal means that it has entered the call, signal s + 2 that it has read segment s. It waits for
    the other ranks after its first segment: that rarely blocks, and it bounds how far a rank can run ahead.
    """
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy")
        return
    if g.rank == g.root:
        for s in range(g.segments):
            for peer in around(g.rank, g.size) if s > 1 else ():
                yield wait(peer, s, "segment read")
            for block in range(copies):
                if copies == 1 or block != g.rank:
                    piece = block * g.segments + s
                    yield copy(inp(piece), stage(s % 2 * copies + block, piece), "stage")
            yield signal(s + 1, "staged")
        first = blocks(g.rank) * g.segments
        yield copy(inp(first, g.segments), out(first, g.segments), "copy")
        if g.segments < 3:  # with more segments it has waited for all
            yield from wait_for_all(g, 1, "others here")
        return
    yield signal(1, "here")
    block = blocks(g.rank)
    for s in range(g.segments):
        piece = block * g.segments + s
        yield wait(g.root, s + 1, "root staged")
        yield copy(stage(s % 2 * copies + block, piece, rank=g.root), out(piece), "fetch")
        if s + 1 < g.segments:
            yield signal(s + 2, "read")
        if s == 0:
            for peer in around(g.rank, g.size):
                if peer != g.root:
                    yield wait(peer, 1, "others here")


@algorithm(
    "broadcast",
    "direct",
    blocks=lambda size: 1,
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 2 if g.size > 1 else 1),
    segmented=True,
    onesided=True,
    stage_chunks=lambda size: 1,
)
def broadcast(g: Geometry) -> Iterator[Step]:
    """The root copies segments to STAGE; the other ranks copy them from there. Copies 2 N at the root."""
    yield from _from_root(g, lambda rank: 0, 1)


@algorithm(
    "scatter",
    "direct",
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 1 + 1 / g.size / g.segments),
    segmented=True,
    onesided=True,
    stage_chunks=lambda size: size,
)
def scatter(g: Geometry) -> Iterator[Step]:
    """The root copies the segments of all ranks to STAGE; each rank copies its own from there."""
    yield from _from_root(g, lambda rank: rank, g.size)


@algorithm(
    "gather",
    "direct",
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 1 + 1 / g.size / g.segments),
    segmented=True,
    onesided=True,
    stage_chunks=lambda size: 1,
)
def gather(g: Geometry) -> Iterator[Step]:
    """Every rank copies its block to STAGE in segments; the root copies them from there."""
    # The root's first signal means that it has entered the call, signal s + 2 that it has read segment s.
    block = g.rank * g.segments
    if g.rank == g.root:
        yield copy(inp(block, g.segments), out(block, g.segments), "copy own block")
        if g.size == 1:
            return
        yield signal(1, "here")
        for s in range(g.segments):
            for peer in around(g.rank, g.size):
                piece = peer * g.segments + s
                yield wait(peer, s + 1, "others staged")
                yield copy(stage(s % 2, piece, rank=peer), out(piece), "fetch")
            if s + 1 < g.segments:
                yield signal(s + 2, "read")
        return
    for s in range(g.segments):
        if s > 1:
            yield wait(g.root, s, "segment read")
        yield copy(inp(block + s), stage(s % 2, block + s), "stage")
        yield signal(s + 1, "staged")
        if s == 0:
            for peer in around(g.rank, g.size):
                if peer != g.root or g.segments < 3:  # with more segments it waits for the root later
                    yield wait(peer, 1, "others here")


def _to_everybody(
    g: Geometry,
    own: int,
    staged: Callable[[int], list[tuple[int, int]]],
    fetched: Callable[[int], tuple[int, int]],
    slots: int,
) -> Iterator[Step]:
    """For every segment stage blocks, signal, copy the own block from IN to OUT, and fetch one block of every peer.

    own       the own block
    staged    rank -> the (slot, block) pairs that it stages
    fetched   peer -> the (slot, block) pair to fetch from its STAGE
    slots     slots of one segment

    A rank that has staged segment s has read segment s - 1. All ranks wait for that signal before they stage segment
    s + 1 in the slots of s - 1.
    """
    if g.size == 1:
        yield copy(inp(0, g.segments), out(0, g.segments), "copy own block")
        return
    for s in range(g.segments):
        label = f"segment {s + 1}/{g.segments}"
        for slot, block in staged(g.rank):
            piece = block * g.segments + s
            yield copy(inp(piece), stage(s % 2 * slots + slot, piece), f"{label} stage")
        yield signal(s + 1, f"{label} staged")
        piece = own * g.segments + s
        yield copy(inp(piece), out(piece), f"{label} copy own block")
        for peer in around(g.rank, g.size):
            slot, block = fetched(peer)
            piece = block * g.segments + s
            yield wait(peer, s + 1, f"{label} others staged")
            yield copy(stage(s % 2 * slots + slot, piece, rank=peer), out(piece), f"{label} fetch")


@algorithm(
    "allgather",
    "direct",
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 1 + 1 / g.size),
    segmented=True,
    onesided=True,
    stage_chunks=lambda size: 1,
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Every rank stages its block and copies the others'. Copies (p + 1) / p N per rank."""
    yield from _to_everybody(g, g.rank, lambda rank: [(0, rank)], lambda peer: (0, peer), 1)


@algorithm(
    "alltoall",
    "direct",
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 1 + share(g)),
    segmented=True,
    uniform=True,
    onesided=True,
    stage_chunks=lambda size: size - 1,
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """Every rank stages its row and copies its column. Copies (2 p - 1) / p rows.

    All ranks must agree on the size of a slot, so blocks are of equal size.
    """
    yield from _to_everybody(
        g,
        g.rank * g.size + g.rank,
        lambda rank: [(slot, rank * g.size + peer) for slot, peer in enumerate(around(rank, g.size))],
        lambda peer: ((g.rank - peer - 1) % g.size, peer * g.size + g.rank),
        g.size - 1,
    )


@algorithm(
    "barrier",
    "direct",
    blocks=lambda size: 1,
    cost=lambda g: Cost(int(g.size > 1), 0),
    onesided=True,
)
def barrier(g: Geometry) -> Iterator[Step]:
    """Every rank signals and waits for all others."""
    if g.size > 1:
        yield from meet(g, 1, "here")
