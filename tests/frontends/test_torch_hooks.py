"""frontends.torch.parameters.Hooks: every gradient of a backward pass is told of, by the end of the pass."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

from frontends.torch.parameters import SMALL_BYTES, Hooks  # noqa: E402


def weights(count: int, elements: int = 2) -> list[Any]:
    return [torch.nn.Parameter(torch.ones(elements)) for _ in range(count)]


def total(parameters: list[Any]) -> Any:
    return sum(parameter.sum() for parameter in parameters)


@pytest.fixture
def told() -> list[list[int]]:
    """The calls of the function: the ids of the parameters of each."""
    return []


@pytest.fixture
def hooks(told: list[list[int]]) -> Hooks:
    return Hooks(lambda parameters: told.append([id(parameter) for parameter in parameters]))


def test_small_gradients_are_told_together_and_the_last_at_the_end_of_the_pass(
    told: list[list[int]], hooks: Hooks
) -> None:
    parameters = weights(70)
    hooks.follow(parameters)
    for _ in range(2):
        told.clear()
        total(parameters).backward()
        assert sorted(one for call in told for one in call) == sorted(map(id, parameters))
        assert len(told) < 5


def test_a_large_gradient_is_told_at_once_with_the_small_ones_before_it(told: list[list[int]], hooks: Hooks) -> None:
    small, large = weights(2), torch.nn.Parameter(torch.ones(SMALL_BYTES // 4 + 1))
    seen = []
    large.register_post_accumulate_grad_hook(lambda _: seen.append(len(told)))  # before that of `hooks`
    hooks.follow([*small, large])
    large.register_post_accumulate_grad_hook(lambda _: seen.append(len(told)))
    total([*small, large]).backward()
    assert seen[1] == seen[0] + 1
    assert sum(map(len, told)) == 3


def test_an_error_of_the_function_is_raised_by_the_pass() -> None:
    def refuse(parameters: Any) -> None:
        raise AssertionError("refused")

    parameters = weights(2)
    hooks = Hooks(refuse)
    hooks.follow(parameters)
    with pytest.raises(AssertionError, match="refused"):
        total(parameters).backward()


class Failing(torch.autograd.Function):  # type: ignore[misc]
    """A function whose backward pass fails."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("no gradient")


def half_a_pass(parameters: list[Any]) -> None:
    """A backward pass that reaches `parameters`, and then ends by an error: its last node was called first."""
    first = Failing.apply(torch.ones(2, requires_grad=True))
    with pytest.raises(RuntimeError, match="no gradient"):
        (first.sum() + total(parameters)).backward()


def test_what_a_failed_pass_leaves_is_told_when_asked_for(told: list[list[int]], hooks: Hooks) -> None:
    parameters = weights(2)
    hooks.follow(parameters)
    half_a_pass(parameters)
    assert told == []
    hooks.hand_over()
    assert sorted(told[0]) == sorted(map(id, parameters))
    hooks.hand_over()
    assert len(told) == 1


def test_what_a_failed_pass_leaves_can_be_forgotten(told: list[list[int]], hooks: Hooks) -> None:
    parameters = weights(2)
    hooks.follow(parameters)
    half_a_pass(parameters)
    hooks.forget()
    total(parameters).backward()
    assert sum(map(len, told)) == 2
