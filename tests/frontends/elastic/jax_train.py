"""An elastic loop for JAX. It trains until a rank has come and left."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import ronde.jax as hvd

hvd.init()
inputs = jax.random.normal(jax.random.key(1), (64, 8))
targets = inputs.sum(1, keepdims=True)
weights = jax.random.normal(jax.random.key(hvd.rank()), (8, 1))
optimizer = hvd.distributed(optax.sgd(0.001))


def loss(weights: Any, data: Any, target: Any) -> Any:
    return jnp.mean((data @ weights - target) ** 2)


@hvd.jit
def step(weights: Any, kept: Any, data: Any, target: Any) -> Any:
    changes, kept = optimizer.update(jax.grad(loss)(weights, data, target), kept, weights)
    return optax.apply_updates(weights, changes), kept


@hvd.elastic.run
def train(state: Any) -> None:
    state.sizes = [*state.sizes, hvd.size()]
    print("train", f"size={hvd.size()}", flush=True)
    while not (state.sizes[-1] == 2 and 3 in state.sizes and state.step % 20 == 0):
        at = (state.step * hvd.size() + hvd.rank()) % 8 * 8
        given = inputs[at : at + 8], targets[at : at + 8]
        state.weights, state.optimizer_state = step(state.weights, state.optimizer_state, *given)
        state.step += 1
        if state.step % 5 == 0:
            state.commit()


state = hvd.elastic.JaxState(weights=weights, optimizer_state=optimizer.init(weights), step=0, sizes=[])
train(state)
print("done", float(state.weights.sum()).hex(), *state.sizes, flush=True)
