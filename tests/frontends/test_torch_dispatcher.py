"""Operations of the torch.distributed backend pass torch's dispatcher: modes, tracers, subclasses and the profiler see
there what they see on gloo."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.frontends.pool import Pool

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import torch.distributed as dist  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tests.frontends.test_torch_distributed import (  # noqa: E402
    all_gather_single,
    free_port,
    group,
    reduce_scatter_single,
)

Pools = Callable[[int], Pool]


class Names(TorchDispatchMode):
    """Counts the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(function)] += 1
        return function(*args, **(kwargs or {}))


def calls(rank: int, size: int, like: Callable[..., torch.Tensor], asynchronous: bool = False) -> list[torch.Tensor]:
    """Call everything that gloo has too; returns the tensors that it wrote."""

    def full(value: float, *shape: int) -> torch.Tensor:
        return like(*(shape or (2,))).fill_(value)

    written: list[torch.Tensor] = []

    def done(work: Any, *tensors: torch.Tensor) -> None:
        if work is not None:
            work.wait()
        written.extend(tensors)

    kind = {"async_op": asynchronous}
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        x = full(rank + 2)
        done(dist.all_reduce(x, op, **kind), x)
    x = full(rank)
    done(dist.broadcast(x, 1, **kind), x)
    x = full(rank + 1)
    done(dist.reduce(x, 1, dist.ReduceOp.MAX, **kind), *[x] * (rank == 1))
    outputs = [full(-1) for _ in range(size)]
    done(dist.all_gather(outputs, full(rank), **kind), *outputs)
    x = full(-1, size * 2)
    done(all_gather_single(x, full(rank), **kind), x)
    x = full(-1)
    done(dist.reduce_scatter(x, [full(rank + peer) for peer in range(size)], **kind), x)
    x = full(-1)
    done(reduce_scatter_single(x, full(rank, size * 2), **kind), x)
    x = full(-1, size)
    done(dist.all_to_all_single(x, full(rank, size), **kind), x)
    outputs = [full(-1) for _ in range(size)] if rank == 0 else []
    done(dist.gather(full(rank), outputs or None, 0, **kind), *outputs)
    x = full(-1)
    done(dist.scatter(x, [full(peer) for peer in range(size)] if rank == 0 else None, 0, **kind), x)
    done(dist.barrier(**kind))
    return written


def messages(rank: int, like: Callable[..., torch.Tensor]) -> torch.Tensor:
    x = like(3).fill_(7 if rank == 0 else 0)
    if rank == 0:
        dist.send(x, 1, tag=4)
    else:
        dist.recv(x, 0, tag=4)
    return x


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """The value of a call, or the type of its error with the operator that it names."""
    try:
        return "", call()
    except Exception as error:
        return type(error).__name__, "c10d.allreduce_" in str(error)


def d1_dispatcher(path: str, backend: str) -> dict[str, Any]:
    """The operations as the group sees them."""
    with group(path, backend) as (rank, size):
        return dict(looks(rank, size))


def looks(rank: int, size: int) -> Any:
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.fx.experimental.proxy_tensor import make_fx

    plain = [x.tolist() for x in calls(rank, size, torch.empty)]
    yield "plain", plain
    for asynchronous in (False, True):
        with Names() as names, Names() as inner:
            under = [x.tolist() for x in calls(rank, size, torch.empty, asynchronous)]
            yield f"messages {asynchronous}", messages(rank, torch.empty).tolist()
        assert under == plain
        assert inner.seen == names.seen
        yield f"names {asynchronous}", {name: n for name, n in names.seen.items() if name.startswith("c10d")}
    with CommDebugMode() as counted:
        calls(rank, size, torch.empty)
    yield "counted", {str(name): n for name, n in counted.get_comm_counts().items()}

    yield "meta", outcome(lambda: [x.shape for x in calls(rank, size, lambda *s: torch.empty(s, device="meta"))])
    for asynchronous in (False, True):
        with FakeTensorMode():
            yield (
                f"fake {asynchronous}",
                outcome(lambda a=asynchronous: [tuple(x.shape) for x in calls(rank, size, torch.empty, a)]),
            )
    mesh = init_device_mesh("cpu", (size,))
    tensor = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    yield "DTensor", outcome(lambda: dist.all_reduce(tensor))

    def traced(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, dist.ReduceOp.MAX)
        dist.all_reduce(x)
        return x + 1

    graph = make_fx(traced)(torch.full((2,), float(rank)))
    yield "nodes", [str(node.target) for node in graph.graph.nodes if "c10d" in str(node.target)]
    if dist.get_backend() == "ronde":  # on gloo nothing waits for the operations of a graph
        assert graph(torch.full((2,), float(rank))).tolist() == [size + 1.0] * 2

    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    with CommDebugMode() as counted:
        net(torch.full((3, 4), rank + 1.0)).sum().backward()
    yield "fsdp", {str(name): n for name, n in counted.get_comm_counts().items()}
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    with CommDebugMode() as counted:
        ddp(torch.ones(3, 4)).sum().backward()
    yield "ddp", {str(name): n for name, n in counted.get_comm_counts().items()}

    with FakeTensorMode(), MemTracker() as tracker:
        calls(rank, size, torch.empty)
    yield "tracked", bool(tracker.get_tracker_snapshot("peak"))

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert [x.tolist() for x in calls(rank, size, torch.empty)] == plain
        messages(rank, torch.empty)
    yield "profiled", Counter(event.name for event in profile.events() if event.name.startswith("c10d::"))


def test_d1_dispatcher(pool: Pools) -> None:
    right = pool(2).run(d1_dispatcher, free_port(), "gloo")
    for ours, theirs in zip(pool(2).run(d1_dispatcher, free_port(), "ronde"), right, strict=True):
        for name, value in theirs.items():
            assert ours[name] == value, name
        assert sum(ours["fsdp"].values()) == 6
        assert ours["counted"]


def ours_alone(path: str) -> None:
    """Forms that gloo has not, and errors."""
    from torch.distributed.tensor.debug import CommDebugMode

    with group(path) as (rank, size), CommDebugMode() as counted:
        x = torch.ones(2)
        dist.all_reduce(x, dist._make_nccl_premul_sum(3.0))
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert x.tolist() == [3.0 * size] * 2
        total = torch.sparse_coo_tensor([[rank]], [1.0], (2,), check_invariants=True)
        dist.all_reduce(total)
        assert total.to_dense().tolist() == [1, 1]
        outputs = [torch.zeros(peer + 1) for peer in range(size)]
        dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
        assert [output.tolist() for output in outputs] == [[0], [1, 1]]
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert work.is_completed()
        assert torch.equal(work.result()[0], x)
        assert sum(counted.get_comm_counts().values()) == 5
        with dist._coalescing_manager(async_ops=True) as several:
            dist.all_reduce(x)
            dist.all_reduce(torch.ones(1))
        several.wait()
        torch.ops.c10d.allreduce_([x], dist.group.WORLD.boxed(), *reduce_op(), None, False)
        if rank == 0:
            with pytest.raises(ValueError, match="output"):
                dist.reduce_scatter(torch.zeros(3), [torch.zeros(2), torch.zeros(2)])
        with pytest.raises(dist.DistBackendError):
            dist.all_gather([torch.zeros(1), torch.zeros(2)], torch.zeros(1 + (rank == 0)))


def reduce_op() -> list[Any]:
    """A ReduceOp as an argument of operators."""
    found: list[Any] = []

    class Find(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "allreduce_" in str(function):
                found.append(args[2])
            return function(*args, **(kwargs or {}))

    with Find():
        dist.all_reduce(torch.ones(1))
    return found


def test_d1_dispatcher_has_the_forms_of_ronde_and_its_errors(pool: Pools) -> None:
    pool(2).run(ours_alone, free_port())


def beside_gloo(path: str) -> None:
    """A group of gloo keeps its own kernels after one of Ronde has been seen."""
    with group(path) as (rank, _), Names():
        x = torch.ones(2)
        dist.all_reduce(x)
        theirs = dist.new_group(backend="gloo")
        dist.all_reduce(x, group=theirs)
        assert x.tolist() == [4, 4]
        assert rank == dist.get_rank(theirs)


def test_d1_dispatcher_leaves_other_groups_alone(pool: Pools) -> None:
    pool(2).run(beside_gloo, free_port())


def released(path: str) -> None:
    """No result of a call is kept once its caller has dropped it."""
    from torch.distributed.tensor.debug import CommDebugMode

    kinds = (CommDebugMode, lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]))
    with group(path):
        for seen in kinds:
            for asynchronous in (False, True):
                x = torch.ones(2)
                there = weakref.ref(x)
                with seen():
                    work = dist.all_reduce(x, async_op=asynchronous)
                    if work is not None:
                        work.wait()
                del x, work
                dist.barrier()
                gc.collect()
                assert there() is None, (seen, asynchronous)


def test_calls_that_the_profiler_or_a_mode_sees_release_their_tensors(pool: Pools) -> None:
    pool(2).run(released, free_port())
