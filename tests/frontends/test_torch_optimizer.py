"""frontends.torch: training on several ranks equals training on one with all the data."""

from __future__ import annotations

import contextlib
import copy
import itertools
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.frontends.pool import Pool

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import frontends.torch as hvd  # noqa: E402
from tests.frontends.test_torch_ops import in_world  # noqa: E402

Pools = Callable[[int], Pool]
BATCH, STEPS = 12, 5


class Plain(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Unused(Plain):
    """Has parameters that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = torch.nn.Linear(4, 4)


class Shared(Plain):
    """Uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.layers[1](self.layers[0](x))
        return self.layers[2](self.middle(torch.tanh(self.middle(first))))


class Sparse(Plain):
    """Begins with an embedding whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 6, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding((x[:, 0].abs() * 10).long() % 20) + x)


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "plain sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}
CASES: dict[str, tuple[type[Plain], str, dict[str, Any]]] = {
    "sgd": (Plain, "sgd", {}),
    "adam": (Plain, "adam", {}),
    "adamw": (Plain, "adamw", {}),
    "unused parameters": (Unused, "adam", {}),
    "shared parameters": (Shared, "adam", {}),
    "sparse embedding": (Sparse, "plain sgd", {}),
    "sparse as dense": (Sparse, "sgd", {"sparse_as_dense": True}),
    "predivide": (Plain, "sgd", {"gradient_predivide_factor": 2.0}),
    "groups": (Plain, "sgd", {"groups": 2}),
    "accumulation": (Plain, "sgd", {"backward_passes_per_step": 2}),
}


def data(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(STEPS, BATCH * size, 6, generator=generator)
    return x, torch.tanh(x[..., :3] - x[..., 3:])


def train(net: torch.nn.Module, optimizer: Any, passes: int, share: slice, size: int) -> list[Any]:
    """Parameters after some steps on a share of every batch."""
    x, y = data(size)
    for step in range(STEPS):
        optimizer.zero_grad()
        for piece in range(passes):
            xs, ys = x[step][share][piece::passes], y[step][share][piece::passes]
            (torch.nn.functional.mse_loss(net(xs), ys) / passes).backward()
        optimizer.step()
    return [parameter.detach().numpy().copy() for parameter in net.parameters()]


def distributed(rank: int, size: int, case: str) -> list[Any]:
    kind, name, options = CASES[case]
    torch.manual_seed(rank)
    net = kind()
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = OPTIMIZERS[name](net.parameters())
    hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options)
    assert isinstance(optimizer, torch.optim.Optimizer)
    share = slice(rank * BATCH, (rank + 1) * BATCH)
    return train(net, optimizer, options.get("backward_passes_per_step", 1), share, size)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp")])
def test_it_equals_one_process_with_all_the_data(pool: Pools, case: str, size: int, transport: str) -> None:
    results = pool(size).run(in_world, distributed, case, transport=transport)
    kind, name, _ = CASES[case]
    torch.manual_seed(0)
    net = kind()
    right = train(net, OPTIMIZERS[name](net.parameters()), 1, slice(None), size)
    for parameters in results:
        for mine, first, one in zip(parameters, results[0], right, strict=True):
            assert mine.tobytes() == first.tobytes()
            assert mine == pytest.approx(one, rel=2e-4, abs=2e-6)


def test_four_ranks(pool: Pools) -> None:
    results = pool(4).run(in_world, distributed, "adam")
    torch.manual_seed(0)
    net = Plain()
    right = train(net, OPTIMIZERS["adam"](net.parameters()), 1, slice(None), 4)
    for mine, first, one in zip(results[3], results[0], right, strict=True):
        assert mine.tobytes() == first.tobytes()
        assert mine == pytest.approx(one, rel=2e-4, abs=2e-6)


def compressed(rank: int, size: int) -> list[Any]:
    torch.manual_seed(5)
    net = Plain()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), compression=hvd.Compression.fp16)
    return train(net, optimizer, 1, slice(rank * BATCH, (rank + 1) * BATCH), size)


def test_compressed_gradients_come_close(pool: Pools) -> None:
    one, two = pool(2).run(in_world, compressed)
    torch.manual_seed(5)
    net = Plain()
    right = train(net, torch.optim.SGD(net.parameters(), lr=0.1), 1, slice(None), 2)
    for mine, other, exact in zip(one, two, right, strict=True):
        assert mine.tobytes() == other.tobytes()
        assert mine == pytest.approx(exact, abs=2e-3)


def by_hand(rank: int, size: int) -> None:
    torch.manual_seed(5)
    net = Plain()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    x, y = data(size)
    torch.nn.functional.mse_loss(net(x[0][rank::size]), y[0][rank::size]).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.synchronize()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    assert len({value.item() for value in hvd.allgather(norm.reshape(1))}) == 1
    with optimizer.skip_synchronize():
        optimizer.step()
    torch.nn.functional.mse_loss(net(x[1][rank::size]), y[1][rank::size]).backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        torch.nn.functional.mse_loss(net(x[1][rank::size]), y[1][rank::size]).backward()
    optimizer.synchronize()
    text = r"optimizer.step\(\) .*optimizer.skip_synchronize\(\) .*optimizer.synchronize\(\)"
    with pytest.warns(UserWarning, match=text):
        optimizer.step()
    optimizer.set_backward_passes_per_step(2)
    optimizer.zero_grad()
    for step in (2, 3):
        torch.nn.functional.mse_loss(net(x[step][rank::size]), y[step][rank::size]).backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scheduler.step()
    named = list(net.named_parameters())
    for wrong, text in (
        ({"named_parameters": named + named[:1]}, "unique"),
        ({"named_parameters": named[1:]}, "lacks parameters"),
        ({"named_parameters": [parameter for _, parameter in named]}, "pairs"),
        ({"named_parameters": 5}, "pairs"),
        ({"op": [hvd.Sum]}, r"op=\['sum'\]"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "op=Average only"),
        ({"backward_passes_per_step": 0}, "1 or more"),
        ({"groups": [[named[0][1]], [named[0][1]]]}, "more than one"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), **wrong)


def test_synchronize_by_hand_and_mistakes(pool: Pools) -> None:
    pool(2).run(in_world, by_hand)


def with_a_scheduler(rank: int, _: int) -> None:
    net = Plain()
    hvd.broadcast_parameters(net.state_dict(), 0)
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 6) * (rank + step)).sum().backward()
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.1 / 8
    assert len(set(map(str, hvd.allgather_object([one.tolist() for one in net.parameters()])))) == 1


def test_a_scheduler_that_was_made_for_the_plain_optimizer(pool: Pools) -> None:
    pool(2).run(in_world, with_a_scheduler)


def in_a_set(rank: int, _: int) -> list[float]:
    pair = hvd.add_process_set([0, 2])
    layer = torch.nn.Linear(1, 1)
    frozen = torch.nn.Linear(1, 1).requires_grad_(False)
    with torch.no_grad():
        layer.weight.zero_()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([*frozen.parameters(), *layer.parameters()], lr=1.0),
        process_set=pair,
        groups=[[*frozen.parameters(), layer.weight], [layer.bias]],
    )
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.full((1, 1), 2.0**rank)).sum().backward()
        optimizer.step()
    assert frozen.weight.grad is None
    return [layer.weight.item()]


def test_a_rank_outside_of_the_process_set_steps_by_itself(pool: Pools) -> None:
    assert pool(3).run(in_world, in_a_set) == [[-5.0], [-4.0], [-5.0]]


def test_an_optimizer_needs_a_world() -> None:
    with pytest.raises(ValueError, match=r"ronde\.init\(\)"):  # Horovod's; it is a RuntimeError too
        hvd.rank()
    with pytest.raises(RuntimeError, match=r"ronde\.init\(\)"):
        hvd.DistributedOptimizer(torch.optim.SGD(Plain().parameters(), lr=0.1))


class Mixed(torch.nn.Module):
    """Parameters of three dtypes and one that is channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(5, 4, dtype=torch.float64)
        self.short = torch.nn.Linear(5, 4, dtype=torch.bfloat16)
        self.images = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.wide(x.double()).sum() + self.short(x.bfloat16()).double().sum()
        return flat + self.images(x[:, None, None, :].expand(-1, 2, 5, 5)).square().sum()


def gradients_of(net: torch.nn.Module, optimizer: Any, x: torch.Tensor, set_to_none: bool = True) -> list[torch.Tensor]:
    optimizer.zero_grad(set_to_none=set_to_none)
    net(x).backward()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    return [parameter.grad.detach().clone() for parameter in net.parameters()]


def lying(rank: int, size: int, on: bool) -> int:
    """Gradients of all kinds are right, and lie where they should; the number of groups that do."""
    net, twin = Mixed(), Mixed()
    hvd.broadcast_parameters(net.state_dict(), 0)
    twin.load_state_dict(net.state_dict())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), op=hvd.Sum, gradient_as_bucket_view=on
    )
    alone = torch.optim.SGD(twin.parameters(), lr=0.1)
    where = []
    for step in range(4):
        shares = [torch.arange(10.0).reshape(2, 5) / 8 + step + peer for peer in range(size)]
        found = gradients_of(net, optimizer, shares[rank], step < 2)
        wanted = [gradients_of(twin, alone, share) for share in shares]
        for mine, *theirs in zip(found, *wanted, strict=True):
            assert torch.allclose(mine, sum(theirs[1:], theirs[0]), rtol=1e-2 if mine.dtype == torch.bfloat16 else 1e-5)
        where.append([parameter.grad.data_ptr() for parameter in net.parameters()])
        assert net.images.weight.grad.is_contiguous(memory_format=torch.channels_last)
    assert where[1] == where[2] or not on
    assert where[2] == where[3], "zeros were kept"
    return len([group for group in optimizer._reduction._groups if group.slots])


@pytest.mark.parametrize(("transport", "on", "wanted"), [("shm", True, 3), ("shm", False, 3), ("tcp", True, 3)])
def test_gradients_lie_in_windows(pool: Pools, transport: str, on: bool, wanted: int) -> None:
    assert pool(2).run(in_world, lying, on, transport=transport) == [wanted, wanted]


def grouped(rank: int, size: int, on: bool) -> tuple[list[str], list[float]]:
    """The parameters whose gradients have memory of a group, and a mean of each gradient."""
    net = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.Linear(600, 1))
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters(), gradient_as_bucket_view=on
    )
    for _ in range(2):
        found = gradients_of(net, optimizer, torch.full((1, 600), 1.0 + rank))
    return [one.name for one in optimizer._reduction._gradients if one.slot], [
        gradient.mean().item() for gradient in found
    ]


def test_large_gradients_are_sent_from_where_they_are(pool: Pools) -> None:
    every = ["0.weight", "0.bias", "1.weight", "1.bias"]
    for transport, on, wanted in (("shm", True, every), ("shm", False, every[1:]), ("tcp", True, every[1:])):
        (names, means), other = pool(2).run(in_world, grouped, on, transport=transport)
        assert names == wanted
        assert means == other[1]


def joined(rank: int, size: int) -> list[float]:
    """Rank 1 has data for one step only, rank 0 for three."""
    net = torch.nn.Linear(3, 1, bias=False)
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters())
    seen = []
    for step in range(3 if rank == 0 else 1):
        seen.append(gradients_of(net, optimizer, torch.full((1, 3), 2.0 + 2 * step))[0][0, 0].item())
    assert hvd.join() == 0
    return seen


def late(rank: int, size: int) -> list[float]:
    """Rank 1 joins before its first step."""
    net = torch.nn.Linear(3, 1, bias=False)
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters())
    seen = []
    for epoch in range(2):
        for _ in range(2 if rank == 0 or epoch else 0):
            seen.append(gradients_of(net, optimizer, torch.full((1, 3), 4.0))[0][0, 0].item())
        hvd.join()
    return seen


def test_uneven_data_and_windows(pool: Pools) -> None:
    assert pool(2).run(in_world, joined) == [[2.0, 2.0, 3.0], [2.0]]
    assert pool(2).run(in_world, late) == [[2.0, 2.0, 4.0, 4.0], [4.0, 4.0]]


def kept(rank: int, size: int, on: bool) -> None:
    """Gradients that somebody keeps, and those that are part of a graph."""
    net = torch.nn.Linear(3, 1, bias=False)
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters(), gradient_as_bucket_view=on
    )
    x = torch.full((1, 3), 1.0 + 2 * rank)
    for _ in range(2):  # after the first step the ranks know which gradients are dense
        gradients_of(net, optimizer, x)
    assert net.weight.grad is not None
    old = net.weight.grad[:, :1]
    assert old.item() == 2.0
    with pytest.warns(UserWarning, match=r"gradient\.clone\(\)") if on else contextlib.nullcontext():
        gradients_of(net, optimizer, 3 * x)
    assert old.item() == (6.0 if on else 2.0)
    optimizer.zero_grad()
    (net(x) ** 2).sum().backward(create_graph=True)
    optimizer.synchronize()
    squares = hvd.allgather((2 * net(x) * x).detach())
    assert torch.allclose(net.weight.grad, squares.mean(0, keepdim=True))
    assert net.weight.grad.requires_grad


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_gradients_that_are_kept(pool: Pools, transport: str) -> None:
    """By default they keep their values; as views the next step overwrites them, with a warning."""
    pool(2).run(in_world, kept, False, transport=transport)
    pool(2).run(in_world, kept, True, transport=transport)


def sometimes_sparse(rank: int, size: int) -> None:
    """The first step knows of no sparse gradient: the embedding is not used in it."""
    net = Sparse()
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    for used in (False, True, True, False):
        optimizer.zero_grad()
        x = torch.full((2, 6), 0.1 + rank)
        (net(x) if used else net.layers(x)).sum().backward()
        optimizer.step()
        assert (net.embedding.weight.grad is not None) == used
        if used:
            assert net.embedding.weight.grad.is_sparse
            rows = net.embedding.weight.grad.coalesce().indices()[0].tolist()
            assert rows == [1, 11]
            assert net.embedding.weight.grad.to_dense()[1, 0] != 0
        everywhere = hvd.allgather(net.layers[0].weight.grad[None])
        assert torch.equal(everywhere[0], everywhere[-1])
    assert "embedding.weight" not in repr([group.name for group in optimizer._reduction._groups])


def test_gradients_that_turn_out_to_be_sparse(pool: Pools) -> None:
    pool(2).run(in_world, sometimes_sparse)


def sparse_on_their_way_dense(rank: int, size: int) -> None:
    """Alone, in a group, in a group with memory, and compressed."""
    for options in (
        {"gradient_as_bucket_view": True},
        {"groups": 1},
        {},
        {"groups": 1, "compression": hvd.Compression.fp16},
    ):
        net = Sparse()
        hvd.broadcast_parameters(net.state_dict(), 0)
        weight = net.embedding.weight
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), sparse_as_dense=True, **options)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.full((2, 6), 0.1 + rank)).sum().backward()
            optimizer.synchronize()
            assert weight.grad.is_sparse
            assert weight.grad.sparse_dim() == 1
            assert weight.grad.coalesce().indices()[0].tolist() == [1, 11]
            with optimizer.skip_synchronize():
                optimizer.step()
        assert len(set(map(str, hvd.allgather_object(weight.tolist())))) == 1
    net = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(net.parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), sparse_as_dense=True)
    net(torch.tensor([rank])).sum().backward()
    optimizer.step()


def test_sparse_as_dense_gives_sparse_gradients_back(pool: Pools) -> None:
    pool(2).run(in_world, sparse_on_their_way_dense)


def unlike(rank: int, size: int) -> None:
    """Ranks whose parameters have their elements in different orders."""
    net = torch.nn.Conv2d(2, 3, 2)
    hvd.broadcast_parameters(net.state_dict(), 0)
    if rank:
        net = net.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    optimizer.zero_grad()
    net(torch.full((1, 2, 4, 4), 1.0 + rank)).sum().backward()
    optimizer.step()
    assert torch.equal(net.weight.grad, torch.full((3, 2, 2, 2), 9 * 1.5))


def test_ranks_with_other_memory_formats_go_without(pool: Pools) -> None:
    pool(2).run(in_world, unlike)


def adasum(rank: int, size: int) -> list[Any]:
    torch.manual_seed(5)
    net = Plain()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), op=hvd.Adasum)
    return train(net, optimizer, 1, slice(None), size)


def test_adasum_of_equal_steps_is_the_step(pool: Pools) -> None:
    one, two = pool(2).run(in_world, adasum)
    torch.manual_seed(5)
    net = Plain()
    right = train(net, torch.optim.SGD(net.parameters(), lr=0.05), 1, slice(None), 2)
    for mine, other, exact in zip(one, two, right, strict=True):
        assert mine.tobytes() == other.tobytes()
        assert mine == pytest.approx(exact, abs=1e-5)


def adasum_of_several_passes(rank: int, size: int) -> None:
    """The formula of Adasum for two ranks, on the step that all backward passes together make."""
    torch.manual_seed(5)
    net = torch.nn.Linear(7, 3)
    alone = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), op=hvd.Adasum, backward_passes_per_step=2)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(2):
        optimizer.zero_grad()
        before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
        alone.load_state_dict(net.state_dict())
        alone.zero_grad()
        for _ in range(2):
            x = torch.randn(4, 7, generator=generator)
            for one in (net, alone):
                one(x).square().sum().backward()
        with pytest.raises(AssertionError, match="backward_passes_per_step"):
            net(x).sum().backward()
        for parameter, twin in zip(net.parameters(), alone.parameters(), strict=True):
            parameter.grad.copy_(twin.grad)  # without the pass that was one too many
        optimizer.step()
        for (name, parameter), twin in zip(net.named_parameters(), alone.parameters(), strict=True):
            a, b = hvd.allgather((-0.05 * twin.grad)[None])
            product = (a * b).sum()
            change = (1 - product / (2 * a.square().sum())) * a + (1 - product / (2 * b.square().sum())) * b
            assert torch.allclose(parameter, before[name] + change, atol=1e-5)

    def closure() -> torch.Tensor:
        loss = net(x).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    optimizer.set_backward_passes_per_step(1)
    closure()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        closure()


def test_adasum_after_several_passes(pool: Pools) -> None:
    pool(2).run(in_world, adasum_of_several_passes)


def states(rank: int, size: int) -> None:
    for kind in (
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "ASGD",
        "LBFGS",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    ):
        for stepped in ("nobody", "root", "all"):
            torch.manual_seed(rank)
            net = torch.nn.Linear(3, 2)
            optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01 * (rank + 1))
            if stepped == "all" or (stepped == "root" and rank == 1):
                net(torch.randn(4, 3)).sum().backward()
                optimizer.step(lambda net=net: net(torch.ones(1, 3)).sum())
            hvd.broadcast_optimizer_state(optimizer, 1)
            assert optimizer.param_groups[0]["lr"] == 0.02
            seen = hvd.allgather_object(copy.deepcopy(optimizer.state_dict()))
            assert repr(seen[0]) == repr(seen[-1]), (kind, stepped)
            assert bool(seen[0]["state"]) == (stepped != "nobody") or kind in ("SGD", "Adagrad", "LBFGS")
    rows = torch.nn.Embedding(3, 2, sparse=True)
    optimizer = torch.optim.SGD(rows.parameters(), lr=0.1, momentum=0.9)
    if rank == 1:
        rows(torch.tensor([1])).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 1)
    assert optimizer.state[rows.weight]["momentum_buffer"].to_dense().tolist() == [[0, 0], [1, 1], [0, 0]]


def test_broadcast_of_every_optimizers_state(pool: Pools) -> None:
    pool(2).run(in_world, states)


def normalisation(rank: int, size: int) -> None:
    generator = torch.Generator().manual_seed(2)
    whole = torch.randn(4 * size + 1, 3, 5, generator=generator) * 3 + 100
    share = slice(0, 5) if rank == 0 else slice(1 + 4 * rank, 5 + 4 * rank)
    ours, theirs = hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
    for _ in range(3):
        mine = whole[share].clone().requires_grad_()
        full = whole.clone().requires_grad_()
        got, right = ours(mine), theirs(full)
        assert torch.allclose(got, right[share], atol=1e-4)
        (got**3).sum().backward()
        (right**3).sum().backward()
        assert torch.allclose(mine.grad, full.grad[share], atol=1e-3)
    assert torch.allclose(ours.running_mean, theirs.running_mean, atol=1e-4)
    assert torch.allclose(ours.running_var, theirs.running_var, rtol=1e-4)
    before = ours.running_mean.clone(), ours.running_var.clone()
    for _ in range(2):
        ours(whole[:0].requires_grad_()).sum().backward()  # of all ranks together; as torch, it changes nothing
    assert torch.equal(torch.stack(before), torch.stack((ours.running_mean, ours.running_var)))
    ours.eval()
    theirs.eval()
    assert torch.allclose(ours(whole), theirs(whole), atol=1e-4)
    with pytest.raises(ValueError, match="dimensions"):
        ours(torch.ones(3))
    ours.train()
    with pytest.raises(ValueError, match="2 channels"):
        ours(torch.ones(4, 2))
    with pytest.raises(TypeError, match="int64"):
        ours(torch.ones(4, 3, dtype=torch.int64))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert ours(whole.to(dtype)).dtype is dtype
    bare, plain = hvd.SyncBatchNorm(3, affine=False), torch.nn.BatchNorm1d(3, affine=False)
    for mean in (0.0, 1e6):  # the result is changed in place; squares of such numbers have no digits for the deviation
        mine, full = ((rows.double() * 1e-3 + mean).requires_grad_() for rows in (whole[share], whole))
        got, right = (torch.relu_(layer(x)) for layer, x in ((bare.double(), mine), (plain.double(), full)))
        assert torch.allclose(got, right[share], atol=1e-7)
        (got**3).sum().backward()
        (right**3).sum().backward()
        assert torch.allclose(mine.grad, full.grad[share], atol=1e-6)
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(ours(mine.float()).pow(3).sum(), mine, create_graph=True)[0].sum().backward()


def test_sync_batch_norm_equals_batch_norm_of_the_whole_batch(pool: Pools) -> None:
    pool(2).run(in_world, normalisation)
    pool(3).run(in_world, normalisation)


def changing(case: str, op: str | None, x: Any) -> list[float]:
    """The weights after some steps with parameters that change after wrapping; without `op` by a plain optimizer."""
    a, b = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False)
    for module in (a, b):
        torch.nn.init.constant_(module.weight, 1.0)
    names = [("a", a.weight), ("b", b.weight)]
    if case == "unfrozen":
        a.weight.requires_grad_(False)
    optimizer = torch.optim.SGD([b.weight] if "added" in case else [a.weight, b.weight], lr=0.1, momentum=0.5)
    if op is not None:
        optimizer = hvd.DistributedOptimizer(optimizer, None if "unnamed" in case else names, op=op)
    for step in range(4):
        if step == 1 and case == "unfrozen":
            a.weight.requires_grad_(True)
        elif step == 1 and "added" in case:
            optimizer.add_param_group({"params": [a.weight], "lr": 0.2})
        elif step == 1 and case == "replaced":
            a.weight = optimizer.param_groups[0]["params"][0] = torch.nn.Parameter(2 * torch.ones(2, 2))
        elif step == 1 and case == "frozen":
            a.weight.requires_grad_(False)
        optimizer.zero_grad()
        b(a(x)).sum().backward()
        optimizer.step()
    return [*a.weight.flatten().tolist(), *b.weight.flatten().tolist()]


def changed(rank: int, size: int, case: str, op: str) -> None:
    own, mean = (1.0, 1.0) if op == hvd.Adasum else (rank + 1.0, (size + 1) / 2)  # Adasum of equal steps is the step
    found = changing(case, op, torch.full((1, 2), own))
    assert found == pytest.approx(changing(case, None, torch.full((1, 2), mean)), rel=1e-5)


@pytest.mark.parametrize("op", ["average", "adasum"])
def test_t4_unfrozen_added_and_replaced_parameters(pool: Pools, op: str) -> None:
    for case in ("unfrozen", "added", "unnamed and added", "replaced", "frozen"):
        pool(2).run(in_world, changed, case, op)


def sparse_on_one(rank: int, size: int, warm: bool, options: dict[str, Any]) -> list[list[float]]:
    e, w = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Parameter(torch.ones(1))
    torch.nn.init.zeros_(e.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([e.weight, w], lr=1.0), named_parameters=[("e", e.weight), ("w", w)], **options
    )

    def step(use: bool) -> None:
        optimizer.zero_grad()
        ((e(torch.tensor([rank, 3])).sum() if use else 0.0) + w.sum()).backward()
        optimizer.step()

    if warm:
        step(True)
    step(rank == 0)
    step(True)
    return e.weight.tolist()


@pytest.mark.parametrize("warm", [False, True])
def test_t5_sparse_missing(pool: Pools, warm: bool) -> None:
    row = [-0.5, -0.5]
    for options in ({}, {"sparse_as_dense": True}, {"groups": 1}, {"gradient_as_bucket_view": True}):
        for found in pool(2).run(in_world, sparse_on_one, warm, options):
            whole = torch.tensor(found)
            assert whole[0].tolist() == [(2 + warm) * one for one in row]
            assert whole[1].tolist() == [(1 + warm) * one for one in row]
            assert whole[3].tolist() == [(3 + 2 * warm) * one for one in row]


def sparse_where_others_are_dense(rank: int, size: int, cases: list[list[str]]) -> list[list[float]]:
    weight = torch.nn.Parameter(torch.zeros(3, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)], op=hvd.Sum)
    for kinds in cases:
        dense = torch.zeros(3, 2)
        dense[rank] = 1.0
        weight.grad = {"dense": dense, "sparse": dense.to_sparse(1), "none": None}[kinds[rank]]
        optimizer.step()
    return weight.tolist()


def test_gradients_of_another_kind_on_every_rank(pool: Pools) -> None:
    cases = list(itertools.product(["dense", "sparse", "none"], repeat=2))
    first, second = pool(2).run(in_world, sparse_where_others_are_dense, [list(case) for case in cases])
    assert first == second == [[-6.0, -6.0], [-6.0, -6.0], [0.0, 0.0]]


def listed_otherwise(rank: int, size: int, named: bool) -> str:
    torch.manual_seed(1)
    one, two = torch.nn.Parameter(torch.randn(2)), torch.nn.Parameter(torch.randn(2))
    own = [one, two] if rank == 0 else [two, one]
    names = [("one", one), ("two", two)] if named else None
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(own, lr=1.0), names, op=hvd.Sum)
    (one.sum() + 10 * two.sum()).backward()
    try:
        optimizer.step()
    except ValueError as error:
        return str(error)
    return f"{one.grad.tolist()} {two.grad.tolist()}"


def test_parameters_that_ranks_list_in_different_orders(pool: Pools) -> None:
    assert set(pool(2).run(in_world, listed_otherwise, True)) == {"[2.0, 2.0] [20.0, 20.0]"}
    ranks = pool.fresh(2)
    try:
        assert all("param_groups.0.0" in text for text in ranks.run(in_world, listed_otherwise, False))
    finally:
        ranks.close()


def other_arguments(rank: int, size: int, cases: list[list[dict[str, Any]]]) -> list[str]:
    return [_error_with(**case[rank]) for case in cases]


def _error_with(lossy: bool = False, **options: Any) -> str:
    """The error of a step in which one gradient is sparse."""
    if lossy:
        options["compression"] = hvd.Compression.int8()
    table, weight = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 2)
    parameters = [*table.named_parameters("table"), *weight.named_parameters("weight")]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([one for _, one in parameters], lr=1.0), parameters, **options)
    weight(table(torch.tensor([0]))).sum().backward()
    with pytest.raises(ValueError) as caught:
        optimizer.step()
    return str(caught.value)


@pytest.mark.parametrize(
    ("mine", "other", "text"),
    [
        ({}, {"groups": 2}, "'groups': rank 0 has a value of None, rank 1 has a value of 2"),
        ({}, {"lossy": True}, "'compression': rank 0 has a value of NoneCompressor, rank 1 has a value of Int8("),
        ({"op": hvd.Sum}, {"op": hvd.Average}, "'op': rank 0 has a value of sum, rank 1 has a value of average"),
    ],
)
def test_arguments_that_differ_between_ranks_are_named(
    pool: Pools, mine: dict[str, Any], other: dict[str, Any], text: str
) -> None:
    ranks = pool.fresh(2)
    try:
        for errors in ranks.run(in_world, other_arguments, [[mine, other]]):
            assert text in errors[0]
    finally:
        ranks.close()


def two_without_names(rank: int, size: int, options: dict[str, Any]) -> None:
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    first, second = (hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), **options) for weight in weights)
    for step in range(3):
        if rank == 0:
            weights[0].sum().backward()
            with pytest.raises(ValueError, match=r"param_groups.0.0.*named_parameters"):  # rank 1 is not there yet
                (10 * weights[1]).sum().backward()
        hvd.barrier()
        if rank == 1:
            weights[0].sum().backward()
        first.step()
        if rank == 1:
            (20 * weights[1]).sum().backward()
        second.step()
        assert weights[0].tolist() == [-1.0 * (step + 1)] * 2
        assert weights[1].tolist() == [-15.0 * (step + 1)] * 2
        first.zero_grad()
        second.zero_grad()


@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"gradient_as_bucket_view": True}])
def test_two_optimizers_without_names_at_work_at_once(pool: Pools, options: dict[str, Any]) -> None:
    pool(2).run(in_world, two_without_names, options)


def interrupted(rank: int, size: int, options: dict[str, Any]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], op=hvd.Sum, **options)
    for step in range(5):
        optimizer.zero_grad()
        if step == 2 and rank == 1:
            hvd.barrier()
        ((step + 1) * weight).sum().backward()
        if step == 2 and rank == 0:
            before = signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                optimizer.step()
            signal.signal(signal.SIGALRM, before)
            with pytest.raises(ValueError, match="step that was interrupted"):
                optimizer.step()
            with pytest.raises(ValueError, match="step that was interrupted"):
                optimizer.zero_grad()
            weight.grad = None
            with pytest.raises(ValueError, match="step that was interrupted"):
                weight.sum().backward()
            hvd.barrier()
        elif step == 3:  # rank 1 has made the step that rank 0 has not
            for _ in range(2):
                with pytest.raises(ValueError, match="different values of weight"):
                    optimizer.step()
            hvd.broadcast_parameters([("weight", weight)], root_rank=1)
        else:
            optimizer.step()
            assert weight.grad.tolist() == [2.0 * (step + 1)] * 2
        hvd.barrier()
    assert weight.tolist() == [-2.0 * (1 + 2 + 3 + 5)] * 2


@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"gradient_as_bucket_view": True}])
def test_a_step_that_was_interrupted_keeps_its_gradients(pool: Pools, options: dict[str, Any]) -> None:
    pool(2).run(in_world, interrupted, options)


def other_parameters(rank: int, size: int, op: str) -> str:
    one, two = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    own, names = [one, two][: 1 + rank], [("one", one), ("two", two)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(own, lr=1.0), names, op=op)
    (one.sum() + two.sum()).backward()
    with pytest.raises(ValueError) as caught:
        optimizer.step()
    return str(caught.value)


@pytest.mark.parametrize("op", ["sum", "adasum"])
def test_a_parameter_of_one_rank_alone_is_named_on_every_rank(pool: Pools, op: str) -> None:
    ranks = pool.fresh(2)
    try:
        assert all("'two'" in text for text in ranks.run(in_world, other_parameters, op))
    finally:
        ranks.close()


def compiling_autograd(rank: int, size: int) -> None:
    for options in ({}, {"groups": 1, "compression": hvd.Compression.fp16}, {"op": hvd.Adasum}):
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], **options)
        for _ in range(3):
            loss = (2 * (weight if "op" in options else weight * rank)).sum()
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert weight.tolist() == [1 - 3 * 2 * (1 if "op" in options else 0.5)] * 2


def test_a_compiled_backward_pass_calls_the_hooks_as_they_are(pool: Pools) -> None:
    pool(2).run(in_world, compiling_autograd)
