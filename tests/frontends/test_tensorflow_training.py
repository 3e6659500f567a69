"""frontends.tensorflow: training, eager, in functions and in graphs, and no deadlock whatever order graphs run in."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives
from collectives.membership import set_bounds
from tests.frontends.launch import output, ronde_run
from tests.frontends.pool import ROOT, Framework, Pool
from tests.frontends.test_tensorflow_ops import in_world

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed: pip install 'ronde[tensorflow]'")

import frontends.tensorflow as hvd  # noqa: E402
from frontends.tensorflow import reducing  # noqa: E402

Pools = Callable[[int], Pool]
ROWS, STEPS = 12, 6
GENERATOR = np.random.default_rng(7)
INPUTS = GENERATOR.normal(size=(STEPS, ROWS, 5)).astype(np.float32)
TARGETS = GENERATOR.normal(size=(STEPS, ROWS, 3)).astype(np.float32)
FIRST = [GENERATOR.normal(size=shape).astype(np.float32) / 3 for shape in ((5, 4), (4,), (4, 3), (3,))]


def loss_of(weights: list[Any], x: Any, y: Any) -> Any:
    hidden = tf.tanh(x @ weights[0] + weights[1])
    return tf.reduce_mean((hidden @ weights[2] + weights[3] - y) ** 2)


@functools.cache
def alone() -> list[Any]:
    """The weights after training in one process, on all rows."""
    w1, b1, w2, b2 = (value.astype(np.float64) for value in FIRST)
    for x, y in zip(INPUTS, TARGETS, strict=True):
        hidden = np.tanh(x @ w1 + b1)
        error = 2 * (hidden @ w2 + b2 - y) / y.size
        inner = (error @ w2.T) * (1 - hidden**2)
        w2, b2 = w2 - 0.1 * hidden.T @ error, b2 - 0.1 * error.sum(0)
        w1, b1 = w1 - 0.1 * x.T @ inner, b1 - 0.1 * inner.sum(0)
    return [w1, b1, w2, b2]


def check_weights(weights: list[Any]) -> None:
    """The same bits on all ranks, and what one process comes to, to rounding."""
    bits = b"".join(weight.tobytes() for weight in weights)
    assert len(set(hvd.allgather_object(bits))) == 1
    for found, expected in zip(weights, alone(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def by_tape(rank: int, size: int) -> None:
    rows = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    for options in ({}, {"groups": 2, "gradient_predivide_factor": 2.0}):
        for compiled in (False, True):
            weights = [tf.Variable(value * (rank + 1)) for value in FIRST]
            hvd.broadcast_variables(weights, 0)

            def step(x: Any, y: Any, weights: list[Any] = weights, options: Any = options) -> Any:
                with tf.GradientTape() as tape:
                    loss = loss_of(weights, x, y)
                tape = hvd.DistributedGradientTape(tape, **options)
                for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                    weight.assign_sub(0.1 * gradient)
                return hvd.allreduce(loss, name="loss")

            run = tf.function(step) if compiled else step
            for x, y in zip(INPUTS, TARGETS, strict=True):
                run(tf.constant(x[rows]), tf.constant(y[rows]))
            check_weights([weight.numpy() for weight in weights])


def by_session(rank: int, size: int) -> None:
    rows = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    for passes in (1, 2):
        with tf.Graph().as_default():
            x = tf.compat.v1.placeholder(tf.float32, [None, 5])
            y = tf.compat.v1.placeholder(tf.float32, [None, 3])
            weights = [
                tf.compat.v1.get_variable(f"w{index}", initializer=value * (rank + 1.0))
                for index, value in enumerate(FIRST)
            ]
            count = tf.compat.v1.train.get_or_create_global_step()
            optimizer = hvd.DistributedOptimizer(
                tf.compat.v1.train.GradientDescentOptimizer(0.1),
                backward_passes_per_step=passes,
                average_aggregated_gradients=True,
            )
            train = optimizer.minimize(loss_of(weights, x, y), global_step=count)
            hook = hvd.BroadcastGlobalVariablesHook(0)
            with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                for step, (xs, ys) in enumerate(zip(INPUTS, TARGETS, strict=True)):
                    mine = np.array_split(np.arange(ROWS)[rows], passes)
                    for part in mine:  # the halves of this rank's rows, one by one
                        session.run(train, {x: xs[part], y: ys[part]})
                    assert session.run(count) == step + 1
                found = session.run(weights)
        check_weights(found)


def by_eager_optimizer(rank: int, size: int) -> None:
    rows = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    weights = [tf.Variable(value) for value in FIRST]
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=2)
    for x, y in zip(INPUTS, TARGETS, strict=True):
        for part in np.array_split(np.arange(ROWS)[rows], 2):
            optimizer.minimize(lambda x=x[part], y=y[part]: loss_of(weights, x, y) / 2, var_list=weights)
    check_weights([weight.numpy() for weight in weights])


def by_lists_of_variables(rank: int, size: int) -> None:
    """Passes belong to their list of variables, as those of two losses, or before and after a layer is unfrozen."""

    def new() -> tuple[Any, Any, Any]:
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        return optimizer, tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])

    def step(optimizer: Any, factors: list[tuple[Any, float]], given: list[Any]) -> None:
        def loss() -> Any:
            return tf.add_n([tf.reduce_sum(variable) * (factor + rank) for variable, factor in factors])

        pairs = optimizer.compute_gradients(loss, var_list=given)
        optimizer.apply_gradients([(gradient, one) for gradient, one in pairs if gradient is not None])

    mean = (size - 1) / 2
    optimizer, one, other = new()
    for _ in range(2):
        step(optimizer, [(one, 1.0)], [one])
        step(optimizer, [(other, 10.0)], [other])
    np.testing.assert_allclose([one, other], [[-2 - 2 * mean] * 2, [-20 - 2 * mean] * 2])

    optimizer, one, other = new()
    for _ in range(2):
        step(optimizer, [(other, 1.0)], [other])
    for _ in range(2):
        step(optimizer, [(one, 1.0), (other, 10.0)], [one, other])
    np.testing.assert_allclose([one, other], [[-2 - 2 * mean] * 2, [-22 - 4 * mean] * 2])

    optimizer, one, other = new()  # a gradient that only an earlier pass has
    step(optimizer, [(one, 1.0), (other, 10.0)], [one, other])
    step(optimizer, [(one, 1.0)], [one, other])
    np.testing.assert_allclose([one, other], [[-2 - 2 * mean] * 2, [-10 - mean] * 2])


def parts_of_models(rank: int, size: int) -> None:
    shared, own, table = tf.Variable([1.0]), tf.Variable([1.0]), tf.Variable(tf.ones([size + 1, 2]))

    def gradients(**options: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = (rank + 1) * tf.reduce_sum(shared + own) + tf.reduce_sum(tf.gather(table, [rank, rank + 1]))
        tape = hvd.DistributedGradientTape(tape, **options)
        tape.register_local_source(own)
        return list(tape.gradient(loss, [shared, own, table]))

    mean = (size + 1) / 2
    rows = np.array([1.0] + [2.0] * (size - 1) + [1.0])[:, None].repeat(2, 1)
    for function in (gradients, tf.function(gradients)):
        one, two, three = function()
        np.testing.assert_allclose(one, [mean])
        np.testing.assert_allclose(two, [(rank + 1) / size])
        assert isinstance(three, tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(three), rows / size, rtol=1e-6)
        one, two, three = function(op=hvd.Sum, scale_local_gradients=False, sparse_as_dense=True)
        np.testing.assert_allclose(one, [mean * size])
        np.testing.assert_allclose(two, [rank + 1])
        np.testing.assert_allclose(three, rows)

    class Layer:
        weights = (own,)

    with tf.GradientTape() as tape:
        loss = (rank + 1) * tf.reduce_sum(shared + own)
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=Layer())
    found = tape.gradient(loss, {"shared": shared, "own": own, "none": table})
    np.testing.assert_allclose(found["own"], [(rank + 1) / size])
    np.testing.assert_allclose(found["shared"], [mean])
    assert found["none"] is None


def other_names(rank: int, size: int) -> None:
    """Variables that are called differently on each rank, as after a model that only one of them has made."""
    variables = [tf.Variable([1.0], name=f"weight_{index + rank}") for index in range(2)]

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = variables[0] * (rank + 1.0) + variables[1] * (10.0 * rank)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, variables, use_generic_names=True)

    total = size * (size + 1) / 2
    for found in (step(), tf.function(step)()):
        assert [float(one[0]) for one in found] == [total, 10 * (total - size)]


@pytest.mark.parametrize("way", [by_tape, by_session, by_eager_optimizer, by_lists_of_variables])
def test_weights_are_those_of_one_process(pool: Pools, way: Callable[..., None]) -> None:
    pool(2).run(in_world, way)
    pool(3).run(in_world, way, transport="tcp")


def test_gradients_that_are_not_combined(pool: Pools) -> None:
    pool(3).run(in_world, parts_of_models)


def test_variables_of_other_names(pool: Pools) -> None:
    pool(2).run(in_world, other_names)


def outside_of_the_set(rank: int, size: int) -> None:
    """Ranks that are not of the process set keep their own gradients."""
    import keras

    some = hvd.add_process_set([0, 2])
    expected = 1.0 if some.included() else float(rank)
    variable = tf.Variable([0.0])
    with tf.GradientTape() as tape:
        loss = variable * float(rank)
    (found,) = hvd.DistributedGradientTape(tape, process_set=some).gradient(loss, [variable])
    assert found.numpy().tolist() == [expected]
    plain = keras.optimizers.SGD(1.0)
    optimizer = hvd.DistributedOptimizer(plain, process_set=some)
    optimizer.apply_gradients([(tf.constant([float(rank)]), variable)])
    assert variable.numpy().tolist() == [-expected]


def test_ranks_outside_of_the_process_set(pool: Pools) -> None:
    pool(3).run(in_world, outside_of_the_set)


def in_groups(rank: int, size: int) -> None:
    """Gradients travel in groups where cores are free meanwhile, else as one; groups that are asked for are made."""
    variables = [tf.Variable(tf.fill([4, number + 1], 1.0 + rank), name=f"v{number}") for number in range(6)]

    def gradients(**options: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable**2) for variable in variables])
        return list(hvd.DistributedGradientTape(tape, **options).gradient(loss, variables))

    for cores, options, calls in (
        (2 * size, {}, 2),
        (2 * size - 1, {}, 1),
        (1, {"groups": 3}, 3),
        (64, {"groups": 6}, 6),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reducing, "BUCKET", 128)
            patch.setattr(reducing, "count_together", lambda masks, cores=cores: cores)
            compiled = tf.function(functools.partial(gradients, **options)).get_concrete_function()
        kinds = [node.type for node in compiled.graph.get_operations()]
        assert kinds.count("RondeCall") == calls, (cores, options)
        for number, found in enumerate(compiled()):
            np.testing.assert_allclose(found, np.full([4, number + 1], size + 1.0))


def test_groups_are_for_hosts_with_free_cores(pool: Pools) -> None:
    pool(2).run(in_world, in_groups)


def in_a_smaller_world(rank: int, size: int) -> None:
    """Functions that were traced by three ranks, after one of them has left."""
    table, weight, own = tf.Variable(tf.zeros([4, 2])), tf.Variable(tf.zeros(2)), tf.Variable(tf.zeros(2))
    plain = tf.keras.optimizers.SGD(1.0)
    optimizer = hvd.DistributedOptimizer(plain)
    optimizer.build([weight, own])
    optimizer.register_local_var(own)

    @tf.function
    def tape(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = x * (tf.reduce_sum(tf.gather(table, [1])) + tf.reduce_sum(weight) + tf.reduce_sum(own))
        tape = hvd.DistributedGradientTape(tape)
        tape.register_local_source(own)
        sparse, dense, local = tape.gradient(loss, [table, weight, own])
        return tf.convert_to_tensor(sparse)[1], dense, local

    @tf.function
    def keras(x: Any) -> Any:
        optimizer.apply([-x * tf.ones(2), -x * tf.ones(2)], [weight, own])
        return weight.value(), own.value()

    @tf.function
    def gathered(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = hvd.allgather(x)
            loss = tf.reduce_sum(found * tf.cast(1 + tf.range(tf.shape(found)[0]), tf.float32))
        return tape.gradient(loss, x)

    @tf.function
    def scattered(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(hvd.reducescatter(x, op=hvd.Sum))
        return tape.gradient(loss, x)

    for ranks in (size, size - 1):
        if hvd.size() > ranks:
            if rank == 0:
                return  # and shut down
            collectives.world().shrink()
        weight.assign([0.0, 0.0])
        own.assign([0.0, 0.0])
        x, mean = hvd.rank() + 1.0, (ranks + 1) / 2
        for found in (tape(tf.constant(x)), (None, *keras(tf.constant(x)))):
            for one, expected in zip(found, (mean, mean, x / ranks), strict=True):
                if one is not None:
                    np.testing.assert_allclose(one, [expected] * 2, rtol=1e-6)
        assert gathered(tf.ones(1)).numpy().tolist() == [x]
        assert scattered(tf.ones(6)).numpy().tolist() == [float(ranks)] * 6


def test_graphs_are_right_in_a_smaller_world(pool: Pools) -> None:
    pool(3).run(in_world, in_a_smaller_world)


def alone_for_a_while(rank: int, size: int) -> None:
    """A graph of one rank combines gradients only where other ranks may come; they find it in their own groups."""
    variables = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
    store = collectives.world().transport.group.parent_store
    assert store is not None

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(variable**2) for variable in variables)
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reducing, "count_together", lambda masks: 1)
        patch.setattr(reducing, "BUCKET", 1)
        for calls in (0, 2):  # ranks that come may have cores enough: one call for each bucket, as in a large world
            if calls:
                set_bounds(store, 1, None)
            compiled = tf.function(gradients).get_concrete_function()
            kinds = [node.type for node in compiled.graph.get_operations()]
            assert kinds.count("RondeCall") == calls
            for found in (compiled(), gradients()):
                assert [gradient.numpy().tolist() for gradient in found] == [[2.0, 4.0], [6.0]]


def test_a_graph_of_one_rank_where_others_may_come(pool: Pools) -> None:
    pool(1).run(in_world, alone_for_a_while)


def batch_norm(rank: int, size: int) -> None:
    x = np.random.default_rng(3).normal(5.0, 2.0, size=(4 * size + 2, 3, 6)).astype(np.float32)
    weights = np.random.default_rng(4).normal(size=x.shape).astype(np.float32)
    mine = slice(4 * rank, 4 * rank + 4) if rank < size - 1 else slice(4 * rank, None)

    def run(layer: Any, rows: slice, compiled: bool) -> tuple[Any, Any, Any]:
        def step(x: Any, w: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(y * y * w)
            return y, tape.gradient(loss, x)

        y, gradient = (tf.function(step) if compiled else step)(tf.constant(x[rows]), tf.constant(weights[rows]))
        return y, gradient, layer.moving_variance.numpy()

    import keras

    expected = run(keras.layers.BatchNormalization(), slice(None), False)
    for compiled in (False, True):
        y, gradient, variance = run(hvd.SyncBatchNormalization(), mine, compiled)
        np.testing.assert_allclose(y, expected[0][mine], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gradient, expected[1][mine], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(variance, expected[2], rtol=1e-5)
    wide = tf.constant(x / 1000 + 1e6, tf.float64)  # whose squares have no digits for the deviation
    whole = keras.layers.BatchNormalization(dtype="float64", epsilon=1e-9)(wide, training=True)
    y = hvd.SyncBatchNormalization(dtype="float64", epsilon=1e-9)(wide[mine], training=True)
    np.testing.assert_allclose(y, whole[mine], atol=1e-4)
    layer, masked = hvd.SyncBatchNormalization(), np.arange(3) < 2
    y = layer(x[mine], training=True, mask=np.broadcast_to(masked, (len(x[mine]), 3)))
    plain = keras.layers.BatchNormalization()(x[:, masked], training=True)
    np.testing.assert_allclose(y.numpy()[:, masked], plain[mine], rtol=1e-3, atol=1e-3)


def test_batch_norm_over_all_ranks(pool: Pools) -> None:
    pool(2).run(in_world, batch_norm)
    pool(3).run(in_world, batch_norm, transport="tcp")


TENSORS = 12


def in_any_order(rank: int, size: int, threads: int) -> None:
    """In graphs that every rank has made in an order of its own, five times: 200 steps of a function with single
    operations and one with a tape, and 200 of a session, of which each second runs one operation alone."""
    assert tf.config.threading.get_inter_op_parallelism_threads() == threads
    order = list(range(TENSORS))
    shuffle = random.Random(1000 * threads + rank).shuffle
    total = size * (size + 1) / 2

    def singles(x: Any) -> list[Any]:
        found: dict[int, Any] = {}
        for number in order:
            found[number] = hvd.allreduce(x * float(number), op=hvd.Sum, name=f"single.{number}")
            if number % 4 == 0:  # one that needs the other
                found[number] = hvd.broadcast(found[number] + 1.0, size - 1, name=f"after.{number}") - 1.0
        return [found[number] for number in range(TENSORS)]

    variables = [tf.Variable(tf.ones([1 + number]), name=f"v{number}") for number in range(TENSORS)]

    def taped(x: Any, groups: int | None) -> list[Any]:
        mine = [variables[number] for number in order]
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable * x) * (1 + len(variable)) for variable in mine])
        gradients = hvd.DistributedGradientTape(tape, op=hvd.Sum, groups=groups).gradient(loss, mine)
        return [gradients[order.index(number)] for number in range(TENSORS)]

    x = tf.constant(rank + 1.0)
    for _ in range(5):
        shuffle(order)
        functions = tf.function(singles), tf.function(taped)
        for step in range(20):
            assert [one.numpy() for one in functions[0](x)] == [total * number for number in range(TENSORS)]
            for number, one in enumerate(functions[1](x, (None, 5)[step % 2])):
                np.testing.assert_array_equal(one, np.full(1 + number, total * (2 + number), np.float32))
    for _ in range(5):
        shuffle(order)
        with tf.Graph().as_default():
            given = tf.compat.v1.placeholder(tf.float32, [])
            results = singles(given)
            with tf.compat.v1.Session() as session:
                for step in range(20):
                    assert session.run(results, {given: rank + 1.0}) == [total * number for number in range(TENSORS)]
                    assert session.run(results[step % TENSORS], {given: rank + 1.0}) == total * (step % TENSORS)


def with_threads(threads: int) -> None:
    """Settings for a fresh process of a pool, before TensorFlow has run anything."""
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def without_version_2(rank: int, size: int) -> None:
    """The settings of scripts that switch TensorFlow 2 off: variables of the old kind, `cond` of the old kind."""
    tf.compat.v1.disable_v2_behavior()
    by_session(rank, size)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("old", initializer=float(rank))
        assert not hasattr(variable, "handle")
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(1))
        assert session.run(variable) == 1.0


@pytest.mark.parametrize(("threads", "transport"), [(1, "shm"), (2, "tcp")])
def test_no_deadlock_in_any_order(pool: Framework, threads: int, transport: str) -> None:
    ranks = pool.fresh(2)
    try:
        ranks.run(with_threads, threads)
        ranks.run(in_world, in_any_order, threads, transport=transport)
        ranks.run(in_world, without_version_2, transport=transport)
    finally:
        ranks.close()


def attempt(gradient: Callable[[], Any]) -> Any:
    """The result, or the text of the error."""
    try:
        return gradient()
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        return str(error)


def equal_names(rank: int, size: int) -> list[Any]:
    v, w, factor = tf.Variable(1.0), tf.Variable(1.0), rank + 1

    def gradients(*order: Any) -> list[float]:
        with tf.GradientTape() as tape:
            loss = 10.0 * v * factor + 100.0 * w * factor
        return [float(one) for one in hvd.DistributedGradientTape(tape).gradient(loss, list(order))]

    return [
        attempt(functools.partial(gradients, *order)) for order in ((v, w), (w, v), (v, w) if rank == 0 else (w, v))
    ]


def test_f1_tf_names(pool: Pools) -> None:
    for alike, reversed_alike, otherwise in pool(2).run(in_world, equal_names):
        assert alike == [15.0, 150.0]
        assert reversed_alike == [150.0, 15.0]
        assert "'Variable'" in otherwise


def kinds(rank: int, size: int, case: list[str], compiled: bool) -> Any:
    """The gradients of a variable that is used in different ways on each rank."""
    table, other = tf.Variable(tf.ones((4, 2)), name="table"), tf.Variable(1.0, name="other")

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            chosen = {"dense": table, "slices": tf.gather(table, [rank, 3]), "none": tf.zeros(1)}[case[rank]]
            loss = tf.reduce_sum(chosen) + other
        found = hvd.DistributedGradientTape(tape).gradient(loss, [other, table])
        return [tf.convert_to_tensor(one) for one in found if one is not None]

    found = attempt(tf.function(gradients) if compiled else gradients)
    return found if isinstance(found, str) else [one.numpy().tolist() for one in found]


@pytest.mark.parametrize("compiled", [False, True])
def test_t5_gradients_of_other_kinds(pool: Pools, compiled: bool) -> None:
    for case in (["slices", "none"], ["none", "dense"], ["slices", "dense"]):
        assert all("'table'" in text for text in pool(2).run(in_world, kinds, case, compiled))
    assert pool(2).run(in_world, kinds, ["none", "none"], compiled) == [[1.0]] * 2
    rows = [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [1.0, 1.0]]
    assert pool(2).run(in_world, kinds, ["slices", "slices"], compiled) == [[1.0, rows]] * 2


def other_arguments(rank: int, size: int, compiled: bool) -> list[Any]:
    table = tf.Variable(tf.ones((4, 2)), name="table")

    def gradients(options: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank, 3]))
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, table)

    cases = [{"op": hvd.Sum}, {"op": hvd.Average}], [{"groups": 1}, {"groups": [[table]]}]
    calls = [functools.partial(gradients, case[rank]) for case in cases]
    return [attempt(tf.function(call) if compiled else call) for call in calls]


@pytest.mark.parametrize("compiled", [False, True])
def test_t6_arguments_of_other_ranks(pool: Pools, compiled: bool) -> None:
    """Slices are gathered and then summed by each rank: with another op they would be other ones."""
    for op, groups in pool(2).run(in_world, other_arguments, compiled):
        assert "'op': rank 0 has a value of sum, rank 1 has a value of average" in op
        assert "'groups': rank 0 has a value of 1, rank 1 has a value of [['table']]" in groups


def other_passes(rank: int, size: int, cases: list[list[tuple[int, bool]]], compiled: bool) -> list[list[Any]]:
    """The results of the passes of each case, up to the first error."""
    found = []
    for number, case in enumerate(cases):
        passes, average = case[rank]
        variable = tf.Variable([1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.1),
            f"passes{number}",
            backward_passes_per_step=passes,
            average_aggregated_gradients=average,
        )

        def step(variable: Any = variable, optimizer: Any = optimizer) -> None:
            with tf.name_scope("mine"):
                pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(variable), [variable])
                optimizer.apply_gradients(pairs)

        run = tf.function(step) if compiled else step
        results = [attempt(run)]
        while not isinstance(results[-1], str) and len(results) < 6:
            results.append(attempt(run))
        found.append(results)
    return found


@pytest.mark.parametrize("compiled", [False, True])
def test_t7_passes_of_other_ranks(pool: Pools, compiled: bool) -> None:
    """The first step is an error on all ranks: a rank with one pass does not wait for others in a tf.cond."""
    cases = [[(1, False), (2, False)], [(3, False), (2, False)], [(2, True), (2, False)], [(2, True), (2, True)]]
    for rank, found in enumerate(pool(2).run(in_world, other_passes, cases, compiled)):
        words = "'backward_passes_per_step'", "'backward_passes_per_step'", "'average_aggregated_gradients'"
        for case, results, word in zip(cases, found[:3], words, strict=False):
            assert word in results[-1]
            assert len(results) == case[rank][0]
        assert len(found[3]) == 6  # without an error


def slices_with_an_op(rank: int, size: int) -> None:
    """The error comes before anything is sent: the other rank, which does not call it, does not wait."""
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([4, 2]))
    if rank == 0:
        with pytest.raises(NotImplementedError):
            hvd.grouped_allreduce([tf.ones(2), slices], op=hvd.Max, name="group")
    assert hvd.grouped_allreduce([tf.ones(2)], op=hvd.Sum, name="group")[0].numpy().tolist() == [2.0, 2.0]


def test_s6_ops_of_slices_are_checked_first(pool: Pools) -> None:
    pool(2).run(in_world, slices_with_an_op)


def in_new_ranks(pool: Framework, script: Path, *arguments: object) -> str:
    """The output of two new ranks that run the script."""
    ranks = pool.fresh(2)
    try:
        return ranks.run_script(script, *arguments)
    finally:
        ranks.close()


@pytest.mark.parametrize("name", ["tensorflow_tape_digits.py", "tensorflow_v1_hook_digits.py"])
def test_examples(pool: Framework, name: str, tmp_path: Path) -> None:
    """In new ranks that have TensorFlow already, twice; one example first as a user starts it."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")
    script, checkpoint = ROOT / "examples" / name, tmp_path / "digits"
    if "tape" in name:
        text = output(*ronde_run(2), script, "--checkpoint", checkpoint)
    else:
        text = in_new_ranks(pool, script, "--checkpoint", checkpoint)
    assert "epoch 5: loss" in text
    found = re.search(r"accuracy ([\d.]+)% on 2 ranks, parameters identical", text)
    assert found is not None, text
    assert float(found[1]) > 88
    again = in_new_ranks(pool, script, "--checkpoint", checkpoint, "--epochs", 6)
    assert "epoch 5: loss" not in again
    assert "epoch 6: loss" in again


def jacobians(rank: int, size: int) -> None:
    one, other = tf.Variable([1.0, 2.0]), tf.Variable(1.0)
    rows = tf.reshape(tf.range(4.0), (2, 2))

    def whole(loops: bool) -> Any:
        with tf.GradientTape(persistent=loops) as tape:
            found = one * one * (rank + 1)
        tape = hvd.DistributedGradientTape(tape)
        return tape.jacobian(found, {"one": one, "other": other}, experimental_use_pfor=not loops)

    def by_row(loops: bool) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=loops)) as tape:
            tape.watch(rows)
            found = rows * rows * (rank + 1)
        return tape.batch_jacobian(found, rows, experimental_use_pfor=not loops)

    for loops in (False, True):
        for run in (lambda function: function, tf.function):
            found = run(functools.partial(whole, loops))()
            np.testing.assert_allclose(found["one"], np.diag([1.0, 2.0]) * (size + 1))
            assert found["other"] is None
            expected = [np.diag(row) * (size + 1) for row in rows.numpy()]
            np.testing.assert_allclose(run(functools.partial(by_row, loops))(), expected)


def test_jacobians_are_combined_as_gradients_are(pool: Pools) -> None:
    pool(2).run(in_world, jacobians)
