"""What operations are called: how they combine, and the names by which ranks find each other's."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final
from weakref import WeakKeyDictionary

from collectives import Communicator, rank
from collectives.process_sets import ProcessSet

Average: Final = "average"
Sum: Final = "sum"
Adasum: Final = "adasum"
Min: Final = "min"
Max: Final = "max"
Product: Final = "prod"


class _Numbers:
    """Numbers for operations without a name, from 1 on for every communicator and kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: WeakKeyDictionary[Communicator, Counter[str]] = WeakKeyDictionary()

    def name(self, communicator: Communicator, kind: str) -> str:
        with self._lock:
            counts = self._counts.setdefault(communicator, Counter())
            counts[kind] += 1
            return f"{kind}.noname.{counts[kind]}"

    def begin_anew(self, communicator: Communicator) -> None:
        with self._lock:
            self._counts.pop(communicator, None)


_numbers: Final = _Numbers()


def communicator_of(process_set: ProcessSet) -> Communicator:
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set={process_set!r}: must be a ProcessSet")
    return process_set.communicator


def alone_in(process_set: ProcessSet) -> bool:
    """True if this rank has nobody to combine with: it is the only one, or not of the process set. Raises RuntimeError
    while there is no world, ValueError for a set that was not added."""
    return rank() not in (process_set.ranks or ()) or process_set.communicator.size == 1


def full_name(communicator: Communicator, kind: str, name: str | None) -> str:
    """Operations of two kinds may have one name in Horovod."""
    return _numbers.name(communicator, kind) if name is None else f"{kind}.{name}"


def number_anew(communicator: Communicator) -> None:
    """Operations without a name are counted from 1 again: all ranks have joined, after unequally many."""
    _numbers.begin_anew(communicator)


def root_in(process_set: ProcessSet, root_rank: int) -> int:
    """The number within a process set of a rank of the world. Raises ValueError if it is not in it."""
    ranks = process_set.ranks or []
    if root_rank not in ranks:
        raise ValueError(f"root_rank={root_rank!r}: must be a rank of the process set, one of {ranks}")
    return ranks.index(root_rank)


def choose_op(op: str | None, average: bool | None) -> str:
    """`op`, or what the deprecated `average` says; Average by default. Raises ValueError for both or an unknown one."""
    if average is not None:
        if op is not None:
            raise ValueError("op and average: give one of them; average is deprecated")
        return Average if average else Sum
    if op is None:
        return Average
    if op not in (Average, Sum, Adasum, Min, Max, Product):
        raise ValueError(f"op={op!r}: must be Average, Sum, Adasum, Min, Max or Product")
    return op
