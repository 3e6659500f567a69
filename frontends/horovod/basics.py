"""The beginning and the end, and who one is: Horovod's functions without tensors."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import collectives
from collectives import cross_rank, cross_size, is_initialized, local_rank, local_size, rank, shutdown, size
from collectives.process_sets import ProcessSet, global_process_set
from frontends.horovod.errors import as_horovod
from frontends.horovod.names import communicator_of, full_name, number_anew
from transports import registry

__all__ = ["cross_rank", "cross_size", "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size"]


def start(
    comm: Sequence[int] | None,
    process_sets: Sequence[ProcessSet | Sequence[int]] | str | None,
    find: Callable[[contextlib.ExitStack], dict[str, Any]],
) -> None:
    """What a frontend's `init` does, with its own way to find the other ranks.

    find   called if nothing has been initialised yet: arguments for `collectives.init`, {} for those of `ronde run`;
           what it puts on the stack is released when the process ends

    Raises HorovodInternalError if the ranks do not come together, ValueError for a bad argument.
    """
    if comm is not None:
        raise ValueError(f"comm={comm!r}: must be None; use process_sets for groups of ranks")
    if is_initialized():
        return
    sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    with as_horovod(), contextlib.ExitStack() as resources:
        collectives.init(process_sets=sets, **find(resources))
        atexit.register(resources.pop_all().close)


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Find the other ranks: those of `ronde run`, or none. Does nothing if that has been done.

    comm          None; Horovod's lists of MPI ranks have no meaning here: use process sets
    process_sets  sets to make at once, the same on all ranks. "dynamic" is taken for None: sets can always be added

    Raises HorovodInternalError if the ranks do not come together, ValueError for a bad argument.
    """
    start(comm, process_sets, lambda _: {})


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined, it gives zeros to allreduces of the others.

    Returns the last rank to join. `device` is there for Horovod's scripts and means nothing.
    """
    comm = global_process_set.communicator
    with as_horovod():
        last = comm.join()
    number_anew(comm)
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have called it."""
    comm = communicator_of(process_set)
    with as_horovod():
        comm.barrier_async(name=full_name(comm, "barrier", None)).wait()


def is_homogeneous() -> bool:
    """True if all hosts have equally many ranks."""
    hosts = [member.host for member in collectives.world().members]
    return len({hosts.count(host) for host in hosts}) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what happens from now on to a file for chrome://tracing or Perfetto, one per rank. There are no cycles."""
    collectives.start_timeline(file_path)


def stop_timeline() -> None:
    """Finish the file."""
    collectives.stop_timeline()


def mpi_threads_supported() -> bool:
    """False: there is no MPI. Operations may be called from any thread."""
    return False


def mpi_enabled() -> bool:
    """False."""
    return False


def mpi_built() -> bool:
    """False."""
    return False


def gloo_enabled() -> bool:
    """False: TCP and shared memory are Ronde's own."""
    return False


def gloo_built() -> bool:
    """False."""
    return False


def nccl_built() -> int:
    """NCCL's version as an int if it can be used here, else 0."""
    return 0 if registry.backend("nccl").usable() else 1


def cuda_built() -> bool:
    """True if CUDA tensors can go over NCCL here."""
    return bool(nccl_built())


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def rocm_built() -> bool:
    """False."""
    return False
