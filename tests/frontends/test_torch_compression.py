"""The communication hook of DistributedDataParallel: exact where nothing is lost, and what is lost comes later."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.frontends.pool import Pool
from tests.frontends.test_torch_distributed import free_port, group

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import torch.distributed as dist  # noqa: E402

from collectives.compression import BF16, FP16, Compressor, Int8, PowerSGD, TopK, Uncompressed  # noqa: E402

if TYPE_CHECKING:
    from frontends.torch.ddp_comm_hooks import CompressionState

Pools = Callable[[int], Pool]
SHAPES = ((64, 64), (96, 48), (5,), (40, 40))


class Plain(torch.nn.Module):
    """Its gradients are its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(shape) for shape in SHAPES])

    def forward(self, *factors: torch.Tensor) -> torch.Tensor:
        return torch.stack([(weight * x).sum() for weight, x in zip(self.weights, factors, strict=True)]).sum()


@contextmanager
def hooked(compressor: Compressor, path: str, backend: str = "ronde") -> Iterator[tuple[Any, CompressionState]]:
    """A model whose gradients come by the hook, in several buckets."""
    from frontends.torch.ddp_comm_hooks import CompressionState, compression_hook

    with group(path, backend):
        state = CompressionState(compressor, None if backend == "ronde" else dist.new_group(backend="ronde"))
        model = torch.nn.parallel.DistributedDataParallel(Plain(), bucket_cap_mb=0.02)
        model.register_comm_hook(state, compression_hook)
        yield model, state


def gradients(model: Any) -> list[torch.Tensor]:
    return [weight.grad.clone() for weight in model.module.weights]


def whole(path: str, compressor: Compressor, backend: str) -> None:
    """Numbers that halves hold arrive exactly, from several backward passes too."""
    with hooked(compressor, path, backend) as (model, state):
        rank, size = dist.get_rank(), dist.get_world_size()
        generator = torch.Generator().manual_seed(3)
        table = [[torch.randint(-8, 8, s, generator=generator) * float(size) for s in SHAPES] for _ in range(size)]
        mean = [torch.stack(each).mean(0) for each in zip(*table, strict=True)]
        for _ in range(3):
            model(*table[rank]).backward()
            for found, wanted in zip(gradients(model), mean, strict=True):
                assert torch.equal(found, wanted)
            model.zero_grad()
        with model.no_sync():
            model(*table[rank]).backward()
            model(*table[rank]).backward()
        assert torch.equal(gradients(model)[0], 2 * table[rank][0])
        model(*table[rank]).backward()
        for found, wanted in zip(gradients(model), mean, strict=True):
            assert torch.equal(found, 3 * wanted)
        assert set(state.memory.memories) == {"0", "1", "2", "3"}


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (2, "tcp"), (3, "shm"), (3, "tcp")])
def test_values_that_float16_can_hold_arrive_exactly(pool: Pools, size: int, transport: str) -> None:
    for compressor, backend in ((Uncompressed(), "ronde"), (FP16(), "ronde"), (FP16(), "gloo"), (BF16(), "ronde")):
        pool(size).run(whole, free_port(), compressor, backend, transport=transport)


STEPS = 80


def constant(path: str, compressor: Compressor) -> tuple[float, float, bytes]:
    """The error of the mean of one step, and of many, against the mean of all ranks' gradients; and the last result."""
    with hooked(compressor, path) as (model, state):
        size = dist.get_world_size()
        generator = torch.Generator().manual_seed(3)
        table = [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(size)]
        mean = [torch.stack(each).mean(0) for each in zip(*table, strict=True)]
        total = [torch.zeros(shape) for shape in SHAPES]
        first = 0.0
        for step in range(STEPS):
            model.zero_grad()
            model(*table[dist.get_rank()]).backward()
            for sum_, gradient in zip(total, gradients(model), strict=True):
                sum_ += gradient
            if step == 0:
                first = distance(total, mean)
        used = [memory for memory in state.memory.memories.values() if memory.residual is not None]
        assert {memory.step for memory in used} == {STEPS}  # none was lost with the buckets of the first step
        assert {memory.key[1] for memory in used} >= {shape for shape in SHAPES if len(shape) == 2}
        return first, distance([one / STEPS for one in total], mean), b"".join(one.numpy().tobytes() for one in total)


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Relative, of the tensors that are large enough to be compressed."""
    pairs = [(a, b) for a, b in zip(found, wanted, strict=True) if b.ndim == 2]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp")])
@pytest.mark.parametrize(
    ("compressor", "least", "most"), [(Int8(), 2e-3, 5e-4), (TopK(0.1), 0.5, 0.15), (PowerSGD(4), 0.5, 0.25)]
)
def test_rounding_errors_are_sent_later(
    pool: Pools, size: int, transport: str, compressor: Compressor, least: float, most: float
) -> None:
    results = pool(size).run(constant, free_port(), compressor, transport=transport)
    first, later, _ = results[0]
    assert first > least
    assert later < most
    assert len({bits for *_, bits in results}) == 1


def training(path: str, compressor: Compressor | None) -> float:
    """The loss after some steps of a model that is to become another, whose gradients are of low rank."""
    from frontends.torch.ddp_comm_hooks import CompressionState, compression_hook

    with group(path) as (rank, _):
        torch.manual_seed(5)
        net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
        goal = torch.nn.Linear(32, 32)
        ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.01)
        if compressor is not None:
            ddp.register_comm_hook(CompressionState(compressor), compression_hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2, momentum=0.5)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(150):
            x = torch.randn(16, 32, generator=generator)
            loss = torch.nn.functional.mse_loss(ddp(x), goal(x).detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        x = torch.randn(500, 32, generator=torch.Generator().manual_seed(99))
        return float(torch.nn.functional.mse_loss(net(x), goal(x)))


def test_training_ends_where_it_does_without_compression(pool: Pools) -> None:
    (plain, _) = pool(2).run(training, free_port(), None)
    for compressor in (FP16(), Int8(), TopK(0.1), PowerSGD(2)):
        loss, other = pool(2).run(training, free_port(), compressor)
        assert loss == other
        assert loss == pytest.approx(plain, rel=0.1), compressor


def resumed(path: str) -> None:
    """A memory from a checkpoint goes on as the one that was kept."""
    from frontends.torch.ddp_comm_hooks import CompressionState, compression_hook

    with hooked(TopK(0.1), path) as (model, state):
        generator = torch.Generator().manual_seed(dist.get_rank())
        steps = [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(4)]
        for step in steps[:2]:
            model(*step).backward()
        kept = pickle.dumps(state.memory)
        other = torch.nn.parallel.DistributedDataParallel(Plain(), bucket_cap_mb=0.02)
        other.register_comm_hook(CompressionState(TopK(0.1), memory=pickle.loads(kept)), compression_hook)
        for step in steps[2:]:
            for one in (model, other):
                one.zero_grad()
                one(*step).backward()
            for mine, theirs in zip(gradients(model), gradients(other), strict=True):
                assert torch.equal(mine, theirs)


def test_the_memory_goes_into_a_checkpoint(pool: Pools) -> None:
    pool(2).run(resumed, free_port())


def wrong(path: str, gloo: str) -> str:
    from frontends.torch.ddp_comm_hooks import CompressionState

    with group(gloo, "gloo"):
        with pytest.raises(TypeError, match=r"new_group\(backend='ronde'\)"):
            CompressionState(Int8())
        with pytest.raises(TypeError, match=r"compressor='int8': .*ronde\.compression"):
            CompressionState("int8")  # type: ignore[arg-type]
    with group(path) as (rank, _):
        return disagreeing(rank)


def disagreeing(rank: int) -> str:
    from frontends.torch.ddp_comm_hooks import CompressionState, compression_hook

    model = torch.nn.parallel.DistributedDataParallel(Plain())
    model.register_comm_hook(CompressionState(Int8() if rank else TopK(0.1)), compression_hook)
    with pytest.raises(RuntimeError) as caught:
        model(*[torch.ones(shape) for shape in SHAPES]).backward()
    return str(caught.value)


def test_errors(pool: Pools) -> None:
    for text in pool(2).run(wrong, free_port(), free_port()):
        assert "Int8(" in text
        assert "TopK(" in text
