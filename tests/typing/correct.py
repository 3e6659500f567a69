"""A user's script without mistakes: type checkers accept it and know the types of all results. It is never run."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import ronde
from ronde.mpi import MPI
from ronde.mpi.typing import BufSpec, BufSpecV, TargetSpec

Floats = NDArray[np.float32]


class Tensor:
    """An array of another library."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        return stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def array_functions(x: Floats, out: Floats, comm: ronde.Communicator, op: ronde.OpName) -> None:
    assert_type(ronde.allreduce(x), Floats)
    assert_type(comm.allreduce(x, op, out=out, prescale=0.5, algorithm="ring", timeout=3), Floats)
    assert_type(comm.allreduce_async(x, "max", name="loss"), ronde.Work[Floats])
    assert_type(comm.allreduce_async(x).wait(), Floats)
    assert_type(comm.reduce_scatter(x, "average", counts=[1, 3]), Floats)
    assert_type(ronde.broadcast(x, 1, out=x), Floats)
    assert_type(comm.allgather(x), Floats)
    assert_type(comm.alltoall(x, [2, 2]), Floats)
    result, rows = comm.alltoall(x, return_splits=True)
    assert_type(result, Floats)
    assert_type(rows, NDArray[np.int64])
    assert_type(comm.scatter(x if comm.rank == 0 else None), Floats)
    assert_type(comm.grouped_allreduce([x, out], "average"), list[Floats])
    assert_type(comm.grouped_allgather_async([x, out], name="shapes").wait(timeout=1.5), list[Floats])
    assert_type(comm.sendrecv(x, 1), Floats)
    assert_type(comm.recv(out, 0, tag=3), Floats)
    comm.send_async(x, 1, tag=3).wait()
    status = ronde.Status()
    assert_type(comm.recv(out, tag=None, status=status), Floats)
    assert_type(comm.recv(src=1), NDArray[Any])
    assert_type(comm.recv_async(tag=2).wait(), NDArray[Any])
    assert_type(ronde.probe(1, tag=None).count, int)
    assert_type(comm.iprobe(), ronde.Status | None)
    larger = ronde.Op(np.maximum, commutative=True)
    assert_type(comm.allreduce(x, larger), Floats)
    assert_type(comm.scan(x, "max", out=x), Floats)
    assert_type(ronde.exscan(x), Floats | None)
    assert_type(comm.exscan_async(x, larger, name="offsets").wait(), Floats | None)


def roots_alone_get_results(x: Floats, comm: ronde.Communicator) -> float:
    total = comm.reduce(x, "sum", root=0)
    assert_type(total, Floats | None)
    parts = ronde.gather(x)
    return 0.0 if total is None or parts is None else float(total[0] + parts[0])


def other_libraries(tensor: Tensor, comm: ronde.Communicator) -> None:
    assert_type(comm.allreduce(tensor), Tensor)
    assert_type(comm.broadcast_async(tensor, 0, name="weights").wait(), Tensor)
    assert_type(ronde.reduce(tensor), Tensor | None)


def numbers(comm: ronde.Communicator) -> float:
    total = comm.allreduce(2.5)
    assert_type(total, np.number[Any])
    assert_type(comm.allgather(comm.rank), NDArray[Any])
    everybody = comm.allreduce(True, "land")
    return float(total / comm.size) if everybody else float(ronde.broadcast(3, 0))


def objects_and_groups(comm: ronde.Communicator) -> None:
    assert_type(comm.allgather_object({"rank": comm.rank}), list[dict[str, int]])
    assert_type(ronde.join(timeout=5), int)
    half = comm.split(comm.rank % 2)
    if half is not None:
        half.barrier()
        half.close()
    step = comm.plan("allreduce", np.ones(3), "average")
    step.run()
    assert_type(comm.empty((3, 4), np.float32, name="shared"), NDArray[Any])
    with comm.shrink(timeout=3) as smaller:
        assert_type(smaller, ronde.Communicator)


def specifications(values: Floats) -> list[BufSpec]:
    parts: BufSpecV = (values, ([1, 2], [0, 1]), MPI.DOUBLE)
    place: TargetSpec = (0, 3, "d")
    assert_type(MPI.COMM_WORLD.Get_rank(), int)
    comm, status = MPI.COMM_WORLD.Dup(), MPI.Status()
    assert_type((comm, comm.rank, comm.name, comm.group.size), tuple[MPI.Intracomm, int, str, int])
    assert_type((status.source, status.cancelled, MPI.INT.size), tuple[int, bool, int])
    assert_type(MPI.SUM, MPI.Op)
    assert_type((MPI.DOUBLE, MPI.ERR_COMM), tuple[MPI.Datatype, int])
    MPI.Win.Allocate(24).Put([values, MPI.FLOAT], 0, place)
    MPI.COMM_WORLD.Allgatherv(values, parts)
    return [values, (values, 3), (values, MPI.DOUBLE), [values, 3, "d"], bytearray(8)]


with ronde.init(transport="tcp", config={"timeout": 60}) as world:
    objects_and_groups(world)
