"""The steps of distributed optimizers that are not backward, step, zero_grad: loads and changes that
come between backward and step. Ranks are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.worlds import World, Worlds

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

import frontends.torch as hvd  # noqa: E402

SIZE = 2
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "group": {"groups": 1},
    "fp16": {"compression": hvd.Compression.fp16},
    "fp16 in a group": {"compression": hvd.Compression.fp16, "groups": 1},
    "view": {"gradient_as_bucket_view": True},
}


@pytest.fixture(scope="module")
def worlds() -> Any:
    opened = Worlds()
    yield opened
    opened.close()


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.get("local", SIZE)


def made(kind: Callable[..., Any] = torch.optim.SGD, **options: Any) -> tuple[Any, Any]:
    """A parameter of value 8, and its distributed optimizer with learning rate 1."""
    one = torch.nn.Parameter(torch.full((2,), 8.0))
    return one, hvd.DistributedOptimizer(kind([one], lr=1.0), [("one", one)], **options)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_state_can_be_loaded_between_backward_and_step(world: World, options: str) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(**OPTIONS[options])
        found = []
        for _ in range(3):
            (100 * one.sum()).backward()
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad()
            (2 * comm.rank * one.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(one[0].item())
        return found

    assert world.run(steps) == [[7.0, 6.0, 5.0]] * SIZE


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("replaced", [None, torch.full((2,), 100.0)])
def test_a_rank_that_replaces_its_gradient_after_backward_gets_that_of_all(
    world: World, options: str, replaced: Any
) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(**OPTIONS[options])
        found = []
        for _ in range(3):
            (2 * comm.rank * one.sum()).backward()
            if comm.rank == 0:
                one.grad = replaced  # model.zero_grad() makes it None
            optimizer.step()
            optimizer.zero_grad()
            found.append(one[0].item())
        return found

    assert world.run(steps) == [[7.0, 6.0, 5.0]] * SIZE


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_passes_that_change_between_backward_and_step_hold_from_the_next_step_on(world: World, op: Any) -> None:
    def steps(comm: Any) -> list[float]:
        one, optimizer = made(op=op)
        one.sum().backward()
        optimizer.set_backward_passes_per_step(2)
        optimizer.step()
        optimizer.zero_grad()
        one.sum().backward()
        one.sum().backward()
        if op == hvd.Average:
            with pytest.raises(AssertionError, match="backward_passes_per_step"):
                one.sum().backward()
        optimizer.set_backward_passes_per_step(1)
        optimizer.step()
        return list(one.tolist())

    first, second = world.run(steps)
    assert first == second
