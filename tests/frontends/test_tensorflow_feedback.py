"""Compression with loss and a memory, in frontends.tensorflow: tape and optimizer, eager, in functions, in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontends.pool import Pool

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed: pip install 'ronde[tensorflow]'")

import frontends.tensorflow as hvd  # noqa: E402
from tests.frontends.test_tensorflow_ops import in_world  # noqa: E402

Pools = Callable[[int], Pool]
X = np.random.default_rng(3).normal(size=(96, 40)).astype(np.float32)
Y = np.tanh(np.roll(X, 1, 1))
FIRST = np.random.default_rng(4).normal(0.0, 0.1, (2, 40, 40)).astype(np.float32)
COMPRESSIONS: dict[str, Callable[[], Any]] = {
    "none": lambda: hvd.Compression.none,
    "int8": hvd.Compression.int8,
    "top-k": lambda: hvd.Compression.topk(0.2),
    "PowerSGD": lambda: hvd.Compression.powersgd(4),
}


def loss_of(one: Any, two: Any, x: Any, y: Any) -> Any:
    return tf.reduce_mean((tf.tanh(x @ one) @ two - y) ** 2)


def by_tape(x: Any, y: Any, compression: Any, compiled: bool) -> list[Any]:
    one, two = (tf.Variable(value) for value in FIRST)

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(one, two, x, y)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        for weight, gradient in zip((one, two), tape.gradient(loss, [one, two]), strict=True):
            weight.assign_sub(2.0 * gradient)

    run = tf.function(step) if compiled else step
    for _ in range(60):
        run()
    return [one.numpy(), two.numpy()]


def by_session(x: Any, y: Any, compression: Any) -> list[Any]:
    with tf.Graph().as_default():
        weights = [tf.compat.v1.get_variable(f"w{index}", initializer=value) for index, value in enumerate(FIRST)]
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(2.0)
        train = hvd.DistributedOptimizer(optimizer, compression=compression).minimize(loss_of(*weights, x, y))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(60):
                session.run(train)
            return list(session.run(weights))


def training(rank: int, size: int) -> None:
    x, y = X[rank::size], Y[rank::size]
    ways: dict[str, Callable[[Any], list[Any]]] = {
        "eager": lambda compression: by_tape(x, y, compression, compiled=False),
        "function": lambda compression: by_tape(x, y, compression, compiled=True),
        "session": lambda compression: by_session(x, y, compression),
    }
    plain = float(loss_of(*ways["eager"](hvd.Compression.none), X, Y))
    assert plain < 0.8 * float(loss_of(*FIRST, X, Y))
    for name in ("int8", "top-k", "PowerSGD"):
        for way, run in ways.items():
            compression = COMPRESSIONS[name]()
            weights = run(compression)
            loss = float(loss_of(*weights, X, Y))
            assert loss != plain, (name, way)
            assert abs(loss - plain) < 0.15 * plain, (name, way, loss, plain)
            assert len(compression.memory.memories) == 2, "that of the first step serves all"
            every = hvd.allgather_object([weight.tobytes() for weight in weights])
            assert every[0] == every[-1]


def test_training_ends_where_it_does_without_compression(pool: Pools) -> None:
    pool(2).run(in_world, training)


def missing(rank: int, size: int) -> None:
    """The part that a gradient has not sent is not added to another variable in a step that lacks the gradient."""
    compression = hvd.Compression.topk(0.01)
    one, other = (tf.Variable(tf.zeros(2000)) for _ in range(2))
    for used in (1.0, None):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(other) * 0.0
            if used:
                loss += tf.reduce_sum(one * tf.linspace(1.0, 2.0, 2000))
        found = hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, [one, other])
        assert not tf.math.count_nonzero(found[1])
    assert len(compression.memory.memories) == 2

    compression = hvd.Compression.topk(0.01)
    plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    optimizer = hvd.DistributedOptimizer(plain, backward_passes_per_step=2, compression=compression)
    for used in (1.0, 1.0, None, None):

        def loss(used: Any = used) -> Any:
            first = tf.reduce_sum(one * tf.linspace(1.0, 2.0, 2000)) if used else 0.0
            return first + tf.reduce_sum(other) * 0.0

        optimizer.minimize(loss, var_list=[one, other])
        assert not tf.math.count_nonzero(other)
    assert len(compression.memory.memories) == 2


def test_a_memory_belongs_to_its_variable(pool: Pools) -> None:
    pool(2).run(in_world, missing)


def sharing(rank: int, size: int) -> None:
    """Variables of one name do not share a memory, and one that is gone leaves nothing to the next."""
    compression = hvd.Compression.topk(0.01)

    def combined(variable: Any, factor: float) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * tf.linspace(1.0, 2.0, 2000)) * factor
        return hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, variable)

    one, other = (tf.Variable(tf.zeros(2000)) for _ in range(2))
    for run in (combined, tf.function(combined)):
        run(one, 1.0)
        with pytest.raises(ValueError, match=r"compression=.*one for each"):
            run(other, 0.0)
    del one, run
    assert not tf.math.count_nonzero(combined(other, 0.0))


def test_one_memory_serves_one_model(pool: Pools) -> None:
    pool(2).run(in_world, sharing)


def functions(rank: int, size: int) -> None:
    x = tf.linspace(-1.0, 1.0, 4096) * (rank + 1.0)
    compression = hvd.Compression.int8()
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([rank]), tf.constant([size, 2]))
    for run in (hvd.grouped_allreduce, tf.function(hvd.grouped_allreduce)):
        found, sparse = run([x, slices], name="x", compression=compression, op=hvd.Sum)
        np.testing.assert_allclose(found, np.linspace(-1, 1, 4096) * size * (size + 1) / 2, atol=0.1)
        np.testing.assert_array_equal(tf.convert_to_tensor(sparse), np.ones((size, 2)))
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(hvd.allreduce(x, name="y", op=hvd.Sum, compression=compression))
    np.testing.assert_array_equal(tape.gradient(total, x), np.full(4096, size))
    with pytest.raises(ValueError, match=r"op='max': Int8\(.*Average and Sum only"):
        hvd.allreduce(x, op=hvd.Max, compression=compression)
    with pytest.raises(TypeError, match=r"compression=.*casts"):
        hvd.reducescatter(x, compression=compression)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(tf.GradientTape(), compression=compression, gradient_predivide_factor=2.0)


def test_functions_and_mistakes(pool: Pools) -> None:
    pool(2).run(in_world, functions)
