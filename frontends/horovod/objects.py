"""Objects, pickled, from one rank to all and from all to all."""

from __future__ import annotations

from typing import Any

from collectives.process_sets import ProcessSet, global_process_set
from frontends.horovod.errors import as_horovod
from frontends.horovod.names import full_name, root_in


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The object of `root_rank`, pickled; on that rank, `obj` itself."""
    comm, root = process_set.communicator, root_in(process_set, root_rank)
    full = full_name(comm, "broadcast_object", name)
    with as_horovod():
        found = comm.broadcast_object_async(obj, root, name=full).wait()
    return obj if comm.rank == root else found


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """All ranks' objects, in rank order."""
    comm = process_set.communicator
    with as_horovod():
        return list(comm.allgather_object_async(obj, name=full_name(comm, "allgather_object", name)).wait())
