"""Kinds of tensors in torch.distributed and in Horovod's API for torch: of every dtype, made in inference mode, resized
after they were communicated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.frontends.pool import Pool

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import torch.distributed as dist  # noqa: E402

import frontends.torch as hvd  # noqa: E402
from tests.frontends.test_torch_distributed import all_gather_single, free_port, group  # noqa: E402
from tests.worlds import Worlds  # noqa: E402

Pools = Callable[[int], Pool]
NOT_COMBINED = ("float4_e2m1fn_x2", "complex32", "uint4", "int4", "int1", "uint7", "bits8", "bits16")
MOVED = (*NOT_COMBINED, "float8_e8m0fnu", "float8_e4m3fn", "bfloat16", "uint64")


def t9_dtypes(path: str) -> None:
    with group(path) as (rank, size):
        for name in MOVED:
            if hasattr(torch, name):
                moves(getattr(torch, name), rank, size)


def moves(dtype: torch.dtype, rank: int, size: int) -> None:
    def made(start: int, count: int = 6) -> torch.Tensor:
        octets = torch.arange(start, start + count * dtype.itemsize, dtype=torch.uint8)
        return octets.view(dtype)

    def same(x: torch.Tensor, y: torch.Tensor) -> None:
        assert x.dtype == y.dtype
        assert x.view(torch.uint8).tolist() == y.view(torch.uint8).tolist()

    outputs = [made(99) for _ in range(size)]
    dist.gather(made(rank), outputs if rank == 0 else None, 0)
    if rank == 0:
        for peer, output in enumerate(outputs):
            same(output, made(peer))
    outputs = [made(99, peer + 1) for peer in range(size)]
    dist.all_gather(outputs, made(rank, rank + 1))
    for peer, output in enumerate(outputs):
        same(output, made(peer, peer + 1))
    whole = made(0, 6 * size)
    all_gather_single(whole, made(7))
    same(whole, torch.cat([made(7).view(torch.uint8)] * size).view(dtype))
    x = made(rank)
    dist.broadcast(x, 1)
    same(x, made(1))
    x = made(99)
    dist.scatter(x, [made(peer) for peer in range(size)] if rank == 0 else None, 0)
    same(x, made(rank))
    outputs = [made(99) for _ in range(size)]
    dist.all_to_all(outputs, [made(10 * rank + peer) for peer in range(size)])
    for peer, output in enumerate(outputs):
        same(output, made(10 * peer + rank))
    whole = made(99)
    dist.all_to_all_single(whole, made(0))
    same(whole, torch.cat([made(0)[3 * rank : 3 * rank + 3].view(torch.uint8)] * size).view(dtype))
    if rank == 0:
        dist.send(made(3), 1)
    else:
        dist.recv(x, 0)
        same(x, made(3))
    if str(dtype).removeprefix("torch.") in NOT_COMBINED and not dtype.is_complex:
        with pytest.raises(TypeError, match=str(dtype)):
            dist.all_reduce(made(0))


def t8_inference_mode(path: str) -> None:
    with group(path) as (rank, size), torch.inference_mode():
        for asynchronous in (False, True):

            def done(work: Any) -> None:
                if work is not None:
                    work.wait()

            total = torch.sparse_coo_tensor([[rank]], [1.0], (size,), check_invariants=True)
            done(dist.all_reduce(total, async_op=asynchronous))
            assert total.to_dense().tolist() == [1.0] * size
            outputs = [torch.zeros(peer + 1) for peer in range(size)]
            done(dist.all_gather(outputs, torch.full((rank + 1,), float(rank)), async_op=asynchronous))
            assert [output.tolist() for output in outputs] == [[float(peer)] * (peer + 1) for peer in range(size)]
            output = torch.zeros(2, 2).t()  # not contiguous
            done(dist.scatter(output, [torch.ones(2, 2)] * size if rank == 0 else None, 0, async_op=asynchronous))
            assert output.tolist() == [[1, 1], [1, 1]]
            two = [torch.full((2,), float(rank)), torch.full((2,), 5.0)]
            done(dist.group.WORLD.allreduce(two))
            assert two[0].tolist() == two[1].tolist()
            x = torch.ones(3)
            done(dist.all_reduce(x, async_op=asynchronous))
            assert x.tolist() == [size] * 3


def s1_resized(path: str) -> None:
    import frontends.torch as hvd

    def bigger(*tensors: torch.Tensor) -> None:
        for tensor in tensors:
            before = tensor.reshape(-1)[:2].clone()
            tensor.resize_(64)
            assert torch.equal(tensor[: before.numel()], before)

    with group(path) as (rank, size):
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64):
            for shape in ((4,), (), (0,), (2, 2)):
                x, y, z = (torch.ones(shape, dtype=dtype) for _ in range(3))
                dist.broadcast(x, 0)
                dist.broadcast(y, 0, async_op=True).wait()
                outputs = [torch.ones(shape, dtype=dtype) for _ in range(size)]
                dist.all_gather(outputs, z)
                bigger(x, y, z, *outputs)
        x = torch.ones(4)
        dist.all_reduce(x)
        bigger(x)
        leaf = torch.ones(4, requires_grad=True)
        dist.all_reduce(leaf.detach())
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        bigger(x)
    hvd.init()
    x, y, z = torch.ones(4), torch.ones(4), torch.ones(4)
    total = hvd.allreduce(x, op=hvd.Sum)
    hvd.broadcast_(y, 0)
    hvd.allgather(z)
    bigger(x, y, z, total)
    hvd.shutdown()


def coalescing(path: str) -> None:
    with group(path) as (_, size):
        with pytest.raises(RuntimeError, match="device=cpu"), dist._coalescing_manager(device=torch.device("cpu")):
            pass
        x = torch.ones(2)
        dist.all_reduce(x)
        with dist._coalescing_manager():
            dist.all_reduce(x)
        assert x.tolist() == [size**2] * 2


def test_t9_dtypes(pool: Pools) -> None:
    pool(2).run(t9_dtypes, free_port())


@pytest.fixture(scope="module")
def worlds() -> Any:
    opened = Worlds()
    yield opened
    opened.close()


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_t9_dtypes_in_horovods_operations(worlds: Worlds, name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    item = dtype.itemsize

    def moved(comm: Any) -> None:
        octets = torch.arange(2 * item, dtype=torch.uint8)
        x = (octets + 100 * comm.rank).view(dtype)
        results = {
            "broadcast": (hvd.broadcast(x, 1), [octets + 100]),
            "broadcast in place": (hvd.broadcast_((octets + 100 * comm.rank).view(dtype), 1), [octets + 100]),
            "allgather": (hvd.allgather(x), [octets, octets + 100]),
            "grouped_allgather": (hvd.grouped_allgather([x])[0], [octets, octets + 100]),
            "alltoall": (
                hvd.alltoall(x),
                [(octets + 100 * peer)[comm.rank * item :][:item] for peer in range(comm.size)],
            ),
        }
        for found, parts in results.values():
            assert found.dtype is dtype
            assert found.view(torch.uint8).tolist() == torch.cat(parts).tolist()
        if name in NOT_COMBINED:
            with pytest.raises(TypeError, match="not combined"):
                hvd.allreduce(x)

    worlds.get("local", 2).run(moved)


def test_t8_inference_mode(pool: Pools) -> None:
    pool(2).run(t8_inference_mode, free_port())


def test_s1_tensors_can_be_resized_after_they_were_communicated(pool: Pools) -> None:
    pool(2).run(s1_resized, free_port())


def test_coalescing_by_device_is_refused_and_leaves_the_group_usable(pool: Pools) -> None:
    pool(2).run(coalescing, free_port())


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex32])
def test_a_tensor_without_memory_is_refused(worlds: Worlds, dtype: torch.dtype) -> None:
    """FSDP frees the memory of gathered parameters; to read it would end the process."""

    def body(_: Any) -> None:
        freed = torch.ones(3, dtype=torch.float32).to(dtype)
        freed.untyped_storage().resize_(0)
        for tensor in (freed, freed.view(1, 3), torch._efficientzerotensor((3,), dtype=dtype)):
            for call in (hvd.allgather, lambda x: hvd.broadcast(x, 0), lambda x: hvd.broadcast_(x, 0)):
                with pytest.raises(ValueError, match=r"3 elements, .*no memory"):
                    call(tensor)
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [1, 1]

    worlds.get("local", 1).run(body)
