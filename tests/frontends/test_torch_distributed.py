"""The torch.distributed backend: every collective against its definition, DDP and FSDP against gloo."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.failure import mismatched_calls
from tests.frontends.launch import TORCHRUN, output, ronde_run
from tests.frontends.pool import Pool, RankError, bound
from transports.rendezvous import TcpStore

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import torch.distributed as dist  # noqa: E402

# The names of torch 2.13, or those before it.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

Pools = Callable[[int], Pool]
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8")


@contextmanager
def group(path: str, backend: str = "ronde") -> Iterator[tuple[int, int]]:
    """Rank and size of a process group that meets at a URL."""
    import frontends.torch.distributed  # noqa: F401

    rank, size = int(os.environ["RONDE_RANK"]), int(os.environ["RONDE_SIZE"])
    seconds = timedelta(seconds=float(os.environ["RONDE_TIMEOUT"]))
    dist.init_process_group(backend, init_method=path, rank=rank, world_size=size, timeout=seconds)
    try:
        yield rank, size
    finally:
        dist.destroy_process_group()


def free_port() -> str:
    """A free address for the rendezvous of a process group."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{one.getsockname()[1]}"


@pytest.fixture
def meeting() -> str:
    """A free address for the rendezvous of a process group."""
    return free_port()


def every_collective(path: str) -> None:
    with group(path) as (rank, size):
        for name in DTYPES:
            collectives_of(getattr(torch, name), rank, size)
        objects_and_messages(rank, size)


def collectives_of(dtype: torch.dtype, rank: int, size: int) -> None:
    def full(value: float, *shape: int) -> torch.Tensor:
        return torch.full(shape or (5,), value, dtype=dtype)

    def same(x: torch.Tensor, y: torch.Tensor) -> None:
        assert x.dtype == y.dtype
        assert torch.equal(x, y), (dtype, x, y)

    total = size * (size + 1) / 2
    for op, value in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1)):
        x = full(rank + 1, 2, 3)
        dist.all_reduce(x, op=op)
        same(x, full(value, 2, 3))
    x = full(rank + 1, 3, 4).t()  # not contiguous
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.is_completed()
    same(x, full(total, 3, 4).t())
    scalar = torch.tensor(rank + 1, dtype=dtype)
    dist.all_reduce(scalar)
    assert scalar.item() == total
    x = full(rank)
    dist.broadcast(x, size - 1)
    same(x, full(size - 1))
    x = full(rank + 1)
    dist.reduce(x, 0)
    same(x, full(total if rank == 0 else rank + 1))
    outputs = [full(-1 if dtype.is_signed else 99, 2, 2) for _ in range(size)]
    dist.all_gather(outputs, full(rank, 2, 2))
    for peer, gathered in enumerate(outputs):
        same(gathered, full(peer, 2, 2))
    whole = full(99, size, 3)
    all_gather_single(whole, full(rank, 3))
    same(whole, torch.arange(size).to(dtype)[:, None].expand(size, 3))
    apart = full(99, 3, size).t()  # not contiguous
    all_gather_single(apart, full(rank, 1, 3))
    same(apart, whole)
    output = full(99, 2)
    dist.reduce_scatter(output, [full(peer + 1, 2) for peer in range(size)])
    same(output, full((rank + 1) * size, 2))
    reduce_scatter_single(output, torch.arange(2 * size).to(dtype))
    same(output, torch.arange(2 * rank, 2 * rank + 2).to(dtype) * size)
    parts = torch.arange(6 * size).to(dtype).reshape(2 * size, 3)
    aparts = [full(99, 3, 2).t() for _ in range(3)]  # not contiguous
    reduce_scatter_single(aparts[0], parts)
    with dist._coalescing_manager(async_ops=True) as manager:
        for apart in aparts[1:]:
            reduce_scatter_single(apart, parts)
    manager.wait()
    for apart in aparts:
        same(apart, parts[2 * rank : 2 * rank + 2] * size)
    outputs = [full(99, peer + 1) for peer in range(size)]
    dist.all_to_all(outputs, [full(10 * rank + peer, rank + 1) for peer in range(size)])
    for peer, output in enumerate(outputs):
        same(output, full(10 * peer + rank, peer + 1))
    whole = full(99, size, 2)
    dist.all_to_all_single(whole, torch.arange(2 * size).reshape(size, 2).to(dtype))
    same(whole, torch.arange(2 * rank, 2 * rank + 2).to(dtype).expand(size, 2))
    rows = [1] * size
    rows[(rank + 1) % size] = 2
    coming = [2 if (peer + 1) % size == rank else 1 for peer in range(size)]
    whole = full(99, size + 1, 2)
    dist.all_to_all_single(whole, full(rank, size + 1, 2), coming, rows)
    same(whole, torch.repeat_interleave(torch.arange(size), torch.tensor(coming)).to(dtype)[:, None].expand(-1, 2))
    # into rows of another shape, and into rows that are not contiguous
    for other, parts in (
        (full(99, 2 * size + 2), [2 * count for count in coming]),
        (full(99, 2, size + 1).t(), coming),
    ):
        dist.all_to_all_single(other, full(rank, size + 1, 2), np.array(parts, np.int8), tuple(rows))
        same(other.reshape(-1), whole.reshape(-1))
    outputs = [full(99) for _ in range(size)]
    dist.gather(full(rank), outputs if rank == 1 else None, dst=1)
    if rank == 1:
        for peer, output in enumerate(outputs):
            same(output, full(peer))
    output = full(99)
    dist.scatter(output, [full(peer) for peer in range(size)] if rank == 0 else None, src=0)
    same(output, full(rank))


def objects_and_messages(rank: int, size: int) -> None:
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * 100 * rank})
    assert [one["rank"] for one in found] == list(range(size))
    said: list[Any] = [("anything", rank)]
    dist.broadcast_object_list(said, src=1)
    assert said == [("anything", 1)]
    average = torch.tensor([rank, 1.0])
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    assert torch.equal(average, torch.tensor([(size - 1) / 2, 1.0]))
    tokens = [torch.full((3,), float(rank)), torch.zeros(3)]
    right, left = (rank + 1) % size, (rank - 1) % size
    sends = [dist.P2POp(dist.isend, tokens[0], right), dist.P2POp(dist.irecv, tokens[1], left)]
    for work in dist.batch_isend_irecv(sends):
        work.wait()
    assert tokens[1][0] == left
    if rank == 0:
        dist.send(torch.arange(4), 1, tag=7)
    elif rank == 1:
        came = torch.zeros(4, dtype=torch.int64)
        assert dist.recv(came, 0, tag=7) == 0
        assert torch.equal(came, torch.arange(4))
    some = dist.new_group([0, 1])
    if rank < 2:
        x = torch.tensor([rank + 1])
        dist.all_reduce(x, group=some)
        assert x.item() == 3
    dist.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3])
def test_every_collective_on_every_dtype(pool: Pools, meeting: str, size: int, transport: str) -> None:
    pool(size).run(every_collective, meeting, transport=transport)


def reductions_of_bool(path: str, backend: str) -> list[Any]:
    """Results of every reduction of bool tensors by SUM and PRODUCT."""
    with group(path, backend) as (rank, _):
        rows = torch.tensor([[False, False, True, True], [False, True, False, True]])
        ours = rows[rank]
        results: list[Any] = []
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT):
            everywhere, single, scattered, share, empty = (
                ours.clone(),
                ours.clone(),
                ours.clone(),
                ours[:2].clone(),
                ours[:0],
            )
            dist.all_reduce(everywhere, op=op)
            dist.reduce(single, 0, op=op)
            dist.reduce_scatter(scattered, [ours, ~ours], op=op)
            reduce_scatter_single(share, ours, op=op)
            several = [ours.clone(), ~ours]
            dist.all_reduce_coalesced(several, op=op)
            dist.all_reduce(empty, op=op)
            alone = single.tolist() if rank == 0 else None  # elsewhere gloo leaves a partial result
            results.append(
                [everywhere.tolist(), alone, scattered.tolist(), share.tolist(), [x.tolist() for x in several]]
            )
        return results


def test_sums_and_products_of_bool_are_those_of_gloo(pool: Pools) -> None:
    ours = pool(2).run(reductions_of_bool, free_port(), "ronde")
    assert ours == pool(2).run(reductions_of_bool, free_port(), "gloo")
    assert ours[0][0][0] == [False, True, True, True]
    assert ours[0][1][0] == [False, False, False, True]


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.Linear(32, 4)
    )


def losses_of(net: Any, optimizer: torch.optim.Optimizer, rank: int, steps: int) -> list[float]:
    """The losses of so many steps, each on other rows of this rank."""
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 12, generator=generator)
        loss = torch.nn.functional.mse_loss(net(x), x[:, :4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sharded_model(size: int) -> torch.nn.Module:
    """The model as FSDP2 shards it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = model()
    mesh = init_device_mesh("cpu", (size,))
    for layer in net.children():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def train(path: str, backend: str, hook: str = "") -> tuple[list[float], list[Any]]:
    """Losses and final parameters of some steps of DDP."""
    with group(path, backend) as (rank, _):
        return train_here(rank, hook)  # the model is gone before the group is: gloo hangs otherwise


def train_here(rank: int, hook: str) -> tuple[list[float], list[Any]]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    ddp = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.002)
    if hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook.startswith("builtin"):
        ddp._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, hook.removeprefix("builtin ")))
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses = losses_of(ddp, optimizer, rank, 6)
    return losses, [parameter.detach().numpy().copy() for parameter in ddp.parameters()]


@pytest.mark.parametrize("hook", ["", "fp16", "powersgd", "builtin ALLREDUCE", "builtin FP16_COMPRESS"])
def test_ddp_trains_as_on_gloo(pool: Pools, hook: str) -> None:
    ours = pool(2).run(train, free_port(), "ronde", hook)
    # gloo itself hangs in PowerSGD's callbacks; there the uncompressed run is the measure
    theirs = pool(2).run(train, free_port(), "gloo", "" if hook == "powersgd" else hook)
    for (losses, parameters), (right, _) in zip(ours, theirs, strict=True):
        assert losses[:3] == pytest.approx(right[:3], rel=1e-6 if not hook else 2e-2)
        if hook != "powersgd":
            assert losses == pytest.approx(right, rel=1e-5 if not hook else 2e-2)
        for mine, other in zip(parameters, ours[0][1], strict=True):
            assert mine.tobytes() == other.tobytes()


def shard(path: str, backend: str) -> list[float]:
    """Losses of some steps of FSDP2."""
    with group(path, backend) as (rank, size):
        return shard_here(rank, size)


def shard_here(rank: int, size: int) -> list[float]:
    net = sharded_model(size)
    return losses_of(net, torch.optim.AdamW(net.parameters(), lr=0.01), rank, 4)


def test_fsdp_trains_as_on_gloo(pool: Pools) -> None:
    ours = pool(2).run(shard, free_port(), "ronde")
    theirs = pool(2).run(shard, free_port(), "gloo")
    for losses, right in zip(ours, theirs, strict=True):
        assert losses == pytest.approx(right, rel=1e-5)


def callbacks(path: str) -> None:
    with group(path) as (rank, size):
        x = torch.ones(3) * (rank + 1)
        future = dist.all_reduce(x, async_op=True).get_future()

        def again(first: Any) -> torch.Tensor:
            y = first.value()[0] * 2
            dist.all_reduce(y, async_op=True).get_future().wait()  # waits inside of a callback
            return y

        total = size * (size + 1) / 2
        assert future.then(again).wait()[0] == total * 2 * size
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(20)]
        assert all(work.get_future().wait()[0][0] == size for work in works)


def test_callbacks_of_futures_may_wait_for_other_operations(pool: Pools, meeting: str) -> None:
    pool(2).run(callbacks, meeting)


def embed(path: str, backend: str) -> Any:
    """The weights after some steps of a network with sparse gradients."""
    with group(path, backend) as (rank, _):
        return embed_here(rank)


def embed_here(rank: int) -> Any:
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 2))
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(3):
        words = torch.tensor([[rank, 3, 3], [step, 5 + rank, rank]])
        optimizer.zero_grad()
        ddp(words).square().sum().backward()
        optimizer.step()
    total = torch.sparse_coo_tensor([[rank, 2, 2]], [1.0, 2.0, 3.0], (4,), check_invariants=True)
    dist.all_reduce(total)
    assert torch.equal(total.to_dense(), torch.tensor([1.0, 1.0, 10.0, 0.0]))
    if dist.get_backend() == "ronde":
        with pytest.raises(ValueError, match=r"op=.*SUM only"):
            dist.all_reduce(total, op=dist.ReduceOp.MAX)
    return net[0].weight.detach().numpy().copy()


def test_sparse_gradients_as_on_gloo(pool: Pools) -> None:
    one, two = pool(2).run(embed, free_port(), "ronde")
    right, _ = pool(2).run(embed, free_port(), "gloo")
    assert one.tobytes() == two.tobytes()
    assert one == pytest.approx(right, rel=1e-5)


def toolbox(path: str, checkpoint: str) -> None:
    """Torch modules that use process groups."""
    import torch.distributed.checkpoint as checkpoints
    from torch.distributed.algorithms.join import Join
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with group(path) as (rank, size):
        ddp = torch.nn.parallel.DistributedDataParallel(model())
        with Join([ddp]):
            for _ in range(2 + rank):
                ddp(torch.ones(2, 12)).sum().backward()
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            ddp(torch.ones(2, 12)).sum().backward()
            optimizer.step()
        every = [torch.zeros(4, 32) for _ in range(size)]
        dist.all_gather(every, ddp.module[3].weight.detach())
        assert all(torch.equal(one, every[0]) for one in every)
        mesh = init_device_mesh("cpu", (size,))
        x = torch.arange(24.0).reshape(4, 6)
        parts = distribute_tensor(x, mesh, [Shard(0)])
        whole = distribute_tensor(x.t().contiguous(), mesh, [Replicate()])
        assert torch.equal((parts @ whole).full_tensor(), x @ x.t())
        net, alone = model(), model()
        parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        assert torch.allclose(net(torch.ones(3, 12)), alone(torch.ones(3, 12)), atol=1e-5)
        state = {"weight": parts, "step": 5}
        checkpoints.save(state, checkpoint_id=checkpoint)
        empty = {"weight": distribute_tensor(torch.zeros(4, 6), mesh, [Shard(0)]), "step": 0}
        checkpoints.load(empty, checkpoint_id=checkpoint)
        assert torch.equal(empty["weight"].full_tensor(), x)
        assert empty["step"] == 5
        del ddp, optimizer


def test_torch_modules_that_use_backends(pool: Pools, meeting: str, tmp_path: Path) -> None:
    pool(2).run(toolbox, meeting, str(tmp_path))


def fail_in_backward(path: str, hook: str) -> str:
    """The error of a backward pass on rank 0 while rank 1 calls something else."""
    with group(path) as (rank, _):
        ddp = torch.nn.parallel.DistributedDataParallel(model())
        ddp._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, hook))
        loss = ddp(torch.ones(2, 12)).sum()
        begin = loss.backward if rank == 0 else lambda: dist.all_reduce(torch.ones(7))
        with pytest.raises(RuntimeError) as caught:
            begin()
        del begin, ddp, loss
        return str(caught.value)


@pytest.mark.parametrize("hook", ["ALLREDUCE", "FP16_COMPRESS"])
def test_failures_in_backward_are_errors_with_the_cause(pool: Pools, meeting: str, hook: str) -> None:
    for text in pool(2).run(fail_in_backward, meeting, hook):
        assert "the ranks' calls do not fit together" in text
        assert "7 elements" in text


def join_unevenly(path: str, backend: str, initial: bool) -> list[Any]:
    """Gradients of DDP's join, of 2 steps on rank 0 and 4 on rank 1."""
    with group(path, backend) as (rank, _):
        return join_unevenly_here(rank, initial)


def join_unevenly_here(rank: int, initial: bool) -> list[Any]:
    net = torch.nn.Linear(3, 1, bias=False)
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    gradients = []
    with ddp.join(divide_by_initial_world_size=initial):
        for step in range(2 + 2 * rank):
            ddp.zero_grad()
            ddp(torch.full((1, 3), float(rank + step))).sum().backward()
            gradients.append(net.weight.grad[0].tolist())
    return gradients


@pytest.mark.parametrize("initial", [True, False])
def test_ddp_with_uneven_inputs_divides_as_on_gloo(pool: Pools, initial: bool) -> None:
    ours = pool(2).run(join_unevenly, free_port(), "ronde", initial)
    assert ours == pool(2).run(join_unevenly, free_port(), "gloo", initial)
    assert ours[1][-1] == ([2.0] * 3 if initial else [4.0] * 3)


def compiled_ddp(path: str, backend: str, static_graph: bool) -> list[float]:
    """Losses of some steps of compiled DDP, with the compiler reset in between."""
    with group(path, backend) as (rank, _):
        return compiled_ddp_here(rank, static_graph)


def compiled_ddp_here(rank: int, static_graph: bool) -> list[float]:
    ddp = torch.nn.parallel.DistributedDataParallel(model(), static_graph=static_graph)
    compiled = torch.compile(ddp, backend="aot_eager")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(5):
        if step == 3:
            torch.compiler.reset()
        x = torch.randn(8, 12, generator=generator)
        loss = torch.nn.functional.mse_loss(compiled(x), x[:, :4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.compiler.reset()  # the compiler keeps the model, and gloo hangs if that outlives the group
    return losses


@pytest.mark.parametrize("static_graph", [False, True])
def test_compiled_ddp_trains_as_on_gloo(pool: Pools, static_graph: bool) -> None:
    ours = pool(2).run(compiled_ddp, free_port(), "ronde", static_graph)
    theirs = pool(2).run(compiled_ddp, free_port(), "gloo", static_graph)
    for losses, right in zip(ours, theirs, strict=True):
        assert losses == pytest.approx(right, rel=1e-5)


def compiled_functions(path: str) -> None:
    with group(path) as (rank, size):

        @torch.compile(backend="aot_eager")
        def doubled_total(x: torch.Tensor) -> torch.Tensor:
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            return x * 2

        @torch.compile(backend="aot_eager")
        def gathered(x: torch.Tensor) -> torch.Tensor:
            whole = torch.empty(size)
            work = dist.all_gather_into_tensor(whole, x + 1, async_op=True)
            assert work is not None
            work.get_future().wait()
            dist.barrier()
            return whole.sum()

        for step in range(5):
            assert torch.equal(doubled_total(torch.full((3,), rank + step)), torch.full((3,), 2 + 4 * step))
            assert gathered(torch.tensor([float(rank)])) == 3
        torch.compiler.reset()


def test_compiled_functions_with_asynchronous_collectives(pool: Pools, meeting: str) -> None:
    pool(2).run(compiled_functions, meeting)


def functional(path: str) -> None:
    from torch.distributed import _functional_collectives as functional_collectives

    with group(path) as (rank, size):
        x = functional_collectives.all_reduce(torch.ones(3) * (rank + 1), "sum", dist.group.WORLD)
        assert x[0] == size * (size + 1) / 2
        y = functional_collectives.all_gather_tensor(torch.tensor([rank]), 0, dist.group.WORLD)
        assert torch.equal(y + 0, torch.arange(size))
        z = functional_collectives.reduce_scatter_tensor(torch.arange(2 * size), "sum", 0, dist.group.WORLD)
        assert torch.equal(z + 0, torch.arange(2 * rank, 2 * rank + 2) * size)


def test_functional_collectives(pool: Pools, meeting: str) -> None:
    pool(2).run(functional, meeting)


def coalesced(path: str) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    with group(path) as (rank, size):
        xs = [torch.ones(count) * (rank + 1) for count in (1, 5, 100)]
        with _coalescing_manager():
            for x in xs:
                dist.all_reduce(x)
        assert all(bool((x == size * (size + 1) / 2).all()) for x in xs)
        outputs = [torch.empty(size * 2), torch.empty(size * 3)]
        with _coalescing_manager(async_ops=True) as manager:
            all_gather_single(outputs[0], torch.ones(2) * rank)
            all_gather_single(outputs[1], torch.ones(3) * rank)
        manager.wait()
        assert torch.equal(outputs[1].reshape(size, 3)[:, 0], torch.arange(size).float())


def test_coalesced_operations(pool: Pools, meeting: str) -> None:
    pool(2).run(coalesced, meeting)


def coalesced_lists(path: str) -> None:
    with group(path) as (rank, size):
        lists = [[torch.zeros(2, 3), torch.zeros(4), torch.zeros(0)] for _ in range(size)]
        given = [torch.full((3, 2), rank + 0.5).t(), torch.full((4,), float(rank)), torch.zeros(0)]
        with pytest.warns(FutureWarning, match="all_gather_coalesced"):
            dist.all_gather_coalesced(lists, given)
        for peer, (first, second, _) in enumerate(lists):
            assert torch.equal(first, torch.full((2, 3), peer + 0.5))
            assert torch.equal(second, torch.full((4,), float(peer)))


def test_lists_of_tensors_are_gathered_as_one_operation(pool: Pools, meeting: str) -> None:
    pool(2).run(coalesced_lists, meeting)


def finished_futures(path: str) -> None:
    with group(path) as (_, size):
        for _ in range(50):
            work = dist.all_reduce(torch.ones(1), async_op=True)
            work.wait()
            future = work.get_future()
            assert future.done()
            assert future.value()[0].item() == size


def test_the_future_of_an_ended_operation_is_done(pool: Pools, meeting: str) -> None:
    pool(2).run(finished_futures, meeting)


def asked_of_groups(path: str, checkpoint: str) -> None:
    """The methods of a group, besides collectives, that torch's own code calls."""
    import torch.distributed.checkpoint as checkpoints
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with group(path) as (rank, size):
        net = model()
        fully_shard(net, mesh=init_device_mesh("cpu", (size,)))
        whole = {name: 2 * value for name, value in model().state_dict().items()} if rank == 0 else {}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(net, whole, options=options)
        for mine, other in zip(net.parameters(), model().parameters(), strict=True):
            assert torch.equal(mine.full_tensor(), 2 * other)
        checkpoints.async_save(net.state_dict(), checkpoint_id=checkpoint).result()
        assert (Path(checkpoint) / ".metadata").exists()


def test_state_dicts_from_one_rank_and_checkpoints_aside(pool: Pools, meeting: str, tmp_path: Path) -> None:
    pool(2).run(asked_of_groups, meeting, str(tmp_path))


def with_a_device(path: str) -> None:
    import frontends.torch.distributed  # noqa: F401

    rank, size = int(os.environ["RONDE_RANK"]), int(os.environ["RONDE_SIZE"])
    with pytest.MonkeyPatch.context() as patch:  # torch takes no device_id where it finds no accelerator
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
        patch.setattr(torch.accelerator, "device_count", lambda: size)
        device = torch.device("cuda", rank)
        dist.init_process_group("ronde", init_method=path, rank=rank, world_size=size, device_id=device)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size
    dist.destroy_process_group()


def test_a_group_may_be_made_with_a_device(pool: Pools, meeting: str) -> None:
    pool(2).run(with_a_device, meeting)


def timeouts(path: str) -> None:
    with group(path) as (rank, size):
        brief, x = dist.new_group(), torch.ones(1)
        dist.barrier()
        brief.set_timeout(timedelta(seconds=2))
        dist.all_reduce(x, group=brief)
        assert x.item() == size
        if rank == 0:
            with pytest.raises(dist.DistBackendError, match=r"rank 0 waited .*rank 1"):
                dist.all_reduce(x, group=brief)
            with pytest.raises(dist.DistBackendError):
                dist.all_reduce(x, group=brief, async_op=True).wait()
        dist.barrier()


def test_the_timeout_of_a_group_can_be_changed(pool: Pools, meeting: str) -> None:
    pool(2).run(timeouts, meeting)


def disagree(path: str) -> str:
    with group(path) as (rank, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(mismatched_calls, "_TABLE_SECONDS", bound(20))  # a busy machine may take longer than usual
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(3 + rank))
        return str(caught.value)


def bad_arguments(path: str) -> None:
    with group(path) as (_, size):
        with pytest.raises(ValueError, match="2, one for each rank"):
            dist.all_gather([torch.ones(2)] * 3, torch.ones(2))
        with pytest.raises(ValueError, match="first dimension"):
            dist.all_to_all_single(torch.ones(3), torch.ones(3))
        with pytest.raises(ValueError, match=r"output_split_sizes=\[3\]: .*2 integers"):
            dist.all_to_all_single(torch.ones(3), torch.ones(3), [3], [2, 1])
        with pytest.raises(ValueError, match=r"input_split_sizes=\[-1, 4\]: .* 3 together"):
            dist.all_to_all_single(torch.ones(3), torch.ones(3), [2, 1], [-1, 4])
        for wrong in (5, "12", torch.tensor(3)):
            with pytest.raises(TypeError, match=r"output_split_sizes=.*list of integers"):
                dist.all_to_all_single(torch.ones(3), torch.ones(3), wrong, [2, 1])
        with pytest.raises(ValueError, match=r"input_split_sizes=\[tensor.*2 integers"):
            dist.all_to_all_single(torch.ones(3), torch.ones(3), [2, 1], torch.tensor([2, 1]))
        with pytest.raises(TypeError, match=r"input: .*torch.float64, .*torch.float32"):
            reduce_scatter_single(torch.ones(2), torch.ones(2 * size, dtype=torch.float64))
        with pytest.raises(ValueError, match=r"output_lists: .*\[1, 2\], .*2"):
            dist.group.WORLD.allgather_coalesced([[torch.ones(1)], [torch.ones(1)] * 2], [torch.ones(1)])
        with pytest.raises(TypeError, match="dense"):
            dist.broadcast(torch.ones(3).to_sparse(), 0)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == size


def disagree_and_read_late(path: str) -> str:
    """Rank 1 reads the calls of both ranks when rank 0 has left the group, and would have ended the store."""
    read = TcpStore.get

    def late(store: TcpStore, key: str, deadline: float) -> bytes:
        if "mismatch/" in key:
            time.sleep(0.2)
        return read(store, key, deadline)

    with pytest.MonkeyPatch.context() as patch:
        if os.environ["RONDE_RANK"] == "1":
            patch.setattr(TcpStore, "get", late)
        return disagree(path)


def test_the_store_of_rank_0_serves_until_the_others_have_left(pool: Pools) -> None:
    for text in pool(2).run(disagree_and_read_late, free_port()):
        assert "rank 0: allreduce(float32, 3 elements" in text
        assert "rank 1: allreduce(float32, 4 elements" in text


def test_errors(pool: Pools) -> None:
    for text in pool(2).run(disagree, free_port()):
        assert "rank 0: allreduce(float32, 3 elements" in text
        assert "rank 1: allreduce(float32, 4 elements" in text
    pool(2).run(bad_arguments, free_port())


def test_a_rank_that_leaves_is_named(pool: Pools, meeting: str) -> None:
    with pytest.raises(RankError, match=r"exit code 3"):
        pool(2).run(leave, meeting)


def leave(path: str) -> None:
    with group(path) as (rank, _):
        if rank == 1:
            os._exit(3)
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            dist.all_reduce(torch.ones(3))


def test_a_group_follows_another_at_the_same_address(pool: Pools, meeting: str) -> None:
    assert pool(2).run(one_group_after_another, meeting) == [[3.0, 5.0, 7.0]] * 2


def one_group_after_another(path: str) -> list[float]:
    sums = []
    for number in range(3):
        with group(path) as (rank, _):
            x = torch.ones(2) * (rank + 1 + number)
            dist.all_reduce(x)
            sums.append(x[0].item())
            if rank == 0:
                time.sleep(0.1)  # the other one has left the group by then
    return sums


SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("ronde")
x = torch.ones(2) * (dist.get_rank() + 1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
model(x).sum().backward()
dist.all_reduce(x)
import sys; sys.stdout.write(f"sum {x.tolist()} {type(dist.group.WORLD).__name__}" + chr(10))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", ["torchrun", "ronde run"])
def test_an_unmodified_script_under_its_launcher(tmp_path: Path, launcher: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    text = output(*([*TORCHRUN, 2] if launcher == "torchrun" else ronde_run(2)), script)
    assert text.count("sum [3.0, 3.0] ProcessGroup") == 2, text
