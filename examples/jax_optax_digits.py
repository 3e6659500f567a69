"""Data-parallel training of a small network on scikit-learn's handwritten digits with JAX and optax.

    ronde run -np 2 python examples/jax_optax_digits.py
    RONDE_TRANSPORT=tcp ronde run -np 3 python examples/jax_optax_digits.py --optimizer sgd --compression bf16

The training step is compiled as a whole. In it, the optimizer averages the gradients of all ranks, as one operation,
before it steps. Every rank trains on its share of each batch.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import ronde.jax as hvd

BATCH = 60


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, help="learning rate (default 0.002 for adam, 0.3 for sgd)")
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
    parser.add_argument(
        "--compression", choices=("none", "fp16", "bf16"), default="none", help="type of sent gradients"
    )
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes per step")
    return parser.parse_args()


def new_parameters(seed: int) -> dict[str, jax.Array]:
    """64 pixels -> 64 -> 10 classes."""
    one, two = jax.random.split(jax.random.key(seed))
    return {
        "w1": jax.random.normal(one, (64, 64)) / 8,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(two, (64, 10)) / 8,
        "b2": jnp.zeros(10),
    }


def logits(parameters: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(images @ parameters["w1"] + parameters["b1"])
    return hidden @ parameters["w2"] + parameters["b2"]


def loss(parameters: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(parameters, images), labels).mean()


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    options = parse()
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1500], order[1500:]

    chosen = {"adam": optax.adam(options.lr or 0.002), "sgd": optax.sgd(options.lr or 0.3)}[options.optimizer]
    optimizer = hvd.distributed(
        chosen,
        compression=getattr(hvd.Compression, options.compression),
        backward_passes_per_step=options.accumulate,
    )
    parameters = hvd.broadcast_parameters(new_parameters(seed=hvd.rank()))  # all begin with rank 0's
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, images, labels)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, hvd.allreduce(value)

    for epoch in range(options.epochs):
        shuffled = np.random.default_rng(epoch).permutation(train)  # the same on every rank
        losses = []
        for start in range(0, len(shuffled), BATCH):
            mine = shuffled[start : start + BATCH][hvd.rank() :: hvd.size()]
            parameters, state, value = step(parameters, state, images[mine], labels[mine])
            losses.append(value)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(jnp.mean(jnp.stack(losses))):.4f}", flush=True)

    mine = test[hvd.rank() :: hvd.size()]
    hits = hvd.allreduce((logits(parameters, images[mine]).argmax(1) == labels[mine]).sum(), op=hvd.Sum)
    bits = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(parameters))
    equal = len(set(hvd.allgather_object(hashlib.sha256(bits).hexdigest()))) == 1
    if hvd.rank() == 0:
        same = "identical" if equal else "DIFFER"
        print(f"accuracy {int(hits) / len(test):.1%} on {hvd.size()} ranks, parameters {same}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
