"""Compression with loss and a memory, in frontends.torch."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontends.pool import Pool

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import frontends.torch as hvd  # noqa: E402
from collectives.compression import Int8, PowerSGD, TopK  # noqa: E402
from tests.frontends.test_torch_ops import in_world  # noqa: E402

Pools = Callable[[int], Pool]
COMPRESSIONS: dict[str, Callable[[], Any]] = {
    "none": lambda: hvd.Compression.none,
    "int8": hvd.Compression.int8,
    "top-k": lambda: hvd.Compression.topk(0.1),
    "PowerSGD": lambda: hvd.Compression.powersgd(4),
}


def test_values() -> None:
    assert hvd.Compression.int8(block=128).compressor == Int8(block=128)
    assert hvd.Compression.topk(0.1).compressor == TopK(0.1)
    assert hvd.Compression.powersgd(3).compressor == PowerSGD(3)
    assert hvd.Compression.of(Int8()).compressor == Int8()
    with pytest.raises(TypeError, match=r"ronde\.compression"):
        hvd.Compression.of("int8")


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16])
def test_casts_travel_to_other_processes_as_arguments_do(compression: Any) -> None:
    assert pickle.loads(pickle.dumps(compression)) is compression


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(4, 48, sparse=True)
        self.layers = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.Tanh(), torch.nn.Linear(64, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x + self.embedding((x[:, 0] > 0).long()))


def trained(rank: int, size: int, name: str, options: dict[str, Any]) -> tuple[float, list[str], list[Any]]:
    """The loss of all data after some steps, the names in the memory, and the parameters."""
    torch.manual_seed(1)
    compression = COMPRESSIONS[name]()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), compression=compression, **options)
    x = torch.randn(64, 48)
    y = torch.tanh(x.roll(1, 1))
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x[rank::size]), y[rank::size]).backward()
        optimizer.step()
    names = list(compression.memory.memories) if name != "none" else []
    return torch.nn.functional.mse_loss(net(x), y).item(), names, [one.detach().numpy() for one in net.parameters()]


@pytest.mark.parametrize("options", [{}, {"groups": 1, "sparse_as_dense": True}])
def test_training_ends_where_it_does_without_compression(pool: Pools, options: dict[str, Any]) -> None:
    plain = pool(2).run(in_world, trained, "none", {})[0][0]
    for name in ("int8", "top-k", "PowerSGD"):
        (loss, names, mine), (_, _, other) = pool(2).run(in_world, trained, name, options)
        assert all(one.tobytes() == two.tobytes() for one, two in zip(mine, other, strict=True)), name
        assert abs(loss - plain) < 0.05 * plain, (name, loss, plain)
        assert {"layers.0.weight", "layers.2.weight"} <= set(names)


def functions(rank: int, size: int) -> None:
    x = torch.linspace(-1, 1, 4096) * (rank + 1)
    mean = torch.linspace(-1, 1, 4096) * (size + 1) / 2
    compression = hvd.Compression.int8()
    sums = torch.zeros(4096)
    for _ in range(20):
        found = hvd.allreduce(x, name="x", compression=compression)
        assert (found - mean).abs().max() < 0.05
        sums += found
    assert not torch.equal(found, mean)
    np.testing.assert_allclose(sums / 20, mean, atol=2e-3)  # what is lost is made good
    one, two = hvd.grouped_allreduce([x, x[:8]], name="both", compression=compression, op=hvd.Sum)
    assert (one - size * mean).abs().max() < 0.1
    assert (two - size * mean[:8]).abs().max() < 0.1
    y = x.clone().requires_grad_()
    hvd.allreduce(y, name="y", op=hvd.Sum, compression=compression).sum().backward()
    assert torch.equal(y.grad, torch.full((4096,), float(size)))
    with pytest.raises(ValueError, match=r"op='max': Int8\(.*Average and Sum only"):
        hvd.allreduce(x, op=hvd.Max, compression=compression)
    with pytest.raises(ValueError, match="scale factors"):
        hvd.allreduce(x, prescale_factor=2.0, compression=compression)
    with pytest.raises(TypeError, match=r"compression=.*casts"):
        hvd.reducescatter(x, compression=compression)
    layer = torch.nn.Linear(2, 2)
    plain = torch.optim.SGD(layer.parameters(), lr=0.1)
    for wrong, error, text in (
        ({"compression": Int8()}, TypeError, r"Compression\.of\(Int8\("),
        ({"compression": compression, "op": hvd.Adasum}, ValueError, "op='adasum'"),
        ({"compression": compression, "gradient_predivide_factor": 2.0}, ValueError, "gradient_predivide_factor"),
    ):
        with pytest.raises(error, match=text):
            hvd.DistributedOptimizer(plain, layer.named_parameters(), **wrong)


def sharing(rank: int, size: int) -> None:
    compression = hvd.Compression.topk(0.5)
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    one, two = ([{"params": [layer.weight]}] for layer in layers)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(one, lr=0.1), compression=compression)
    with pytest.raises(ValueError, match=r"compression=ErrorFeedback\(TopK\(.*one for each"):
        hvd.DistributedOptimizer(torch.optim.SGD(two, lr=0.1), compression=compression)
    del optimizer
    again = hvd.DistributedOptimizer(torch.optim.SGD([*one, *two], lr=0.1), compression=compression)
    layers[0].weight.sum().backward()
    again.step()


def test_optimizers_do_not_share_a_memory(pool: Pools) -> None:
    pool(2).run(in_world, sharing)


def test_functions_and_mistakes(pool: Pools) -> None:
    pool(2).run(in_world, functions)
