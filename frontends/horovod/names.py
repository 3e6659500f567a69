"""Names of operations, by which the ranks match their calls, and ranks within process sets."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Final
from weakref import WeakKeyDictionary

from collectives import Communicator, ProcessSet, rank, world
from collectives.membership import is_elastic
from frontends.horovod.arguments import check_process_set, check_root

__all__ = ["alone_in", "communicator_of", "full_name", "naming", "ranks_may_change", "reset_numbers", "root_in"]


class _CallCounters:
    """Numbers for operations without a name: one count, from 1, for each communicator and kind of operation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: WeakKeyDictionary[Communicator, Counter[str]] = WeakKeyDictionary()

    def take(self, communicator: Communicator, kind: str) -> int:
        with self._lock:
            counts = self._counts.setdefault(communicator, Counter())
            counts[kind] += 1
            return counts[kind]

    def give_back(self, communicator: Communicator, kind: str, number: int) -> None:
        """Let the next operation have a number, unless another thread has taken one since."""
        with self._lock:
            counts = self._counts.setdefault(communicator, Counter())
            if counts[kind] == number:
                counts[kind] -= 1

    def reset(self, communicator: Communicator) -> None:
        with self._lock:
            self._counts.pop(communicator, None)


_counters: Final = _CallCounters()


def full_name(communicator: Communicator, kind: str, name: str | None) -> str:
    """Return the name by which ranks match a call that cannot be refused, numbered if `name` is None.

    The kind is part of it, because in Horovod operations of two kinds may have the same name.
    """
    return f"{kind}.{name}" if name is not None else _numbered(kind, _counters.take(communicator, kind))


@contextlib.contextmanager
def naming(communicator: Communicator, kind: str, name: str | None) -> Iterator[str]:
    """Context in which a call begins, with its `full_name`. If it is refused there, the next call gets its number: the
    other ranks have not counted it."""
    if name is not None:
        yield f"{kind}.{name}"
        return
    number = _counters.take(communicator, kind)
    try:
        yield _numbered(kind, number)
    except Exception:
        _counters.give_back(communicator, kind, number)
        raise


def _numbered(kind: str, number: int) -> str:
    return f"{kind}.noname.{number}"


def reset_numbers(communicator: Communicator) -> None:
    """Number operations without a name from 1 again, after a join: the ranks have made different numbers of calls."""
    _counters.reset(communicator)


def communicator_of(process_set: ProcessSet) -> Communicator:
    """Return the communicator of a process set. Raises TypeError for another object, ValueError for an unknown set."""
    _ranks_of(process_set)
    return process_set.communicator


def _ranks_of(process_set: ProcessSet) -> list[int]:
    check_process_set(process_set)
    return process_set.ranks or []


def alone_in(process_set: ProcessSet) -> bool:
    """True if this rank has no other rank to combine with: it is the only member, or not a member.

    Raises NotInitializedError before `init`, TypeError for another object, ValueError for a process set that was not
    added.
    """
    return rank() not in _ranks_of(process_set) or process_set.communicator.size == 1


def ranks_may_change() -> bool:
    """True if ranks come and go in this job, so that a graph of now may run in a world of another size. Asks the job's
    store. Raises NotInitializedError before `init`."""
    store = world().transport.group.parent_store
    return store is not None and is_elastic(store)


def root_in(process_set: ProcessSet, root_rank: int) -> int:
    """Translate a rank of the world into its rank in the process set. Raises ValueError if it is not a member,
    TypeError for another object than a process set."""
    ranks = _ranks_of(process_set)
    root_rank = check_root(root_rank)
    if root_rank not in ranks:
        raise ValueError(f"root_rank={root_rank!r}: must be a rank of the process set, one of {ranks}")
    return ranks.index(root_rank)
