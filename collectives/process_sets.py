"""Process sets: subsets of the world's ranks that compute together, as in Horovod.

    evens = add_process_set([0, 2, 4])
    if evens.included():
        evens.communicator.allreduce(x)

Every set has a communicator of its own, split from the world, with its own order of calls and its own named
operations: an operation in one set waits for nothing in another.

A set has no order of its own: as in Horovod, the ranks are sorted, and a rank's number in the set is its index among
them. So every rank may list the members in its own order. For a communicator in another order, use
`Communicator.split`.

A ProcessSet is a value: every method looks up the set of these ranks in the current world. So ranks that are threads of
one process can share a ProcessSet, and it can be added again to the next world.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from collectives.communicator import Communicator
from collectives.numeric import is_integer
from collectives.world_communicator import is_initialized, world
from transports.errors import MismatchError


class ProcessSet:
    """Ranks of the world.

    ranks  distinct ranks of the world, 0 or more, in any order; None for all of them

    Raises TypeError or ValueError for other ranks.
    """

    def __init__(self, ranks: Iterable[int] | None = None) -> None:
        self._ranks = None if ranks is None else _checked(ranks)

    @property
    def ranks(self) -> list[int] | None:
        """The ranks in the world, sorted. None for the global set while there is no world."""
        if self._ranks is not None:
            return list(self._ranks)
        return list(range(world().size)) if is_initialized() else None

    @property
    def process_set_id(self) -> int | None:
        """The number of the set, the same on all ranks: 0 for the global set, None for a set that was not added."""
        found = self._find()
        return None if found is None else found[0]

    def size(self) -> int | None:
        """The number of ranks; None for a set that was not added."""
        ranks = self.ranks
        return None if ranks is None or self._find() is None else len(ranks)

    def rank(self) -> int | None:
        """This rank's number in the set; None for a set that was not added. Raises ValueError if it is not in it."""
        ranks = self.ranks
        if ranks is None or self._find() is None:
            return None
        if world().rank not in ranks:
            raise ValueError(f"rank {world().rank} is not in the process set {ranks}")
        return ranks.index(world().rank)

    def included(self) -> bool | None:
        """True if this rank is in the set; None while there is no world."""
        ranks = self.ranks
        return world().rank in ranks if is_initialized() and ranks is not None else None

    @property
    def communicator(self) -> Communicator:
        """The communicator of the set. Raises ValueError for a set that was not added, or without this rank, and
        NotInitializedError before `init`."""
        rank = world().rank
        found = self._find()
        if found is None:
            raise ValueError(f"{self!r}: is not a process set of this world; call add_process_set first")
        communicator = found[1]
        if communicator is None:
            raise ValueError(f"{self!r}: rank {rank} is not in it")
        return communicator

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and self._ranks == other._ranks

    def __hash__(self) -> int:
        return hash(self._ranks)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"

    def __repr__(self) -> str:
        return f"ProcessSet({'' if self._ranks is None else list(self._ranks)})"

    def _find(self) -> tuple[int, Communicator | None] | None:
        """The set's number and, on its ranks, its communicator; None if the world has no such set."""
        if not is_initialized():
            return None
        if self._ranks is None or self._ranks == tuple(range(world().size)):
            return 0, world()
        sets = world().process_sets.items()
        return next(((number, communicator) for number, (ranks, communicator) in sets if ranks == self._ranks), None)


global_process_set: Final = ProcessSet()
"""All ranks of the world."""


def add_process_set(process_set: ProcessSet | Sequence[int], *, timeout: float | None = None) -> ProcessSet:
    """Add a process set to the world, and return it. Collective: all ranks of the world call it with the same ranks.

    process_set  the set, or its ranks in any order
    timeout      seconds that the call may take; by default the setting `timeout`

    Raises TypeError or ValueError, with nothing done, for bad ranks and for a set of the same ranks as another one (the
    global set counts). Raises MismatchError on all ranks if they gave different ranks; the world stays usable.
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    comm = world()
    ranks = added.ranks or []
    if max(ranks, default=0) >= comm.size:
        raise ValueError(f"ranks={ranks}: must be ranks of the world, 0 to {comm.size - 1}")
    others = [tuple(range(comm.size)), *(other for other, _ in comm.process_sets.values())]
    if tuple(ranks) in others:
        raise ValueError(f"ranks={ranks}: there is a process set of these ranks already")
    _check_same(comm, "add_process_set", ranks, timeout)
    communicator = comm.split(0 if comm.rank in ranks else None, timeout=timeout)
    comm.process_sets[max(comm.process_sets, default=0) + 1] = tuple(ranks), communicator
    return added


def remove_process_set(process_set: ProcessSet, *, timeout: float | None = None) -> bool:
    """Close a process set of the world. Collective over the world. Returns True.

    process_set  the set
    timeout      seconds that the call may take; by default the setting `timeout`

    Returns False, with nothing done, for a set that was not added and for the global set. Operations of the set in
    flight end as in `Communicator.close`. Raises as that does, and MismatchError as add_process_set.
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set={process_set!r}: must be a ProcessSet")
    number = process_set.process_set_id
    if not number:
        return False
    comm = world()
    _check_same(comm, "remove_process_set", process_set.ranks or [], timeout)
    _, communicator = comm.process_sets.pop(number)
    if communicator is not None:
        communicator.close(timeout)
    return True


def add_given(process_sets: Iterable[ProcessSet | Sequence[int]]) -> None:
    """Add the process sets of `init`'s argument to a new world. One that is given twice is added once."""
    try:
        sets = iter(process_sets)
    except TypeError as error:
        raise TypeError(f"process_sets={process_sets!r}: must be a list of process sets") from error
    for given in sets:
        process_set = given if isinstance(given, ProcessSet) else ProcessSet(given)
        if process_set.process_set_id is None:
            add_process_set(process_set)


def _checked(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks, sorted."""
    try:
        given = tuple(ranks)
    except TypeError as error:
        raise TypeError(f"ranks={ranks!r}: must be a list of ints, or a ProcessSet") from error
    if not all(map(is_integer, given)):
        raise TypeError(f"ranks={list(given)!r}: must be ints")
    if not given or min(given) < 0 or len(set(given)) != len(given):
        raise ValueError(f"ranks={list(given)!r}: must be distinct, 0 or more, and at least one")
    return tuple(sorted(int(rank) for rank in given))


def _check_same(comm: Communicator, function: str, ranks: list[int], timeout: float | None) -> None:
    """Raises MismatchError on all ranks unless all called the same function with the same ranks."""
    digest = zlib.crc32(repr((function, ranks)).encode())
    if (comm.allgather(np.array([digest]), timeout=timeout) != digest).any():
        call = np.frombuffer(f"{function}({ranks})\n".encode(), np.uint8)
        table = comm.allgather(call, timeout=timeout).tobytes().decode().splitlines()
        rows = "".join(f"\n  rank {rank}: {row}" for rank, row in enumerate(table))
        raise MismatchError(f"the ranks' process sets do not fit together:{rows}", rank=comm.rank)
