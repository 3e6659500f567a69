"""Start of a job, barrier, join, timeline, and collectives on pickled Python objects."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import collectives
from collectives import ProcessSet, Work, global_process_set, is_initialized
from frontends.horovod.arguments import listed
from frontends.horovod.errors import as_horovod
from frontends.horovod.names import communicator_of, full_name, naming, reset_numbers, root_in
from transports.errors import described

__all__ = [
    "allgather_object",
    "average_metrics",
    "barrier",
    "broadcast_made",
    "broadcast_object",
    "init",
    "is_homogeneous",
    "join",
    "start",
    "start_timeline",
    "stop_timeline",
]


def start(
    comm: Sequence[int] | None,
    process_sets: Sequence[ProcessSet | Sequence[int]] | str | None,
    find: Callable[[contextlib.ExitStack], dict[str, Any]],
) -> None:
    """Implement a frontend's `init`, with the frontend's own way to find the other ranks.

    find   called unless `init` was called before; returns arguments for `collectives.init`, {} to let that find the
           launcher. Resources that it puts on the stack are released when the process ends

    Raises HorovodInternalError if the ranks do not connect in time, ValueError for a bad argument.
    """
    if comm is not None:
        raise ValueError(f"comm={comm!r}: must be None; use process_sets for groups of ranks")
    if isinstance(process_sets, str):
        if process_sets != "dynamic":
            raise ValueError(f"process_sets={process_sets!r}: must be sets, None or 'dynamic'")
        process_sets = None
    sets = [] if process_sets is None else listed(process_sets, "process_sets", "process sets")
    if is_initialized():
        return
    _check_distinct(sets)
    resources = contextlib.ExitStack()
    atexit.register(resources.close)  # before `init` registers the world's end: what is registered first runs last
    with as_horovod():
        try:
            collectives.init(process_sets=sets, **find(resources))
        except BaseException:
            atexit.unregister(resources.close)
            resources.close()
            raise
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path not in ("", "DYNAMIC") and not collectives.world().config.timeline:  # `ronde run` makes a setting of it
        start_timeline(path, os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0"))


def _check_distinct(sets: Sequence[ProcessSet | Sequence[int]]) -> None:
    """Raise ValueError if two process sets have the same ranks, as in Horovod."""
    ranks = [one.ranks if isinstance(one, ProcessSet) else sorted(one) for one in sets]
    for index, own in enumerate(ranks):
        if own in ranks[:index]:
            raise ValueError(f"process_sets[{index}]: has the ranks {own}, as process_sets[{ranks.index(own)}] has")


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Connect to the other ranks of the launcher (docs/launching.md); without one, make a world of one rank. Further
    calls do nothing.

    comm          must be None; Horovod's lists of MPI ranks are not supported: use process sets
    process_sets  sets to create at once, the same on all ranks. "dynamic" means None: sets can always be added

    Raises HorovodInternalError if the ranks do not connect in time, ValueError for a bad argument.
    """
    start(comm, process_sets, lambda _: {})


def join(device: int = -1) -> int:
    """Announce that this rank has no more data. Until all ranks have joined, it contributes zeros to their allreduces,
    and takes part in their barriers.

    Returns the last rank that joined. `device` is accepted for Horovod's sake and ignored.
    """
    comm = global_process_set.communicator
    with as_horovod():
        last = comm.join()
    reset_numbers(comm)
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called `barrier`. Raises HorovodInternalError if a rank is lost."""
    comm = communicator_of(process_set)
    with as_horovod():
        comm.barrier_async(name=full_name(comm, "barrier", None)).wait()


def is_homogeneous() -> bool:
    """True if every host has the same number of ranks."""
    hosts = [member.host for member in collectives.world().members]
    return len({hosts.count(host) for host in hosts}) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write a trace for chrome://tracing or Perfetto, with Horovod's names of events, to exactly this file, on rank 0.

    mark_cycles   mark the moments at which batches of operations begin: CYCLE_START

    A timeline that is being written ends. Raises NotInitializedError before `init`, OSError on rank 0 if the file
    cannot be written.
    """
    collectives.stop_timeline()
    collectives.start_timeline(file_path, "horovod-cycles" if mark_cycles else "horovod")


def stop_timeline() -> None:
    """End the trace and close its file."""
    collectives.stop_timeline()


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the object of `root_rank`, a rank of the world, on all ranks; on that rank, `obj` itself.

    Raises ValueError if `root_rank` is not in the process set, TypeError on every rank if its object cannot be pickled,
    HorovodInternalError if a rank is lost.
    """
    return broadcast_made(lambda: obj, root_rank, name, process_set)


def broadcast_made(make: Callable[[], Any], root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    """`broadcast_object` of the object that `make` returns on the root. Raises its error on every rank."""
    comm, root = communicator_of(process_set), root_in(process_set, root_rank)
    obj = _tried(make, root_rank) if comm.rank == root else None
    with as_horovod():
        with naming(comm, "broadcast_object", name) as label:
            work = _begun(lambda obj: comm.broadcast_object_async(obj, root, name=label), obj, root_rank)
        found = work.wait()
    if isinstance(found, _Failure):
        found.throw()
    return found


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks, in rank order. Raises TypeError on every rank if one cannot be pickled,
    HorovodInternalError if a rank is lost."""
    comm = communicator_of(process_set)
    with as_horovod():
        with naming(comm, "allgather_object", name) as label:
            work = _begun(lambda obj: comm.allgather_object_async(obj, name=label), obj, collectives.rank())
        found = list(work.wait())
    for one in found:
        if isinstance(one, _Failure):
            one.throw()
    return found


class _Failure:
    """Sent in place of an object that its rank does not have. All ranks raise its error."""

    def __init__(self, error: Exception, rank: int) -> None:
        self._kind = next((kind for kind in (TypeError, ValueError) if isinstance(error, kind)), RuntimeError)
        self._text = f"{described(error) if self._kind is RuntimeError else error} (on rank {rank})"
        self._cause: Exception | None = error

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_cause": None}  # it may refer to what cannot be pickled

    def throw(self) -> NoReturn:
        raise self._kind(self._text) from self._cause


def _tried(make: Callable[[], Any], rank: int) -> Any:
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - all ranks raise it
        return _Failure(error, rank)


def _begun(begin: Callable[[Any], Work[Any]], obj: Any, rank: int) -> Work[Any]:
    """Begin an operation on an object, or on a failure if the object cannot be pickled."""
    try:
        return begin(obj)
    except TypeError as error:
        return begin(_Failure(error, rank))


def average_metrics(
    metrics: Mapping[str, Any], weight: float = 1.0, *, process_set: ProcessSet = global_process_set
) -> dict[str, float]:
    """Return the weighted averages of all ranks' metrics.

    metrics   numbers by name, the same names on all ranks
    weight    weight of this rank, for example its number of rows

    Raises on all ranks: TypeError for a value that is not a number on some rank; ValueError for different names, for
    names that are the same as texts, such as 1 and "1", for a negative weight, and for weights whose sum is 0.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics={metrics!r}: must be a dict of numbers by name")
    mine = {str(name): _number(value) for name, value in metrics.items()}
    found = allgather_object((mine, _number(weight), len(metrics)), process_set=process_set)
    rows = [(row, part) for row, part, _ in found]
    for rank, (row, part, count) in enumerate(found):
        for name, value in (("weight", part), *((f"metrics[{name!r}]", value) for name, value in row.items())):
            if isinstance(value, str):
                raise TypeError(f"{name}={value}: must be a number; it is none on rank {rank} of the process set")
        if count > len(row):
            raise ValueError(f"metrics: {count} names of rank {rank} are {len(row)} texts, {sorted(row)}; must differ")
        if row.keys() != rows[0][0].keys():
            raise ValueError(f"metrics: rank 0 has {sorted(rows[0][0])}, rank {rank} has {sorted(row)}")
    total = sum(part for _, part in rows)
    if min(part for _, part in rows) < 0 or not 0 < total < math.inf:
        raise ValueError(
            f"weight: must be 0 or more, finite, and more than 0 together; the ranks have {[w for _, w in rows]}"
        )
    return {name: sum(row[name] * part for row, part in rows if part) / total for name in mine}


def _number(value: Any) -> float | str:
    """Return a value as a float; what is no number as its text, for all ranks to raise the same error."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return reprlib.repr(value)
