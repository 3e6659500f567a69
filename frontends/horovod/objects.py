"""Collectives on pickled Python objects."""

from __future__ import annotations

from typing import Any

from collectives import ProcessSet, global_process_set
from frontends.horovod.errors import as_horovod
from frontends.horovod.names import full_name, root_in

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the object of `root_rank`, a rank of the world, on all ranks; on that rank, `obj` itself.

    Raises ValueError if `root_rank` is not in the process set, HorovodInternalError if a rank is lost.
    """
    comm, root = process_set.communicator, root_in(process_set, root_rank)
    full = full_name(comm, "broadcast_object", name)
    with as_horovod():
        found = comm.broadcast_object_async(obj, root, name=full).wait()
    return obj if comm.rank == root else found


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks, in rank order. Raises HorovodInternalError if a rank is lost."""
    comm = process_set.communicator
    with as_horovod():
        return list(comm.allgather_object_async(obj, name=full_name(comm, "allgather_object", name)).wait())
