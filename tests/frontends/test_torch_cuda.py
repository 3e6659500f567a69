"""CUDA tensors through frontends.torch: results, and the order of streams. Without a GPU: tensors, streams, CuPy and
NCCL are fakes (fake_cuda.py, tests/gpu)."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import torch.distributed as dist  # noqa: E402
from torch.distributed.distributed_c10d import AllgatherOptions  # noqa: E402

from collectives import Communicator  # noqa: E402
from frontends.torch import ops  # noqa: E402
from frontends.torch.distributed import ProcessGroup  # noqa: E402
from frontends.torch.monitored import MonitoredBarrier  # noqa: E402
from frontends.torch.tensors import as_array, as_tensor, form_of  # noqa: E402
from tests.frontends.fake_cuda import Cuda, CudaTensor, cuda_tensors, numbers  # noqa: E402
from tests.gpu.gpus import Gpus, gpus  # noqa: E402
from tests.transports.tcp_ranks import wait_until  # noqa: E402

WAYS = ("nccl", "local")
"""NCCL's own collectives, and by way of the host's memory."""


def on_ranks(body: Callable[..., Any], transport: str, size: int = 2) -> None:
    """body(comm, cuda, some) on ranks that are threads, each with a GPU of its own."""
    with gpus(size, nccl=transport == "nccl") as some, cuda_tensors(some) as cuda, some.world(size, transport) as world:
        some.run(world, lambda comm, _: body(comm, cuda, some))


def nccl_streams(some: Gpus, comm: Communicator) -> list[int]:
    """The streams that a rank's NCCL calls went to."""
    return [entry[3] for entry in list(some.machine.log) if entry[0] == "nccl" and entry[1] == comm.rank]


def test_a_cuda_tensor_is_its_own_array() -> None:
    def body(comm: Communicator, cuda: Cuda, some: Gpus) -> None:
        x = cuda.tensor(numbers(2, 3))
        array = as_array(x)
        assert isinstance(array, CudaTensor)
        assert array.inner.data_ptr() == x.inner.data_ptr()
        assert as_tensor(array) is array
        assert array.__dlpack_device__() == (2, comm.rank)

    on_ranks(body, "nccl")


def test_what_shows_the_shape_of_a_sparse_tensor_is_on_the_device_of_its_values() -> None:
    where, what = torch.zeros((1, 2), dtype=torch.int64, device="meta"), torch.ones((2, 5), device="meta")
    sparse = torch.sparse_coo_tensor(where, what, (3, 5), is_coalesced=True, check_invariants=False)
    form = form_of(sparse)
    assert form.shape == (0, 3, 5, 1)
    assert form_of(sparse, "average").shape == (0, 3, 5, 2)
    assert form.is_meta


def horovod(comm: Communicator, cuda: Cuda, some: Gpus) -> None:
    rank, size = comm.rank, comm.size
    with cuda.use(cuda.new_stream()):
        x = cuda.tensor(numbers(6) + rank)
        total = numbers(6) * size + sum(range(size))
        assert torch.equal(cuda.host(ops.allreduce_async(x, op="sum").synchronize()), total)
        assert torch.equal(cuda.host(x), numbers(6) + rank)
        assert ops.allreduce_async_(x, op="average").synchronize() is x
        assert torch.equal(cuda.host(x), total / size)
        several = [cuda.tensor(numbers(count)) for count in (3, 200)]
        for found, count in zip(ops.grouped_allreduce_(several, op="sum"), (3, 200), strict=True):
            assert torch.equal(cuda.host(found), numbers(count) * size)
        mine = cuda.tensor(torch.full((rank + 1, 2), float(rank)))
        found = cuda.host(ops.allgather_async(mine).synchronize())
        assert found[:, 0].tolist() == [float(peer) for peer in range(size) for _ in range(peer + 1)]
        several = [cuda.tensor(torch.empty((0, 3), dtype=torch.uint8)), mine]
        assert [cuda.host(one).shape[0] for one in ops.grouped_allgather_async(several).synchronize()] == [
            0,
            len(found),
        ]
        y = cuda.tensor(torch.full((3,), float(rank)))
        assert torch.equal(cuda.host(ops.broadcast_(y, 1)), torch.ones(3))
        rows = cuda.tensor(numbers(size, 2) + 10 * rank)
        found = cuda.host(ops.alltoall_async(rows).synchronize())
        assert torch.equal(found, torch.stack([numbers(size, 2)[rank] + 10 * peer for peer in range(size)]))
        both, counts = ops.alltoall_async(rows, [1] * size).synchronize()
        assert torch.equal(cuda.host(both), found)
        assert counts.tolist() == [1] * size
        part = ops.reducescatter_async(rows, op="sum").synchronize()
        assert torch.equal(cuda.host(part), numbers(size, 2)[rank : rank + 1] * size + 10 * sum(range(size)))


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize("size", [2, 3])
def test_horovods_operations(transport: str, size: int) -> None:
    on_ranks(horovod, transport, size)


OPTIONS = {
    "allreduce": dist.AllreduceOptions,
    "broadcast": dist.BroadcastOptions,
    "reduce_scatter": dist.ReduceScatterOptions,
    "reduce_scatter_single": dist.ReduceScatterOptions,
    "alltoall": dist.AllToAllOptions,
    "gather": dist.GatherOptions,
    "scatter": dist.ScatterOptions,
}


def process_group(comm: Communicator) -> ProcessGroup:
    """The backend's group over a communicator that somebody else closes."""
    return ProcessGroup(comm, None, MonitoredBarrier(None, comm.rank, comm.size), 60.0, contextlib.ExitStack())


def collectives_of_the_backend(asynchronous: bool, comm: Communicator, cuda: Cuda, some: Gpus) -> None:
    rank, size, group = comm.rank, comm.size, process_group(comm)

    def full(value: float, *shape: int) -> CudaTensor:
        return cuda.tensor(torch.full(shape, float(value)))

    def done(method: str, *args: Any, root: int = 0) -> None:
        opts = OPTIONS.get(method, AllgatherOptions)()
        opts.asyncOp = asynchronous
        if root:
            opts.rootRank = root
        getattr(group, method)(*args, opts=opts).wait()

    def same(tensor: Any, values: Any) -> None:
        assert cuda.host(tensor).reshape(-1).tolist() == [float(value) for value in values]

    with cuda.use(cuda.new_stream()):
        x = full(rank + 1, 3)
        done("allreduce", [x])
        same(x, [size * (size + 1) / 2] * 3)
        done("broadcast", [y := full(rank, 2)], root=1)
        same(y, [1, 1])
        outputs = [full(-1, 2, 2) for _ in range(size)]
        done("allgather", [outputs], [full(rank, 2, 2)])
        for peer, output in enumerate(outputs):
            same(output, [peer] * 4)
        whole = full(-1, size, 3)
        done("all_gather_single", whole, full(rank, 3))
        same(whole, [peer for peer in range(size) for _ in range(3)])
        wholes = [full(-1, size, 2), full(-1, size)]
        done("all_gather_single_coalesced", wholes, [full(rank, 2), full(rank, 1)])
        same(wholes[1], range(size))
        done("reduce_scatter", [output := full(-1, 2)], [[full(peer + 1, 2) for peer in range(size)]])
        same(output, [(rank + 1) * size] * 2)
        done("reduce_scatter_single", output, cuda.tensor(numbers(2 * size)))
        same(output, [(2 * rank + 1) * size, (2 * rank + 2) * size])
        outputs = [full(-1, peer + 1) for peer in range(size)]
        given = [full(10 * rank + peer, rank + 1) for peer in range(size)]
        done("alltoall", outputs, given)
        for peer, output in enumerate(outputs):
            same(output, [10 * peer + rank] * (peer + 1))
        outputs = [full(-1, 1) for _ in range(size)]
        done("gather", [outputs] if rank == 1 else [], [full(rank, 1)], root=1)
        if rank == 1:
            same(torch.cat(outputs), range(size))
        given = [[full(peer, 2) for peer in range(size)]] if rank == 0 else []
        done("scatter", [output := full(-1, 2)], given, root=0)
        same(output, [rank] * 2)
        tokens = [full(rank, 3), full(-1, 3)]
        sent = group.send([tokens[0]], (rank + 1) % size)
        group.recv([tokens[1]], (rank - 1) % size).wait()
        sent.wait()
        same(tokens[1], [(rank - 1) % size] * 3)
    group.shutdown()


@pytest.mark.parametrize("transport", WAYS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_collectives_of_the_backend(transport: str, asynchronous: bool) -> None:
    on_ranks(lambda *args: collectives_of_the_backend(asynchronous, *args), transport)


def test_a_call_goes_to_torchs_current_stream() -> None:
    def body(comm: Communicator, cuda: Cuda, some: Gpus) -> None:
        group, stream = process_group(comm), cuda.new_stream()
        opts = dist.AllreduceOptions()
        opts.asyncOp = False
        with cuda.use(stream):
            release = some.machine.gate(stream.cuda_stream)
            x = cuda.tensor(torch.ones(4))
            group.allreduce([x], opts)  # returns with nothing done, not even x
            y = x + x
            assert not some.machine.drained(stream.cuda_stream)
        comm.barrier()
        release()
        with cuda.use(stream):
            assert torch.equal(cuda.host(y), torch.full((4,), 2.0 * comm.size))
        assert nccl_streams(some, comm) == [stream.cuda_stream]
        group.shutdown()

    on_ranks(body, "nccl")


def test_outputs_that_nobody_waits_for_live_until_the_last_copies() -> None:
    def body(comm: Communicator, cuda: Cuda, some: Gpus) -> None:
        group = process_group(comm)
        group.allreduce([cuda.tensor(torch.ones(1))]).wait()
        comm.barrier()
        if comm.rank == 0:
            cuda.held = []
        comm.barrier()
        x = cuda.tensor(torch.full((4,), float(comm.rank)))
        outputs = [cuda.tensor(torch.full((4,), -1.0)) for _ in range(comm.size)]
        work = group.allgather([outputs], [x])
        wait_until(work.is_completed)
        del work, x, outputs
        gc.collect()
        comm.barrier()
        for let_go in cuda.held or ():
            let_go()
        comm.barrier()
        some.machine.synchronize(lambda: some.machine.drained(0))
        assert some.machine.violations == []
        group.shutdown()

    on_ranks(body, "nccl")


def test_a_wait_makes_the_stream_wait_for_the_last_copies_too() -> None:
    """One gate keeps the operation from beginning until everything is enqueued behind it, another one the copies."""

    def body(comm: Communicator, cuda: Cuda, some: Gpus) -> None:
        group = process_group(comm)
        group.allreduce([cuda.tensor(torch.ones(1))]).wait()
        produce, consume = cuda.new_stream(), cuda.new_stream()
        comm.barrier()
        if comm.rank == 0:
            cuda.held = []
        comm.barrier()
        with cuda.use(produce):
            release = some.machine.gate(produce.cuda_stream)
            x = cuda.tensor(torch.full((4,), float(comm.rank)))
            outputs = [cuda.tensor(torch.full((4,), -1.0)) for _ in range(comm.size)]
            work = group.allgather([outputs], [x])
        with cuda.use(consume):
            work.wait()  # at once: the gates are closed
            result = torch.cat(outputs)
        del work, x
        comm.barrier()
        release()
        some.machine.synchronize(lambda: some.machine.drained(produce.cuda_stream))
        assert not some.machine.drained(consume.cuda_stream)
        assert some.machine.drained(0)  # nobody else's stream waits
        for _ in range(3):  # so that the runtime forgets what it has done
            group.allreduce([cuda.tensor(torch.ones(1))])._works[0].wait()
        comm.barrier()
        for let_go in cuda.held or ():
            let_go()
        with cuda.use(consume):
            found = cuda.host(result).reshape(comm.size, 4)
        assert found[:, 0].tolist() == [float(peer) for peer in range(comm.size)]
        assert nccl_streams(some, comm)[-1] not in (0, produce.cuda_stream, consume.cuda_stream)
        group.shutdown()

    on_ranks(body, "nccl")


def test_compressors_refuse_a_bucket_on_a_gpu() -> None:
    from frontends.torch.ddp_comm_hooks import compression_hook

    def body(comm: Communicator, cuda: Cuda, some: Gpus) -> None:
        bucket: Any = SimpleNamespace(buffer=lambda: cuda.tensor(torch.ones(4)))
        with pytest.raises(TypeError, match=r"bucket: is on cuda:\d; .*host's memory"):
            compression_hook(None, bucket)  # type: ignore[arg-type]

    on_ranks(body, "nccl")
