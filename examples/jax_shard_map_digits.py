"""JAX's shard_map over the devices of a process, and Ronde across processes, on handwritten digits.

    ronde run -np 2 python examples/jax_shard_map_digits.py

Each process has two devices (of the CPU, for this example). `jax.shard_map` divides the process's rows among them and
averages over the devices; Ronde averages over the processes, between the compiled gradients and the compiled step,
since a program of several devices cannot call Ronde. At the end the parameters are compared with those of one device
that has seen all rows.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import ronde.jax as hvd

BATCH, RATE, DEVICES = 96, 0.3, 2


def loss(parameters: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    scores = images @ parameters["w"] + parameters["b"]
    return -jax.nn.log_softmax(scores)[jnp.arange(len(labels)), labels].mean()


@jax.jit
def descend(parameters: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda value, gradient: value - RATE * gradient, parameters, gradients)


def main() -> None:
    """Train on this process's rows, and compare with one device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    batches = [np.random.default_rng(step).permutation(len(images))[:BATCH] for step in range(options.steps)]

    mesh = jax.make_mesh((DEVICES,), ("local",), axis_types=(AxisType.Auto,))
    everywhere = NamedSharding(mesh, P())
    local = jax.shard_map(
        lambda parameters, x, y: jax.lax.pmean(loss(parameters, x, y), "local"),
        mesh=mesh,
        in_specs=(P(), P("local"), P("local")),
        out_specs=P(),
    )
    gradients_of = jax.jit(jax.grad(local))
    start = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}
    parameters = jax.device_put(start, everywhere)
    for batch in batches:
        mine = batch[hvd.rank() :: hvd.size()]
        gradients = gradients_of(parameters, images[mine], labels[mine])
        # Every device has the same gradients: those of one travel. XLA's CPU devices share threads, so nothing may wait
        # in one of them while the devices wait for each other.
        one = jax.tree.map(lambda array: array.addressable_data(0), jax.block_until_ready(gradients))
        mean = jax.block_until_ready(hvd.allreduce(one))
        parameters = jax.block_until_ready(descend(parameters, jax.device_put(mean, everywhere)))

    if hvd.rank() == 0:
        alone, one = start, jax.jit(jax.grad(loss))
        for batch in batches:
            alone = descend(alone, one(alone, images[batch], labels[batch]))
        difference = max(float(jnp.abs(parameters[name] - alone[name]).max()) for name in alone)
        accuracy = (np.asarray(images @ alone["w"] + alone["b"]).argmax(1) == labels).mean()
        print(f"{hvd.size()} processes with {len(mesh.devices)} devices each: accuracy {accuracy:.1%}")
        print(f"largest difference of a parameter to one device: {difference:.1e}", flush=True)
        if difference > 1e-4:
            raise SystemExit(1)
    hvd.shutdown()


if __name__ == "__main__":
    main()
