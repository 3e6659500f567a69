"""Direct algorithms: ranks read each other's part of a shared window; no message is sent. For ranks of one host.

What a rank wants read it copies to STAGE and signals; whoever needs it waits for that signal and reads it there. With
segments the window needs room for two of them only: a slot is written again after everyone who reads it has signalled
a later phase. (After Graham and Shipman, "MPI support for multi-core architectures: optimized shared memory
collectives", 2008.) Large reductions are in direct_segmented.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from collectives.algorithms.combining import TreeOrder
from collectives.algorithms.registry import Cost, algorithm
from collectives.patterns import around, canonical_siblings
from collectives.schedule import Geometry, Step, copy, inp, out, signal, stage, wait


def nothing(g: Geometry) -> Fraction:
    """The two-sided traffic of a one-sided algorithm."""
    return Fraction(0)


def wait_for_all(g: Geometry, phase: int, label: str) -> Iterator[Step]:
    """Wait until every other rank has published `phase`."""
    for peer in around(g.rank, g.size):
        yield wait(peer, phase, label)


def _share(g: Geometry) -> float:
    return (g.size - 1) / g.size


def _combine(g: Geometry, s: int) -> Iterator[Step]:
    """Combine segment `s` of all ranks in tree order. The own part is read from IN: in STAGE, which peers read, the own
    core no longer has it for itself, and reading it there takes twice as long."""
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
    traffic=nothing,
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, g.size - 1, 1),
    segmented=True,
    tree_order=True,
    finishes=True,
    onesided=True,
    slots=lambda size: 1,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Every rank combines all contributions itself. Copies N, combines (p - 1) N.

    Who has staged segment s has read segment s - 1, and has been waited for before s + 1 is staged in its place.
    """
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
    traffic=nothing,
    cost=lambda g: Cost(int(g.size > 1), 0, g.size - 1, 1),
    tree_order=True,
    finishes=True,
    onesided=True,
    slots=lambda size: 1,
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
    """The root stages every segment in `copies` slots, a reader takes slot and block blocks(rank) of its own number.

    A reader's first signal says that it is here, signal s + 2 that it has read segment s. It waits for the others
    after its first segment: late enough to cost little, early enough that nobody can be far ahead.
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
        if g.segments < 3:  # else it has waited for them all
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
    traffic=nothing,
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 2 if g.size > 1 else 1),
    segmented=True,
    onesided=True,
    slots=lambda size: 1,
)
def broadcast(g: Geometry) -> Iterator[Step]:
    """The root copies segments to STAGE and everybody else from there. Copies 2 N at the root."""
    yield from _from_root(g, lambda rank: 0, 1)


@algorithm(
    "scatter",
    "direct",
    traffic=nothing,
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 1 + 1 / g.size / g.segments),
    segmented=True,
    onesided=True,
    slots=lambda size: size,
)
def scatter(g: Geometry) -> Iterator[Step]:
    """The root copies everybody's segments to STAGE, everybody takes its own."""
    yield from _from_root(g, lambda rank: rank, g.size)


@algorithm(
    "gather",
    "direct",
    traffic=nothing,
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 1 + 1 / g.size / g.segments),
    segmented=True,
    onesided=True,
    slots=lambda size: 1,
)
def gather(g: Geometry) -> Iterator[Step]:
    """Everybody copies its block to STAGE in segments, the root from there.

    The root's first signal says that it is here, signal s + 2 that it has read segment s.
    """
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
                if peer != g.root or g.segments < 3:  # else it waits for the root later
                    yield wait(peer, 1, "others here")


def _to_everybody(
    g: Geometry,
    own: int,
    staged: Callable[[int], list[tuple[int, int]]],
    fetched: Callable[[int], tuple[int, int]],
    slots: int,
) -> Iterator[Step]:
    """In every segment a rank stages the (slot, block) pairs staged(rank), copies block `own` from IN to OUT, where the
    others need not wait for it, and fetches fetched(peer) of every peer.

    Who has signalled segment s has read segment s - 2, and has been waited for before s is fetched.
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
    traffic=nothing,
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 1 + 1 / g.size),
    segmented=True,
    onesided=True,
    slots=lambda size: 1,
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Every rank stages its block and copies the others'. Copies (p + 1) / p N per rank."""
    yield from _to_everybody(g, g.rank, lambda rank: [(0, rank)], lambda peer: (0, peer), 1)


@algorithm(
    "alltoall",
    "direct",
    traffic=nothing,
    cost=lambda g: Cost(g.segments if g.size > 1 else 0, 0, 0, 1 + _share(g)),
    segmented=True,
    uniform=True,
    onesided=True,
    slots=lambda size: size - 1,
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """Every rank stages its row and copies its column. Copies (2 p - 1) / p rows. Blocks must be equal, because all
    ranks must agree on the size of a slot."""
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
    traffic=nothing,
    cost=lambda g: Cost(int(g.size > 1), 0),
    onesided=True,
)
def barrier(g: Geometry) -> Iterator[Step]:
    """Everybody signals and waits for everybody else."""
    if g.size > 1:
        yield signal(1, "here")
        yield from wait_for_all(g, 1, "others here")
