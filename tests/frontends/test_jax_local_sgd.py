"""frontends.jax.local_sgd: pytrees; the rounds themselves are tested with NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from tests.worlds import world_of

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'ronde[jax]'")

import jax.numpy as jnp  # noqa: E402

from frontends.jax.local_sgd import DiLoCo, LocalSGD  # noqa: E402


def test_a_pytree_is_returned_anew() -> None:
    @jax.jit
    def train(params: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w: ((x @ w - x.sum(1)) ** 2).mean())(params["w"])
        return {**params, "w": params["w"] - 0.1 * gradient}

    def rank(comm: Communicator) -> Any:
        x = np.random.default_rng(comm.rank).normal(size=(64, 4)).astype(np.float32)
        params = {"w": jnp.full(4, float(comm.rank)), "rest": (jnp.zeros((2, 2), jnp.bfloat16), None)}
        outer = DiLoCo(params, every=5, fragments=2, delay=1)
        params = outer.start(params)
        assert params["w"].tolist() == [0.0] * 4
        while outer.steps < 40:
            params = outer.step(train(params, x))
        params = outer.sync(params)
        assert isinstance(params["w"], jax.Array)
        assert params["rest"][0].dtype == jnp.bfloat16
        np.testing.assert_allclose(params["w"], np.ones(4), atol=0.1)
        return params["w"].tolist()

    with world_of("local", 2) as world:
        one, other = world.run(rank)
    assert one == other


def test_numpy_arrays_in_a_pytree_are_not_changed() -> None:
    def rank(comm: Communicator) -> None:
        params = [np.full(3, float(comm.rank), np.float32)]
        local = LocalSGD(params, every=1)
        (first,) = local.start(params)
        assert first.tolist() == [0.0] * 3
        assert params[0].tolist() == [float(comm.rank)] * 3

    with world_of("local", 2) as world:
        world.run(rank)


def test_bad_parameters() -> None:
    with pytest.raises(TypeError, match=r"params\['a/0'\]: .*array.* not float"):
        DiLoCo({"a": [1.0]})
    with pytest.raises(TypeError, match=r"params\['n'\]: .*int32.*floats"):
        DiLoCo({"n": jnp.zeros(3, jnp.int32)})
