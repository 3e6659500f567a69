"""Algorithms from files of other programs: read, proved, and then registered as Ronde's own are."""

from __future__ import annotations

from pathlib import Path

from collectives.algorithms import add, read_msccl
from collectives.folders import path_of
from collectives.proof.all_ranks import count_blocks
from collectives.proof.verify import prove


def import_msccl(path: str | Path) -> str:
    """Add the algorithm of an MSCCL file (XML) to those of Ronde, and return its name.

        name = ronde.import_msccl("allreduce_allpairs.xml")
        comm.allreduce(x, algorithm=name)

    It is proved first, as all algorithms are: no deadlock, no race, every contribution once, the same bits on all
    ranks. Allreduce, allgather and reduce_scatter can be imported, for the number of ranks in the file. All ranks must
    import the same files, before `init`; then rules may name the algorithm, and the cost model may choose it.

    Raises OSError if the file cannot be read; ValueError for a file that is no schedule of MSCCL, or has what Ronde
    does not support, or a name that is taken; ProofError for a schedule that is wrong. Nothing is added then.
    """
    try:
        made = read_msccl(path_of(path, "path").read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"path={str(path)!r}: {error}") from error
    size = made.only_size
    count = count_blocks(made, size)
    for in_place in (False, True) if made.collective in ("allreduce", "allgather") else (False,):
        for sizes in ([1] * count, [1 + block % 3 for block in range(count)]):
            prove(made, size, in_place=in_place, sizes=sizes)
    add(made)
    return made.name
