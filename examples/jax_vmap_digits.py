"""Several networks trained at once by JAX's vmap, one for each learning rate, on scikit-learn's handwritten digits.

    ronde run -np 2 python examples/jax_vmap_digits.py

The training step is written for one network, with the allreduce of its gradients in it. `jax.vmap` makes it a step of
all networks: the gradients of all travel as one operation.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import ronde.jax as hvd

BATCH = 60
RATES = (0.003, 0.03, 0.3)


def logits(parameters: Any, images: jax.Array) -> jax.Array:
    return images @ parameters["w"] + parameters["b"]


def loss(parameters: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(logits(parameters, images))[jnp.arange(len(labels)), labels].mean()


def step(parameters: Any, rate: jax.Array, images: jax.Array, labels: jax.Array) -> Any:
    """A step of one network."""
    gradients = hvd.allreduce(jax.grad(loss)(parameters, images, labels))
    return jax.tree.map(lambda value, gradient: value - rate * gradient, parameters, gradients)


def main() -> None:
    """Train one network for each rate, and report their accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1500], order[1500:]

    rates = jnp.array(RATES)
    parameters = {"w": jnp.zeros((len(RATES), 64, 10)), "b": jnp.zeros((len(RATES), 10))}
    steps = jax.jit(jax.vmap(step, in_axes=(0, 0, None, None)))
    for epoch in range(options.epochs):
        shuffled = np.random.default_rng(epoch).permutation(train)  # the same on every rank
        for start in range(0, len(shuffled), BATCH):
            mine = shuffled[start : start + BATCH][hvd.rank() :: hvd.size()]
            parameters = steps(parameters, rates, images[mine], labels[mine])

    mine = test[hvd.rank() :: hvd.size()]
    hits = jax.vmap(lambda one: (logits(one, images[mine]).argmax(1) == labels[mine]).sum())(parameters)
    hits = hvd.allreduce(hits, op=hvd.Sum)
    if hvd.rank() == 0:
        for rate, count in zip(RATES, hits.tolist(), strict=True):
            print(f"rate {rate}: accuracy {count / len(test):.1%} on {hvd.size()} ranks")
    hvd.shutdown()


if __name__ == "__main__":
    main()
