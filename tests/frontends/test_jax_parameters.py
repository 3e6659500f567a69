"""frontends.jax: whatever gradients the ranks have, the update equals that of one process, or every rank names them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given

from tests.frontends.scenarios import RATE, ROUNDING, SHAPE, Training, rows, trainings
from tests.security.fuzz import fuzz
from tests.worlds import Worlds

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'ronde[jax]'")
optax = pytest.importorskip("optax", reason="optax is not installed: pip install 'ronde[jax]'")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import sparse  # noqa: E402

import frontends.jax as hvd  # noqa: E402


@pytest.fixture(scope="module")
def worlds() -> Any:
    opened = Worlds()
    yield opened
    opened.close()


def train(comm: Any, training: Training) -> list[Any] | str:
    """The parameters after the last step, or the error of a step. Ranks list them in orders of their own."""
    rank = comm.rank
    order = training.orders[rank]
    params = {training.name(number): jnp.full(SHAPE, training.first[number]) for number in order}
    optimizer = hvd.distributed(optax.sgd(RATE))
    state = optimizer.init(params)
    for step in range(len(training.uses)):
        gradients: dict[str, Any] = {}
        for number in order:
            found = training.gradient(step, rank, number)
            if found is not None and training.uses[step][rank][number] == "sparse":
                places = jnp.array([[row] for row in rows(rank)])
                gradients[training.name(number)] = sparse.BCOO((jnp.asarray(found[rows(rank)]), places), shape=SHAPE)
            else:
                gradients[training.name(number)] = None if found is None else jnp.asarray(found, jnp.float32)
        if training.alone and step == len(training.uses) - 1 and rank == 0:
            gradients["extra"] = jnp.ones(SHAPE)
        try:
            updates, state = optimizer.update(gradients, state)
            for name, update in updates.items():
                if update is not None:
                    params[name] = params[name] + np.asarray(update)
        except jax.errors.JaxRuntimeError as error:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                hvd.settle()
            return str(error)
    return [np.asarray(params[training.name(number)]) for number in range(len(order))]


def disagreement(training: Training) -> list[str] | None:
    """The names that an error must have, for the first step in which some ranks lack a gradient."""
    last = len(training.uses) - 1
    for step in range(last + 1):
        have = [
            [training.gradient(step, rank, number) is not None for number in range(len(training.first))]
            for rank in range(training.size)
        ]
        names = [training.name(number) for number, own in enumerate(zip(*have, strict=True)) if len(set(own)) > 1]
        names += ["extra"] * (training.alone and step == last)
        if names:
            return names
    return None


def check(training: Training, found: list[Any]) -> None:
    names = disagreement(training)
    for own in found:
        if names is not None:
            assert isinstance(own, str), own
            assert any(name in own for name in names), own
            continue
        assert not isinstance(own, str), own
        for mine, wanted in zip(own, training.weights(), strict=True):
            assert mine == pytest.approx(wanted, abs=ROUNDING)


@pytest.mark.parametrize("size", [2, 3])
def test_any_gradients_equal_one_process(worlds: Worlds, size: int) -> None:
    @fuzz(10)
    @given(trainings(size))
    def equal(training: Training) -> None:
        check(training, worlds.get("local", size).run(train, training))

    equal()
