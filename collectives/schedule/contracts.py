"""The contract of every collective: the blocks of each rank before and after it.

Schedules are proved against the contract, and buffers are laid out by it. Blocks are numbered 0..blocks-1 and cut into
`segments` chunks each. In collectives that split data by rank a block belongs to a rank; in allreduce, broadcast and
reduce the algorithm chooses the number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Spec:
    """One collective.

    by_rank   blocks belong to ranks, so their number is fixed; otherwise the algorithm chooses their number
    reduces   the result combines the contributions of ranks; otherwise every block comes from one rank
    rooted    the call has a root
    inputs    (rank, size, root, blocks) -> the blocks in IN; None if the rank has no IN
    outputs   (rank, size, root, blocks) -> the blocks in OUT; None if the rank has no OUT
    source    (block, size, root) -> the rank that a block comes from; None if the collective reduces
    combined  (rank, size) -> the ranks whose contributions the result of a rank combines; None if they are all ranks.
              They are combined in rank order then
    """

    name: str
    by_rank: bool
    reduces: bool
    rooted: bool
    inputs: Callable[[int, int, int, int], range | None]
    outputs: Callable[[int, int, int, int], range | None]
    source: Callable[[int, int, int], int] | None = None
    combined: Callable[[int, int], range] | None = None

    def blocks(self, size: int) -> int:
        """Return the number of blocks of a `by_rank` collective."""
        return size * size if self.name == "alltoall" else size


def _all(rank: int, size: int, root: int, blocks: int) -> range:
    return range(blocks)


def _all_at_root(rank: int, size: int, root: int, blocks: int) -> range | None:
    return range(blocks) if rank == root else None


def _own(rank: int, size: int, root: int, blocks: int) -> range:
    return range(rank, rank + 1)


def _row(rank: int, size: int, root: int, blocks: int) -> range:
    return range(rank * size, (rank + 1) * size)


def _column(rank: int, size: int, root: int, blocks: int) -> range:
    return range(rank, size * size, size)


def _all_but_at_first(rank: int, size: int, root: int, blocks: int) -> range | None:
    return range(blocks) if rank else None


def _none(rank: int, size: int, root: int, blocks: int) -> None:
    return None


SPECS: Final[dict[str, Spec]] = {
    spec.name: spec
    for spec in (
        Spec("allreduce", False, True, False, _all, _all),
        Spec("reduce", False, True, True, _all, _all_at_root),
        Spec("broadcast", False, False, True, _all_at_root, _all, lambda block, size, root: root),
        Spec("allgather", True, False, False, _own, _all, lambda block, size, root: block),
        Spec("reduce_scatter", True, True, False, _all, _own),
        Spec("scan", False, True, False, _all, _all, combined=lambda rank, size: range(rank + 1)),
        Spec("exscan", False, True, False, _all, _all_but_at_first, combined=lambda rank, size: range(rank)),
        Spec("gather", True, False, True, _own, _all_at_root, lambda block, size, root: block),
        Spec("scatter", True, False, True, _all_at_root, _own, lambda block, size, root: root),
        Spec("alltoall", True, False, False, _row, _column, lambda block, size, root: block // size),
        Spec("barrier", False, False, False, _none, _none),
    )
}
