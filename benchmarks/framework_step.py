"""A training step of TensorFlow or JAX on Ronde, beside the framework's own training on several processes.

    python benchmarks/framework_step.py tensorflow
    python benchmarks/framework_step.py jax --batch 128 --json FILE

Both steps are run by the same processes, in turns; a time is that of the slowest rank, and the ratio is the median over
the turns of "own / Ronde": above 1, Ronde's step is faster. The network has `--layers` linear layers of `--width`
neurons with ReLU, and learns by SGD; each rank computes on one thread.

    compute  forward, backward, SGD, without communication
    ronde    tensorflow: DistributedGradientTape in a tf.function; jax: allreduce in hvd.jit
    own      tensorflow: MultiWorkerMirroredStrategy, over gRPC; jax: jax.distributed over gloo, where the batch is
             sharded over the processes, and the parameters are replicated
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import collectives as ronde
from collectives.launch.store_keeper import free_port
from frontends.command_line.bench import machine

HOST: Final = "127.0.0.1"
LEARNING_RATE: Final = 0.01
Contender = tuple[Callable[[], object], Callable[[], Any]]
"""Its step, and its parameters of the first layer."""


def tensorflow_steps(layers: int, width: int, batch: int) -> dict[str, Contender]:
    """The contenders of TensorFlow."""
    comm = ronde.world()
    addresses = comm.allgather_object(f"{HOST}:{free_port(HOST)}")
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": comm.rank}}
    )
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import frontends.tensorflow as hvd

    x = tf.constant(np.random.default_rng(comm.rank).standard_normal((batch, width)), tf.float32)

    def network() -> tuple[list[Any], Any]:
        weights = [tf.Variable(one) for one in _weights(layers, width)]
        biases = [tf.Variable(tf.zeros([width])) for _ in range(layers)]
        variables = [*weights, *biases]
        optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)
        optimizer.build(variables)
        return variables, optimizer

    def gradients(variables: list[Any], tape_of: Callable[[Any], Any], share: float = 1.0) -> list[Any]:
        with tf.GradientTape() as tape:
            y = x
            for weight, bias in zip(variables[:layers], variables[layers:], strict=True):
                y = tf.nn.relu(y @ weight + bias)
            loss = share * tf.reduce_mean(tf.square(y))
        found: list[Any] = tape_of(tape).gradient(loss, variables)
        return found

    def plain(tape_of: Callable[[Any], Any]) -> Contender:
        variables, optimizer = network()

        def step() -> None:
            optimizer.apply_gradients(zip(gradients(variables, tape_of), variables, strict=True))

        return tf.function(step), variables[0].numpy

    with strategy.scope():
        variables, optimizer = network()

    def replica() -> None:  # the strategy makes a sum
        found = gradients(variables, lambda tape: tape, 1 / comm.size)
        optimizer.apply_gradients(zip(found, variables, strict=True))

    return {
        "compute": plain(lambda tape: tape),
        "ronde": plain(hvd.DistributedGradientTape),
        "own": (tf.function(lambda: strategy.run(replica)), variables[0].numpy),
    }


def jax_steps(layers: int, width: int, batch: int) -> dict[str, Contender]:
    """The contenders of JAX."""
    comm = ronde.world()
    address = comm.broadcast_object(f"{HOST}:{free_port(HOST)}")
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, comm.size, comm.rank)
    import frontends.jax as hvd

    random = np.random.default_rng(comm.rank)
    x = random.standard_normal((batch, width)).astype(np.float32)

    def network() -> Any:
        return [(one, np.zeros(width, np.float32)) for one in _weights(layers, width)]

    def loss(network: Any, x: Any) -> Any:
        for weight, bias in network:
            x = jax.nn.relu(x @ weight + bias)
        return jnp.mean(jnp.square(x))

    def update(network: Any, gradients: Any) -> Any:
        return jax.tree.map(lambda value, gradient: value - LEARNING_RATE * gradient, network, gradients)

    def plain(network: Any, x: Any) -> Any:
        return update(network, jax.grad(loss)(network, x))

    def distributed(network: Any, x: Any) -> Any:
        return update(network, hvd.allreduce(jax.grad(loss)(network, x)))

    def repeated(function: Any, network: Any, x: Any) -> Contender:
        state = [network]

        def step() -> None:
            state[0] = jax.block_until_ready(function(state[0], x))

        return step, lambda: state[0][0][0].addressable_data(0)

    mesh = Mesh(np.array(jax.devices()), ("rank",))
    everywhere, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("rank"))
    replicated = jax.tree.map(lambda one: jax.make_array_from_process_local_data(everywhere, one), network())
    sharded = jax.make_array_from_process_local_data(divided, x)
    here = jax.tree.map(jnp.asarray, network())
    own = jax.jit(plain, donate_argnums=0, in_shardings=(everywhere, divided), out_shardings=everywhere)
    return {
        "compute": repeated(jax.jit(plain, donate_argnums=0), jax.tree.map(jnp.copy, here), jnp.asarray(x)),
        "ronde": repeated(hvd.jit(distributed, donate_argnums=0), here, jnp.asarray(x)),
        "own": repeated(own, replicated, sharded),
    }


def _weights(layers: int, width: int) -> list[Any]:
    """The same on all ranks."""
    random = np.random.default_rng(0)
    return [(random.standard_normal((width, width)) * (2 / width) ** 0.5).astype(np.float32) for _ in range(layers)]


def measure(framework: str, layers: int, width: int, batch: int, turns: int) -> dict[str, list[float]]:
    """The seconds of each step on this rank. Raises AssertionError if the two ways have not learned the same."""
    comm = ronde.world()
    steps = (tensorflow_steps if framework == "tensorflow" else jax_steps)(layers, width, batch)
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-3, turns):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            comm.barrier()
            began = time.perf_counter()
            steps[name][0]()
            spent = time.perf_counter() - began
            if turn >= 0:
                times[name].append(spent)
    first = _weights(layers, width)[0]
    learned = {name: np.asarray(weights()) - first for name, (_, weights) in steps.items()}
    np.testing.assert_allclose(learned["ronde"], learned["own"], rtol=0, atol=0.02 * np.abs(learned["own"]).max())
    comm.barrier()
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=["tensorflow", "jax"])
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--transport", default="shm", help="shm, tcp, ... (default shm)")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1020)
    parser.add_argument("--batch", type=int, default=2, help="samples of a rank")
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args()
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        "JAX_PLATFORMS": "cpu",
    }
    args = options.framework, options.layers, options.width, options.batch, options.turns
    ranks = ronde.run(measure, np=options.np, args=args, transport=options.transport)
    slowest = {name: [max(row) for row in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}
    print(
        f"{options.framework}, {options.np} ranks, {options.transport}: "
        f"{options.layers * options.width * (options.width + 1) / 1e6:.1f} million parameters, batch {options.batch}"
    )
    for name, seconds in slowest.items():
        print(f"  {name:8} {1e3 * statistics.median(seconds):8.2f} ms")
    ratio = statistics.median(own / ours for own, ours in zip(slowest["own"], slowest["ronde"], strict=True))
    print(f"  own / ronde {ratio:.2f}")
    if options.json is not None:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        report = {"machine": machine(), "settings": settings, "own / ronde": ratio, "seconds": slowest}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
