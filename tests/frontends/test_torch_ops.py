"""frontends.torch: every operation in all its forms, gradients, errors, names, process sets and join."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.frontends.launch import python
from tests.frontends.pool import ROOT, Pool

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import frontends.torch as hvd  # noqa: E402

Pools = Callable[[int], Pool]
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")


def in_world(body: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The program of a rank: `body(rank, size, *args)` between init and shutdown."""
    hvd.init(**options)
    try:
        return body(hvd.rank(), hvd.size(), *args)
    finally:
        hvd.shutdown()


def all_forms(rank: int, size: int) -> None:
    for name in DTYPES:
        dtype = getattr(torch, name)
        x = torch.tensor([[1, 2, 3], [4, 5, 6]]).to(dtype) * (rank + 1)
        total = torch.tensor([[1, 2, 3], [4, 5, 6]]) * (size * (size + 1) // 2)
        before = x.clone()
        assert torch.equal(hvd.allreduce(x, op=hvd.Sum), total.to(dtype))
        assert torch.equal(hvd.allreduce(x, average=False), total.to(dtype))
        assert torch.equal(x, before)
        average = (total.double() / size).to(dtype) if dtype.is_floating_point else (total / size).trunc().to(dtype)
        assert torch.equal(hvd.allreduce(x), average), (name, hvd.allreduce(x), average)
        assert torch.equal(hvd.allreduce(x, op=hvd.Max), (before // (rank + 1) * size))
        y = x.clone()
        assert hvd.allreduce_(y, op=hvd.Min) is y
        assert torch.equal(y, before // (rank + 1))
        handle = hvd.allreduce_async_(y, op=hvd.Sum, name=f"later.{name}")
        assert hvd.synchronize(handle) is y
        assert hvd.poll(handle)
        transposed = x.t().clone().t()
        assert torch.equal(hvd.allreduce(transposed, op=hvd.Sum), total.to(dtype))
        one, two = hvd.grouped_allreduce([x, x[0]], op=hvd.Sum)
        assert torch.equal(one, total.to(dtype))
        assert torch.equal(two, total[0].to(dtype))
        ys = [x.clone(), x[1].clone()]
        assert hvd.grouped_allreduce_(ys, op=hvd.Sum)[1] is ys[1]
        assert torch.equal(ys[1], total[1].to(dtype))
        rows = hvd.allgather(torch.full((rank + 1, 2), rank).to(dtype))
        assert rows[:, 0].tolist() == [peer for peer in range(size) for _ in range(peer + 1)]
        assert rows.dtype == dtype
        wide, narrow = hvd.grouped_allgather([x, x[:, 0].contiguous()])
        assert wide.shape == (2 * size, 3)
        assert narrow.shape == (2 * size,)
        sent = hvd.broadcast(torch.full((3,), rank).to(dtype), size - 1)
        assert torch.equal(sent, torch.full((3,), size - 1).to(dtype))
        kept = torch.full((3,), rank).to(dtype)
        assert hvd.broadcast_(kept, 0) is kept
        assert kept.sum() == 0
        came = hvd.alltoall(torch.arange(2 * size).to(dtype))
        assert torch.equal(came, torch.arange(2 * rank, 2 * rank + 2).repeat(size).to(dtype))
        uneven = torch.arange(size * (rank + 1)).to(dtype)
        came = hvd.synchronize(hvd.alltoall_async(uneven))
        assert torch.equal(came, hvd.alltoall(uneven))
        assert came.numel() == size * (size + 1) // 2
        came, counts = hvd.alltoall(torch.full((size + rank,), rank).to(dtype), [1] * (size - 1) + [1 + rank])
        expected = [1 + peer if rank == size - 1 else 1 for peer in range(size)]
        assert counts.tolist() == expected
        assert torch.equal(came, torch.repeat_interleave(torch.arange(size), torch.tensor(expected)).to(dtype))
        given = torch.tensor([300] * size if rank else [1] * size, dtype=torch.int64 if rank else torch.int8)
        came, counts = hvd.alltoall(torch.ones(int(given.sum(dtype=torch.int64))).to(dtype), given)
        assert counts.dtype == (torch.int64 if rank else torch.int32)
        assert counts.tolist() == [1] + [300] * (size - 1)  # more than an int8 holds
        part = hvd.reducescatter(torch.arange(2 * size).to(dtype), op=hvd.Sum)
        assert torch.equal(part, torch.arange(2 * rank, 2 * rank + 2).to(dtype) * size)
        parts = hvd.grouped_reducescatter([torch.ones(size).to(dtype), torch.ones(size, 2).to(dtype)], op=hvd.Sum)
        assert [tuple(one.shape) for one in parts] == [(1,), (1, 2)]
    assert hvd.allreduce(torch.tensor(float(rank))).item() == (size - 1) / 2
    assert hvd.allreduce(torch.empty(0)).numel() == 0
    for kind in (hvd.Compression.fp16, hvd.Compression.bf16):
        assert torch.equal(
            hvd.allreduce(torch.ones(4) * rank, compression=kind, op=hvd.Sum), torch.ones(4) * sum(range(size))
        )
    scaled = hvd.allreduce(torch.ones(3) * 8, op=hvd.Sum, prescale_factor=0.5, postscale_factor=0.25)
    assert torch.equal(scaled, torch.ones(3) * size)
    sparse = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (4 + size,))
    dense = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)().to_dense()
    right = torch.zeros(4 + size)
    for peer in range(size):
        right[peer] += 1
        right[3] += 2
    assert torch.equal(dense, right)
    hvd.barrier()
    assert hvd.is_initialized()
    assert hvd.is_homogeneous()
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, size, 0, 1)


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp"), (4, "shm")])
def test_every_operation_in_all_forms(pool: Pools, size: int, transport: str) -> None:
    pool(size).run(in_world, all_forms, transport=transport)


def gradients(rank: int, size: int) -> None:
    def leaf(*shape: int) -> torch.Tensor:
        return torch.ones(*shape, requires_grad=True)

    weights = torch.arange(3.0) + rank
    mean = torch.arange(3.0) + (size - 1) / 2
    x = leaf(3)
    (hvd.allreduce(x) * weights).sum().backward()
    assert torch.allclose(x.grad, mean)
    x = leaf(3)
    (hvd.allreduce(x, op=hvd.Sum) * weights).sum().backward()
    assert torch.allclose(x.grad, mean * size)
    x, y = leaf(3), leaf(2)
    one, two = hvd.grouped_allreduce([x, y], op=hvd.Sum)
    ((one * weights).sum() + two.sum()).backward()
    assert torch.allclose(x.grad, mean * size)
    assert torch.allclose(y.grad, torch.full((2,), float(size)))
    x = leaf(rank + 1, 3)
    whole = hvd.allgather(x)
    (whole * weights).sum().backward()
    assert torch.allclose(x.grad, mean.expand(rank + 1, 3))
    x = leaf(3)
    (hvd.broadcast(x, 1) * weights).sum().backward()
    assert torch.allclose(x.grad, mean if rank == 1 else torch.zeros(3))
    x = leaf(3)
    (hvd.broadcast(x, 1) * torch.inf).sum().backward()
    assert x.grad.tolist() == [torch.inf if rank == 1 else 0.0] * 3
    x = leaf(3)
    (slope,) = torch.autograd.grad((hvd.broadcast(x, 1) ** 2).sum(), x, create_graph=True)
    slope.sum().backward()
    assert torch.allclose(x.grad, torch.full((3,), 2 / size if rank == 1 else 0.0))
    x = leaf(size, 3)
    (hvd.alltoall(x) * weights).sum().backward()
    assert torch.allclose(x.grad, torch.arange(3.0) + torch.arange(float(size))[:, None])
    x = leaf(size, 3)
    (hvd.reducescatter(x, op=hvd.Sum) * weights).sum().backward()
    assert torch.allclose(x.grad, (torch.arange(3.0) + torch.arange(float(size))[:, None]) * size)
    x = leaf(size, 3)
    (hvd.reducescatter(x) * weights).sum().backward()
    assert torch.allclose(x.grad, torch.arange(3.0) + torch.arange(float(size))[:, None])


def test_gradients(pool: Pools) -> None:
    pool(2).run(in_world, gradients)
    pool(3).run(in_world, gradients, transport="tcp")


def mistakes(rank: int, size: int) -> None:
    for wrong in (
        lambda: hvd.allreduce(torch.ones(3 + rank), name="shape"),
        lambda: hvd.allreduce(torch.ones(3, dtype=[torch.float32, torch.float64][rank]), name="dtype"),
        lambda: hvd.allreduce(torch.ones(3), name="op", op=[hvd.Sum, hvd.Min][rank]),
        lambda: hvd.broadcast(torch.ones(3), rank, name="root"),
        lambda: hvd.allgather(torch.ones(2, 3 + rank), name="rows"),
        lambda: hvd.sparse_allreduce_async(torch.eye(2, 3 + rank).to_sparse(), "sparse", hvd.Sum)(),
        lambda: hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "sparse", [hvd.Sum, hvd.Average][rank])(),
    ):
        with pytest.raises(RuntimeError, match=r"(?s)rank 0: .*rank 1: ") as caught:
            wrong()
        assert isinstance(caught.value, hvd.HorovodInternalError)
        assert caught.value.__cause__ is not None
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).sum() == 2 * size
    for splits in ([1], [1, 1, 1], [3, -1], [5, 5], [1.0, 1.0], torch.tensor([[1], [1]])):
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(torch.ones(2), splits)
    for alltoall in (hvd.alltoall, hvd.alltoall_async):
        with pytest.raises(ValueError, match=r"tensor: .*\(3,\).* first dimension .*2 ranks"):
            alltoall(torch.ones(3))
        with pytest.raises(ValueError, match=r"tensor: .*\(\),"):
            alltoall(torch.tensor(1.0), [1, 1])
    with pytest.raises(ValueError, match="root_rank=7"):
        hvd.broadcast(torch.ones(2), 7)
    with pytest.raises(ValueError, match="op='median'"):
        hvd.allreduce(torch.ones(2), op="median")
    with pytest.raises(hvd.HorovodInternalError, match="Average and Sum only"):
        hvd.reducescatter(torch.ones(2), op=hvd.Max)
    with pytest.raises(ValueError, match="op and average"):
        hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)
    with pytest.raises(TypeError, match="dense"):
        hvd.allreduce(torch.ones(2).to_sparse())
    for function, wrong in itertools.product((hvd.synchronize, hvd.poll), (3, None, [], torch.ones(2))):
        with pytest.raises(TypeError, match=rf"handle={re.escape(repr(wrong))}: .*allreduce_async.*not "):
            function(wrong)
    first = hvd.allreduce_async(torch.ones(2) * (rank + 1), name="twice") if rank == 0 else None
    if first is not None:
        assert not hvd.poll(first)
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(torch.ones(2), name="twice")
    hvd.barrier()
    assert hvd.synchronize(first or hvd.allreduce_async(torch.ones(2) * 2, name="twice"))[0] == 1.5
    for begin in (hvd.allreduce_async_, lambda tensor, **options: hvd.grouped_allreduce_async_([tensor], **options)):
        for other in (slice(None), slice(2, 3)):
            x = torch.ones(3)
            if rank == 1:  # the calls of rank 0 stay in flight until its mistake is made
                hvd.barrier()
            handles = [begin(x[:2], name="a", op=hvd.Sum), begin(x[2:], name="b", op=hvd.Sum)]
            if rank == 0:
                with pytest.raises(ValueError, match=r"name='.*c': .*memory"):  # it would be added up twice
                    begin(x[other], name="c", op=hvd.Sum)
                hvd.barrier()
            for handle in handles:
                hvd.synchronize(handle)
            assert x.tolist() == [size] * 3
    x = torch.ones(3)
    hvd.grouped_allreduce_([x, x[1:]], op=hvd.Sum)
    assert x.tolist() == [size] * 3


def test_mistakes_raise_everywhere_and_nothing_is_lost(pool: Pools) -> None:
    pool(2).run(in_world, mistakes)


def shuffled(rank: int, size: int) -> None:
    names = [f"tensor.{number}" for number in range(500)]
    random.Random(rank).shuffle(names)
    handles: dict[str, Any] = {}

    def submit(mine: list[str]) -> None:
        for name in mine:
            value = float(name.rpartition(".")[2])
            handles[name] = hvd.allreduce_async(torch.full((1 + int(value) % 50,), value + rank), name=name, op=hvd.Sum)

    threads = [threading.Thread(target=submit, args=(names[start::3],)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in sorted(names):
        value = float(name.rpartition(".")[2])
        result = hvd.synchronize(handles[name])
        assert torch.equal(result, torch.full_like(result, value * size + sum(range(size))))


@pytest.mark.parametrize(("size", "transport"), [(2, "tcp"), (3, "shm")])
def test_500_tensors_in_different_orders_from_3_threads(pool: Pools, size: int, transport: str) -> None:
    pool(size).run(in_world, shuffled, transport=transport)


def uneven(rank: int, size: int) -> int:
    for step in range(3 + rank):
        result = hvd.allreduce(torch.ones(2), name=f"step.{step}")
        present = sum(1 for peer in range(size) if step < 3 + peer)
        assert torch.allclose(result, torch.full((2,), present / size))
        hvd.allreduce(torch.ones(2))
    last = hvd.join()
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [size, size], "those without a name are counted anew"
    return last


def test_join_with_uneven_data(pool: Pools) -> None:
    assert set(pool(3).run(in_world, uneven)) == {2}


def sets(rank: int, size: int) -> None:
    both = hvd.ProcessSet([2, 0] if rank else [0, 2])  # in any order, as in Horovod
    assert hvd.add_process_set(both) is both
    assert both.included() == (rank != 1)
    if both.included():
        assert hvd.allreduce(torch.ones(1) * rank, op=hvd.Sum, process_set=both).item() == 2
        assert hvd.allgather(torch.tensor([rank]), process_set=both).tolist() == [0, 2]
        assert hvd.broadcast(torch.tensor([rank]), 2, process_set=both).item() == 2
        assert hvd.broadcast_object(rank, 2, process_set=both) == 2
    else:
        with pytest.raises(ValueError, match=r"rank 1 .*not in"):
            hvd.allreduce(torch.ones(1), process_set=both)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    assert hvd.remove_process_set(both)
    assert hvd.global_process_set.size() == size


def test_s3_process_sets_with_the_same_ranks_are_refused() -> None:
    with pytest.raises(ValueError):
        hvd.init(process_sets=[[0, 1], hvd.ProcessSet([1, 0])])
    assert not hvd.is_initialized()


def test_process_sets(pool: Pools) -> None:
    pool(3).run(in_world, sets)


def late(rank: int, _: int) -> None:
    """Rank 1 begins when it has heard that rank 0 has begun, and has looked for a while."""
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="late")
        for _ in range(20):
            assert not hvd.poll(handle)
            time.sleep(0.01)
    hvd.broadcast_object("begin", 0)
    if rank == 1:
        handle = hvd.allreduce_async(torch.ones(3), name="late")
    assert hvd.synchronize(handle).tolist() == [1.0] * 3
    assert hvd.poll(handle)


def test_poll_is_false_until_it_is_done(pool: Pools) -> None:
    pool(2).run(in_world, late)


def compiled(rank: int, size: int) -> None:
    layer = hvd.SyncBatchNorm(2)

    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        summed = hvd.allreduce(x * 2, op=hvd.Sum) + 1
        begun = hvd.synchronize(hvd.allreduce_async(x, name="begun"))
        rows = hvd.allgather(x) + hvd.rank()
        return summed, begun, rows, layer(x).square().sum()

    for scale in (1.0, 3.0):
        x = torch.arange(4.0).reshape(2, 2) * scale + rank
        x.requires_grad_()
        found = step(x)
        assert torch.equal(found[0], 2 * (2 * scale * torch.arange(4.0).reshape(2, 2) + 1) + 1)
        assert torch.equal(found[1], scale * torch.arange(4.0).reshape(2, 2) + 0.5)
        assert found[2].shape == (4, 2)
        assert torch.equal(found[2][2 * rank : 2 * rank + 2], x + rank)
        (found[0].sum() + found[3]).backward()
        assert x.grad is not None
        assert torch.allclose(x.grad, torch.full((2, 2), 4.0), atol=1e-3)  # that of the normalised is zero


def test_compiled_functions_may_call_operations(pool: Pools) -> None:
    pool(2).run(in_world, compiled)


def test_without_torch_the_error_names_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    done = python("-c", "import frontends.torch", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert "pip install 'ronde[torch]'" in done.stderr


def test_operations_without_a_name_are_numbered_anew_for_every_communicator() -> None:
    """Also where one has the address in memory of another that is gone: the ranks' memories differ."""
    from frontends.horovod import full_name

    class Communicator:
        pass

    for _ in range(20):
        comm: Any = Communicator()
        assert full_name(comm, "allreduce", None) == "allreduce.noname.1"
        assert full_name(comm, "allgather", None) == "allgather.noname.1"
        assert full_name(comm, "allreduce", None) == "allreduce.noname.2"
        assert full_name(comm, "allreduce", "mine") == "allreduce.mine"
        del comm
