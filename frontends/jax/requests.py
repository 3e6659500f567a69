"""Requests of compiled programs, and their execution by named asynchronous collectives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives import Communicator, Work
from frontends.horovod import Call, agree, full_name
from transports.errors import MismatchError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Request(Call):
    """A collective on some arrays, as it is known when a function is traced.

    kind   also allgather, alltoall or barrier
    size   size of the process set when traced; the results' shapes depend on it
    rank   rank in the process set
    rows   allgather: number of rows of each rank; None if all have as many as this rank
    table  alltoall: table[i][j] rows go from i to j; None for equal parts
    label  by which the ranks agree on `facts` before; None without an agreement
    """

    size: int = 1
    rank: int = 0
    rows: tuple[int, ...] | None = None
    table: tuple[tuple[int, ...], ...] | None = None
    label: str | None = None

    def result(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for an array of this shape."""
        match self.kind:
            case "allgather":
                own, *rest = shape or (1,)
                return (own * self.size if self.rows is None else sum(self.rows), *rest)
            case "reducescatter":
                return (shape[0] // self.size + (self.rank < shape[0] % self.size), *shape[1:])
            case "alltoall" if self.table is not None:
                return (sum(row[self.rank] for row in self.table), *shape[1:])
        return shape


def perform(request: Request, sources: Sequence[Array], targets: Sequence[Array]) -> None:
    """Run the request from `sources` into `targets`; in place where these are the same arrays.

    Raises the first error of the operations, after all of them have ended; ValueError if the function was traced in
    another world, and on every rank if the ranks do not agree on the facts; MismatchError on every rank if the ranks
    state different numbers of rows.
    """
    comm = request.communicator
    if (comm.size, comm.rank) != (request.size, request.rank):
        raise ValueError(
            f"{request.kind}: was compiled for rank {request.rank} of {request.size}, and this is rank {comm.rank} of "
            f"{comm.size}; call jax.clear_caches() after the world has changed"
        )
    name = full_name(comm, "jax", None if request.name is None else f"{request.kind}.{request.name}")
    if request.label is not None:
        agree(comm, request.label, request.facts)
    name = _compared_sizes(comm, request, name)
    begun: list[Work[Any]] = []
    try:
        for work in _begin(comm, request, name, sources, targets):
            begun.append(work)
    finally:  # the memory is lent out until all of them are over
        _wait(comm, begun)


def _compared_sizes(comm: Communicator, request: Request, name: str) -> str:
    """Return the name for the operation itself. Raises MismatchError on every rank if one states numbers of rows, and
    others state none or other ones."""
    stated = request.table if request.rows is None else request.rows
    if stated is None:
        return name
    kind = "splits" if request.rows is None else "rows"
    found = comm.allgather_async(np.array(stated, np.int64).reshape(1, -1), name=name).wait()
    for rank, row in enumerate(found):
        if (row != found[0]).any():
            raise MismatchError(
                f"{request.kind}: {kind} must be the same on all ranks; rank {rank} has {row.tolist()}, rank 0 has "
                f"{found[0].tolist()}",
                rank=rank,
            )
    return f"{name}.data"


def _begin(
    comm: Communicator, request: Request, name: str, sources: Sequence[Array], targets: Sequence[Array]
) -> Iterator[Work[Any]]:
    """Begin all operations of the request."""
    if request.kind not in ("allgather", "alltoall", "barrier"):
        yield from request.begin(name, sources, targets)
        return
    if request.kind == "barrier":
        yield comm.barrier_async(name=name)
    for index, (x, out) in enumerate(zip(sources, targets, strict=True)):
        label = f"{name}.{index}" if index else name
        if request.kind == "alltoall":
            splits = None if request.table is None else request.table[request.rank]
            yield comm.alltoall_async(x, splits, out=out, name=label)
        elif request.rows is None:  # in one piece, so that the number of rows must be the same
            yield comm.allgather_async(x[None], out=out.reshape(comm.size, *x.shape), name=label)
        else:
            yield comm.allgather_async(x, out=out, name=label)


def _wait(comm: Communicator, begun: Sequence[Work[Any]]) -> None:
    """Wait until all operations have ended, then raise the error of the first that failed."""
    interrupt: BaseException | None = None
    for work in begun:
        while not work.test():
            try:
                with contextlib.suppress(Exception):  # it is raised below
                    work.wait()
            except BaseException as error:  # noqa: BLE001 - Ctrl-C; but the operation goes on until the ranks give it up
                interrupt = error
                comm.abort(f"{type(error).__name__} in {threading.current_thread().name}")
    if interrupt is not None:
        raise interrupt
    for work in begun:
        work.wait()
