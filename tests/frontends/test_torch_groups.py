"""Methods of a torch.distributed process group that scripts call directly, and what torch's profiler shows of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.frontends.pool import Pool
from tests.frontends.test_torch_distributed import free_port, group, losses_of, model, sharded_model

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import torch.distributed as dist  # noqa: E402

Pools = Callable[[int], Pool]


@pytest.fixture
def meeting() -> str:
    """A free address for the rendezvous of a process group."""
    return free_port()


def raw_calls(path: str, backend: str) -> list[Any]:
    """Results of the forms in which the methods of a group can be called."""
    with group(path, backend) as (rank, size):
        world = dist.group.WORLD
        told: list[Any] = []

        def mine(factor: float = 1.0) -> torch.Tensor:
            return torch.arange(1.0, 4.0) * factor * (rank + 1)

        def empty(count: int = size) -> list[torch.Tensor]:
            return [torch.zeros(3) for _ in range(count)]

        brief = timedelta(seconds=20)
        for call in (
            lambda x: world.allreduce(x),
            lambda x: world.allreduce([x]),
            lambda x: world.allreduce(x, dist.ReduceOp.MAX),
            lambda x: world.allreduce([x], op=dist.ReduceOp.MIN, timeout=brief),
            lambda x: world.allreduce(x, dist.ReduceOp.SUM, brief),
            lambda x: world.broadcast(x, 1),
            lambda x: world.broadcast(x, root=1, timeout=brief),
            lambda x: world.reduce(x, 0, dist.ReduceOp.PRODUCT),
        ):
            x = mine()
            call(x).wait()
            told.append(x.tolist() if "reduce(x, 0" not in str(call) or rank == 0 else None)
        told.pop()  # gloo leaves partial results on other ranks than the root
        x = mine()
        world.reduce(x, root=0).wait()
        told.append(x.tolist() if rank == 0 else None)
        outputs = empty()
        world.allgather(outputs, mine()).wait()
        told.append([output.tolist() for output in outputs])
        outputs = empty()
        world.allgather([outputs], [mine()], timeout=brief).wait() if backend == "ronde" else world.allgather(
            [outputs], [mine()]
        ).wait()
        told.append([output.tolist() for output in outputs])
        outputs = empty(size if rank == 0 else 0)
        world.gather(outputs, mine(), 0).wait()
        told.append([output.tolist() for output in outputs])
        output = torch.zeros(3)
        world.scatter(output, [mine(2.0), mine(3.0)] if rank == 0 else [], 0).wait()
        told.append(output.tolist())
        world.reduce_scatter(output, [mine(2.0), mine(3.0)], dist.ReduceOp.SUM).wait()
        told.append(output.tolist())
        if torch.__version__ >= (2, 13):  # torch 2.9's gloo has none
            outputs = empty()
            world.alltoall(outputs, [mine(2.0), mine(3.0)]).wait()
            told.append([output.tolist() for output in outputs])
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            several = [mine(), mine(10.0)]
            world.allreduce(several, op).wait()
            told.append([each.tolist() for each in several])
        several, opts = [mine(), mine(10.0)], dist.BroadcastOptions()
        opts.rootTensor = 1
        world.broadcast(several, opts).wait()
        told.append([each.tolist() for each in several])
        world.barrier().wait()
        world.barrier(brief).wait()
        return told


def test_methods_of_groups_take_the_forms_that_gloo_takes(pool: Pools) -> None:
    ours = pool(2).run(raw_calls, free_port(), "ronde")
    assert ours == pool(2).run(raw_calls, free_port(), "gloo")
    assert ours[0][0] == [3.0, 6.0, 9.0]


def means_of_integers(path: str) -> None:
    """Lightning averages its counters so, where the backend is not gloo."""
    with group(path) as (rank, size):
        for dtype in (torch.int64, torch.int8, torch.uint8, torch.int16):
            x = torch.tensor([3, 100, 2 * rank], dtype=dtype)
            dist.all_reduce(x, dist.ReduceOp.AVG)
            assert x.tolist() == [3, 100, size - 1]
            work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
            work.wait()
            assert x.tolist() == [3, 100, size - 1]
        count = torch.tensor(2**62 + (rank == 0))
        with pytest.raises(RuntimeError):
            dist.all_reduce(count, dist.ReduceOp.AVG)
        assert count.item() == 2**62 + (rank == 0)
        many = torch.tensor(2**62)
        dist.all_reduce(many, dist.ReduceOp.AVG)
        assert many.item() == 2**62
        x = torch.tensor([-3, rank == 0], dtype=torch.int32)
        work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
        with pytest.raises(RuntimeError):
            work.wait()
        assert x.tolist() == [-3, rank == 0]
        x = torch.ones(1)
        dist.all_reduce(x)  # the group goes on
        assert x.item() == size


def wrong_calls(path: str) -> None:
    with group(path) as (rank, size):
        world, x = dist.group.WORLD, torch.ones(2)
        with pytest.raises(TypeError, match=r"allreduce: .*'root'.* AllreduceOptions or op"):
            world.allreduce(x, root=1)
        with pytest.raises(TypeError, match=r"broadcast: .*\[1, 2, 3\]"):
            world.broadcast(x, 1, 2, 3)
        with pytest.raises(TypeError, match="missing"):
            world.allgather()
        with pytest.raises(ValueError, match=r"op=AVG: 2 tensors; .*SUM"):
            world.allreduce([x, x.clone()], dist.ReduceOp.AVG)
        for dtype in (torch.int64, torch.uint8, torch.bool):
            with pytest.raises(RuntimeError):
                world.reduce_scatter_single(
                    torch.ones(1, dtype=dtype), torch.ones(size, dtype=dtype), op=dist.ReduceOp.AVG
                )
        with pytest.raises(RuntimeError):
            world.allreduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)
        with pytest.raises(ValueError, match="op=SUM: 0 tensors"):
            world.allreduce([])
        with pytest.raises(ValueError, match=r"tensors: .*shapes"):
            world.allreduce([x, torch.ones(1)])
        mixed, outputs = [x, torch.ones(2, dtype=torch.int32)], [x.clone(), x.clone()]
        for call in (
            lambda: world.alltoall(outputs, mixed),
            lambda: world.reduce_scatter(outputs[:1], [mixed]),
            lambda: world.scatter(outputs[:1], [mixed], root=rank),
        ):
            with pytest.raises(TypeError, match=r"input_tensors: .*torch.float32 and torch.int32"):
                call()
        opts = dist.BroadcastOptions()
        opts.rootTensor = 2
        with pytest.raises(ValueError, match=r"rootTensor=2: .*2 tensors"):
            world.broadcast([x, x.clone()], opts)
        for asynchronous in (False, True):
            if rank == 0:  # the others do not count it: operations in callbacks are matched by the count
                with pytest.raises(TypeError, match="op='band'"):
                    dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND, async_op=asynchronous)
            work = dist.all_reduce(torch.ones(1), async_op=True)
            assert work.get_future().then(lambda future: again(future.value()[0])).wait().item() == size * size
        world.allreduce(x).wait()
        assert x[0] == size


def again(x: Any) -> Any:
    dist.all_reduce(x)
    return x


def test_wrong_calls_are_refused_before_anything_is_sent(pool: Pools, meeting: str) -> None:
    pool(2).run(wrong_calls, meeting)


@pytest.mark.parametrize("size", [2, 3])
def test_means_of_integers_are_exact_or_an_error(pool: Pools, meeting: str, size: int) -> None:
    pool(size).run(means_of_integers, meeting)


def late_ranks(path: str) -> list[str]:
    """Errors of monitored barriers to which some ranks do not come."""
    with group(path) as (rank, size):
        world, told = dist.group.WORLD, []
        for _ in range(3):
            world.monitored_barrier()
        for every in (False, True):
            if rank == 0:
                with pytest.raises(dist.DistBackendError) as caught:
                    world.monitored_barrier(timedelta(seconds=0.2), wait_all_ranks=every)
                told.append(str(caught.value))
            dist.barrier()
        if rank == size - 1:
            with pytest.raises(dist.DistBackendError) as caught:
                world.monitored_barrier(timedelta(seconds=0.2))
            told.append(str(caught.value))
        x = torch.ones(1)
        dist.all_reduce(x)  # the group has not failed
        assert x.item() == size
        return told


@pytest.mark.parametrize("store", ["tcp", "file"])
def test_s5_monitored_barrier_tells_who_does_not_come(pool: Pools, meeting: str, tmp_path: Path, store: str) -> None:
    first, _, last = pool(3).run(late_ranks, meeting if store == "tcp" else f"file://{tmp_path}/meeting")
    assert first == [
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 200 ms",
        "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 200 ms",
    ]
    assert last == ["[Rank 2]: Rank 0 failed to pass monitoredBarrier in 200 ms"]


def barriers_of_groups_made_anew(path: str) -> None:
    """torch names such a group by its ranks, so it has the keys of the one before."""
    with group(path) as (rank, size):
        store = dist.group.WORLD.get_group_store()
        for life in range(3):
            both = dist.new_group(list(range(size)), use_local_synchronization=True)
            if rank == 1:
                store.set(f"came {life}", "")
            both.monitored_barrier(timedelta(seconds=2))
            assert store.check([f"came {life}"])
            dist.destroy_process_group(both)


def test_monitored_barriers_of_a_group_that_is_made_anew(pool: Pools, meeting: str) -> None:
    pool(2).run(barriers_of_groups_made_anew, meeting)


def waits(path: str, way: str) -> str:
    """The error of a call to which the other rank does not come."""
    with group(path) as (rank, _):
        if way == "set_timeout":
            dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
        late = {
            "timeout of the call": lambda: dist.barrier(timeout=timedelta(seconds=0.5)),
            "set_timeout": lambda: dist.all_reduce(torch.ones(2)),
            "timeout of the wait": lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(timedelta(seconds=0.5)),
        }[way]
        text = ""
        if rank == 0:
            with pytest.raises(dist.DistBackendError) as caught:
                late()
            text = str(caught.value)
        store = dist.group.WORLD.get_group_store()
        store.set(f"over {rank}", "")
        store.wait(["over 0"])
        return text


@pytest.mark.parametrize("way", ["timeout of the call", "set_timeout", "timeout of the wait"])
def test_late_operations_have_torchs_words_and_the_rank(pool: Pools, meeting: str, way: str) -> None:
    if way == "timeout of the call" and "timeout" not in inspect.signature(dist.barrier).parameters:
        pytest.skip(f"torch {torch.__version__}: calls have no timeout")
    text, _ = pool(2).run(waits, meeting, way)
    assert text.startswith("ronde: Timed out waiting 500ms: ")
    assert "rank 1" in text or way == "timeout of the wait"


def split(path: str) -> None:
    with pytest.MonkeyPatch.context() as patch, group(path) as (rank, size):
        # torch splits groups where it finds an accelerator, and with device_id alone
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
        dist.group.WORLD.bound_device_id = torch.device("cuda", rank)
        some = dist.split_group(split_ranks=[[0, 2], [1]], group_desc="some")
        assert some.group_desc == "some"
        assert dist.get_process_group_ranks(some) == ([1] if rank == 1 else [0, 2])
        x = torch.tensor([rank + 1.0])
        dist.all_reduce(x, group=some)
        assert x.item() == (2 if rank == 1 else 4)
        again = dist.split_group(split_ranks=[[1, 2]])
        assert (again is None) == (rank == 0)
        if again is not None:
            dist.broadcast(x, 2, group=again)
            assert x.item() == 4
        dist.group.WORLD.bound_device_id = None
        for wrong in ([0, size], [0, 0], [-1]):
            with pytest.raises(ValueError, match=r"new_ranks=.* 0 to 2"):
                dist.group.WORLD.split_group(wrong)
        raw = dist.group.WORLD.split_group(list(range(size)))
        raw.allreduce(x).wait()
        raw.shutdown()


def test_groups_are_split(pool: Pools, meeting: str) -> None:
    pool(3).run(split, meeting)


def left_over(path: str) -> None:
    """The last rank has left: the others make a group without it, and continue."""
    with group(path) as (rank, size):
        dist.all_reduce(torch.ones(1))
        if rank < size - 1:
            with pytest.raises(dist.DistBackendError):
                dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=0.5))
            others = dist.new_group(list(range(size - 1)), use_local_synchronization=True)
            x = torch.ones(1)
            dist.all_reduce(x, group=others)
            assert x.item() == size - 1


def test_survivors_make_a_group_of_their_own(pool: Pools, meeting: str) -> None:
    pool(3).run(left_over, meeting)


def any_source(path: str) -> None:
    with group(path) as (rank, size):
        others = dist.new_group(list(range(1, size)))
        if rank == 0:
            came = {}
            for _ in range(size - 1):
                x = torch.zeros(3)
                sender = dist.recv(x)
                came[sender] = x.tolist()
            assert came == {peer: [float(peer)] * 3 for peer in range(1, size)}
            x = torch.zeros(2, 3).t()  # not contiguous
            work = dist.irecv(x, tag=7)
            assert work._source_rank() == -1
            dist.broadcast(torch.ones(1), 0)  # the others send after it
            work.wait()
            assert work._source_rank() == size - 1
            assert torch.equal(x, torch.arange(6.0).reshape(3, 2))
            objects: list[Any] = [None, None]
            assert dist.recv_object_list(objects, src=1) == 1
            assert objects == ["from", 1]
        else:
            dist.send(torch.full((3,), float(rank)), 0)
            dist.broadcast(torch.ones(1), 0)
            if rank == size - 1:
                dist.send(torch.arange(6.0).reshape(3, 2), 0, tag=7)
            if rank == 1:
                dist.send_object_list(["from", 1], dst=0)
        if rank == 1:
            x = torch.zeros(1)
            assert dist.recv(x, group=others) == size - 1  # the number among all ranks
            assert x.item() == 5
        elif rank == size - 1:
            dist.send(torch.full((1,), 5.0), 1, group=others)
        dist.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_messages_are_received_from_any_rank(pool: Pools, meeting: str, transport: str) -> None:
    pool(3).run(any_source, meeting, transport=transport)


COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
)


def profile(path: str, backend: str) -> dict[str, Any]:
    """The profiler's record of each operation: asynchronous or not, the input's shapes, and the number of calls."""
    with group(path, backend) as (rank, size):
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            for asynchronous in (False, True):
                every = [torch.ones(2) for _ in range(size)] if rank == 0 else None
                works = [
                    dist.all_reduce(torch.ones(2, 3), async_op=asynchronous),
                    dist.broadcast(torch.ones(2), 0, async_op=asynchronous),
                    dist.reduce(torch.ones(2), 0, async_op=asynchronous),
                    dist.all_gather([torch.ones(2) for _ in range(size)], torch.ones(2), async_op=asynchronous),
                    dist.gather(torch.ones(2), every, async_op=asynchronous),
                    dist.scatter(torch.ones(2), every, async_op=asynchronous),
                    dist.all_to_all_single(torch.ones(size, 2), torch.ones(size, 2), async_op=asynchronous),
                    dist.barrier(async_op=asynchronous),
                ]
                if backend == "ronde":
                    given = [torch.ones(2) for _ in range(size)]
                    works.append(dist.reduce_scatter(torch.ones(2), given, async_op=asynchronous))
                for work in works:
                    if work is not None:
                        work.wait()
            if rank == 0:
                dist.send(torch.ones(4), 1)
            else:
                dist.recv(torch.ones(4), 0)
        found: dict[str, Any] = {}
        for event in profiler.events():
            owner, _, name = event.name.partition(":")
            if owner == backend:
                assert event.cpu_time > 0
                shapes, count = found.get(name, (event.input_shapes, 0))
                assert event.is_async
                assert event.input_shapes == shapes
                found[name] = (shapes, count + 1)
        table = profiler.key_averages().table()
        assert all(f"{backend}:{name}" in table for name in found)
        return found


def test_the_profiler_shows_operations_as_it_does_for_gloo(pool: Pools) -> None:
    ours = pool(2).run(profile, free_port(), "ronde")
    theirs = pool(2).run(profile, free_port(), "gloo")
    for mine, right in zip(ours, theirs, strict=True):
        assert mine.pop("reduce_scatter") == ([[2], [2]], 2)
        assert mine == right
    assert {*ours[0], *ours[1], "reduce_scatter"} == set(COLLECTIVES)


def profiled_training(path: str) -> list[tuple[str, int]]:
    with group(path) as (rank, _):
        ddp = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.002)
        ddp(torch.ones(2, 12)).sum().backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            ddp(torch.ones(2, 12)).sum().backward()
            with pytest.raises(dist.DistBackendError):
                dist.all_reduce(torch.ones(2 + rank))
        del ddp
        averages = profiler.key_averages()
        return [(row.key, row.count) for row in averages if row.key.startswith("ronde:")]


def test_the_profiler_shows_the_buckets_of_ddp_and_calls_that_fail(pool: Pools, meeting: str) -> None:
    for rows in pool(2).run(profiled_training, meeting):
        counts = dict(rows)
        assert counts["ronde:all_reduce"] >= 3, counts


def shard_the_old_way(path: str, backend: str) -> list[float]:
    """Losses of some steps of FSDP1 on the CPU."""
    with group(path, backend) as (rank, _):
        return shard_the_old_way_here(rank)


def shard_the_old_way_here(rank: int) -> list[float]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    return losses_of(net, torch.optim.AdamW(net.parameters(), lr=0.01), rank, 4)


def test_fsdp1_trains_on_the_cpu_as_on_gloo(pool: Pools) -> None:
    ours = pool(2).run(shard_the_old_way, free_port(), "ronde")
    theirs = pool(2).run(shard_the_old_way, free_port(), "gloo")
    for losses, right in zip(ours, theirs, strict=True):
        assert losses == pytest.approx(right, rel=1e-5)


def compiled_shards(path: str, backend: str) -> list[float]:
    """Losses of some steps of compiled FSDP2."""
    with group(path, backend) as (rank, size):
        return compiled_shards_here(rank, size)


def compiled_shards_here(rank: int, size: int) -> list[float]:
    net = sharded_model(size)
    compiled = torch.compile(net, backend="aot_eager")
    losses = losses_of(compiled, torch.optim.AdamW(net.parameters(), lr=0.01), rank, 5)
    torch.compiler.reset()
    return losses


def test_compiled_fsdp2_trains_as_on_gloo(pool: Pools) -> None:
    ours = pool(2).run(compiled_shards, free_port(), "ronde")
    theirs = pool(2).run(compiled_shards, free_port(), "gloo")
    for losses, right in zip(ours, theirs, strict=True):
        assert losses == pytest.approx(right, rel=1e-5)
