"""frontends.tensorflow: every operation, eager and in functions, gradients, errors, names, process sets and join."""

from __future__ import annotations

import functools
import pickle
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.launch import python
from tests.frontends.pool import Pool
from transports.errors import MismatchError

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed: pip install 'ronde[tensorflow]'")

import frontends.tensorflow as hvd  # noqa: E402
from frontends.tensorflow_ops.done import Done  # noqa: E402
from frontends.tensorflow_ops.errors import DisagreementError  # noqa: E402

Pools = Callable[[int], Pool]
DTYPES = (
    "float32",
    "bfloat16",
    "int64",
    "float64",
    "float16",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint16",
    "float8_e4m3fn",
)
COMPILED = DTYPES[:3]
ROOT = Path(__file__).parents[2]


def in_world(body: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The program of a rank: `body(rank, size, *args)` between init and shutdown."""
    hvd.init(**options)
    try:
        return body(hvd.rank(), hvd.size(), *args)
    finally:
        hvd.shutdown()


def same(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def in_both_modes(function: Callable[..., Any], *tensors: Any, compile: bool = True) -> list[Any]:
    """The results of a function run eagerly, and twice as a tf.function, whose shapes are checked too."""
    if not compile:
        return [function(*tensors)]
    compiled = tf.function(function)
    results = [function(*tensors), compiled(*tensors), compiled(*tensors)]
    shapes = tf.nest.map_structure(lambda one: one.shape, compiled.get_concrete_function(*tensors).structured_outputs)
    tf.nest.map_structure(lambda shape, one: shape.assert_is_compatible_with(one.shape), shapes, results[0])
    return results


def all_operations(rank: int, size: int) -> None:
    total = size * (size + 1) // 2
    for name in DTYPES:
        kind = tf.as_dtype(name).as_numpy_dtype
        base = np.arange(1, 7).reshape(2, 3)
        both = functools.partial(in_both_modes, compile=name in COMPILED)
        array = (base * (rank + 1)).astype(kind)
        x = tf.constant(array)
        for found in both(lambda x: hvd.allreduce(x, op=hvd.Sum), x):
            same(found, (base * total).astype(kind))
        same(hvd.allreduce(x, op=hvd.Max), (base * size).astype(kind))
        same(hvd.allreduce(x, op=hvd.Min), base.astype(kind))
        same(x, array)
        for one, two in both(lambda x: hvd.grouped_allreduce([x, x[0]], op=hvd.Sum), x):
            same(one, (base * total).astype(kind))
            same(two, (base[0] * total).astype(kind))
        rows = tf.constant(np.full((rank + 1, 2), rank, kind))
        gathered = np.concatenate([np.full((peer + 1, 2), peer, kind) for peer in range(size)])
        for found, flat in both(lambda rows: hvd.grouped_allgather([rows, rows[:, 0]]), rows):
            same(found, gathered)
            same(flat, gathered[:, 0])
        mine = tf.constant(np.full(3, rank, kind))
        for found in both(lambda mine: hvd.broadcast(mine, size - 1), mine):
            same(found, np.full(3, size - 1, kind))
        part = np.arange(2 * rank, 2 * rank + 2)
        sequence = tf.constant(np.arange(2 * size, dtype=kind))
        for found in both(hvd.alltoall, sequence):
            same(found, np.tile(part, size).astype(kind))
        counts = np.arange(1, size + 1)
        for found in both(hvd.alltoall, tf.constant(np.full((size * (rank + 1), 2), rank, kind))):
            same(found, np.repeat(np.arange(size), counts)[:, None].repeat(2, 1).astype(kind))
        for found in both(lambda x: hvd.reducescatter(x, op=hvd.Sum), sequence):
            same(found, (part * size).astype(kind))
    same(hvd.allreduce(tf.constant([True, rank == 0]), op=hvd.Max), [True, True])
    x = tf.constant([1.0, 2.0]) * (rank + 1.0)
    for found in in_both_modes(hvd.allreduce, x):
        same(found, np.array([1, 2], np.float32) * (size + 1) / 2)
    same(hvd.allreduce(x, average=False), np.array([1, 2], np.float32) * total)
    same(hvd.allreduce(tf.ones(3), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), np.full(3, 2.0 * size, "f"))
    same(hvd.allreduce(tf.constant(float(rank))), np.float32((size - 1) / 2))
    assert hvd.allreduce(tf.zeros([0, 3])).shape == (0, 3)
    same(hvd.allgather(tf.constant(rank)), np.arange(size, dtype=np.int32))
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        for found in in_both_modes(lambda x, way=compression: hvd.allreduce(x, op=hvd.Sum, compression=way), x):
            same(found, np.array([1, 2], np.float32) * total)
    parts = hvd.grouped_reducescatter([tf.ones([size + 1]), tf.ones([size, 2])])
    assert [part.shape for part in parts] == [(2 if rank == 0 else 1,), (1, 2)]
    none, everyone = hvd.Compression.none, hvd.global_process_set
    (part,) = hvd.grouped_reducescatter([tf.ones([size])], "", none, hvd.Sum, everyone, 0.5, 3.0)
    same(part, np.full(1, 1.5 * size, np.float32))
    splits = [1] * (size - 1) + [1 + rank]
    expected = [1 + peer if rank == size - 1 else 1 for peer in range(size)]
    for came, counts in in_both_modes(lambda x: hvd.alltoall(x, splits), tf.fill([size + rank, 2], float(rank))):
        same(counts, np.array(expected, np.int32))
        same(came, np.repeat(np.arange(size, dtype=np.float32), expected)[:, None].repeat(2, 1))
    slices = tf.IndexedSlices(tf.ones([rank + 1, 2]), tf.range(rank + 1), tf.constant([size + 2, 2]))
    dense = sum(np.pad(np.ones((peer + 1, 2), np.float32), ((0, size + 1 - peer), (0, 0))) for peer in range(size))
    for found in in_both_modes(lambda: tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum))):
        same(found, dense)
    integers = tf.IndexedSlices(tf.fill([1, 1], 1 + 2 * rank), [0], [1, 1])
    for mean in in_both_modes(lambda: hvd.allreduce(integers).values):
        assert mean.dtype == tf.float64
        np.testing.assert_allclose(mean[:, 0], np.arange(1, 2 * size, 2) / size, rtol=1e-15)
    for scaled in in_both_modes(lambda: hvd.allreduce(integers, op=hvd.Sum, postscale_factor=0.5).values):
        same(scaled, np.arange(size, dtype=np.int32)[:, None])
    for total in in_both_modes(lambda: hvd.allreduce([1.0 + rank, 2.0], op=hvd.Sum)):
        same(total, np.array([size * (size + 1) / 2, 2 * size], np.float32))
    found, other = hvd.grouped_allreduce([slices, tf.ones(2)])
    np.testing.assert_allclose(tf.convert_to_tensor(found), dense / size, rtol=1e-6)
    same(other, np.ones(2, np.float32))
    assert [int(one) for one in in_both_modes(hvd.rank_op)] == [rank] * 3
    assert [int(one) for one in (hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op())] == [size, rank, size]
    in_both_modes(lambda: [hvd.barrier(), tf.constant(0)][1])
    assert hvd.broadcast_object({"rank": rank}) == {"rank": 0}
    assert hvd.broadcast_object_fn(1)(rank) == 1
    assert hvd.allgather_object(rank) == list(range(size))
    assert hvd.is_homogeneous()
    variables = [tf.Variable([float(rank)]), tf.Variable(rank, dtype=tf.int64)]
    hvd.broadcast_variables(variables, 1)
    assert [float(variable.numpy().sum()) for variable in variables] == [1, 1]
    tf.function(lambda: hvd.broadcast_variables([variables[0].assign([float(rank)])], 0))()
    assert variables[0].numpy()[0] == 0


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp")])
def test_every_operation_eager_and_in_functions(pool: Pools, size: int, transport: str) -> None:
    pool(size).run(in_world, all_operations, transport=transport)


def capturing(rank: int, size: int) -> None:
    for _ in range(rank):  # TensorFlow names a captured tensor by the number of tensors before it
        tf.zeros(1)
    mine = tf.fill([2], float(rank))
    gathered, total = tf.function(lambda: (hvd.allgather(mine), hvd.allreduce(mine, op=hvd.Sum)))()
    same(gathered, np.repeat(np.arange(size, dtype=np.float32), 2))
    same(total, np.full(2, sum(range(size)), np.float32))


def test_functions_may_capture_tensors_of_ranks_that_made_different_numbers_of_tensors(pool: Pools) -> None:
    pool(2).run(in_world, capturing, timeout=20)


def all_gradients(rank: int, size: int) -> None:
    weights = np.arange(3, dtype=np.float32) + rank
    mean = np.arange(3, dtype=np.float32) + (size - 1) / 2
    rows = np.arange(3, dtype=np.float32) + np.arange(size, dtype=np.float32)[:, None]

    def check(function: Callable[..., Any], shape: tuple[int, ...], expected: Any) -> None:
        def gradient(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(function(x) * weights)
            return tape.gradient(loss, x)

        for found in in_both_modes(gradient, tf.ones(shape)):
            np.testing.assert_allclose(found, np.broadcast_to(expected, shape), rtol=1e-6)

    check(hvd.allreduce, (3,), mean)
    check(lambda x: hvd.allreduce(x, op=hvd.Sum), (3,), mean * size)
    check(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), (3,), mean * size / 2)
    check(lambda x: hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)[1], (3,), mean * size * 2)
    check(hvd.allgather, (rank + 1, 3), mean)
    check(lambda x: hvd.broadcast(x, 1), (3,), mean if rank == 1 else mean * 0)
    check(hvd.alltoall, (size, 3), rows)
    check(lambda x: hvd.alltoall(x, [1] * size)[0], (size, 3), rows)
    check(hvd.alltoall, (size * (rank + 1), 3), np.repeat(rows, rank + 1, 0))
    check(hvd.reducescatter, (size, 3), rows)
    check(lambda x: hvd.reducescatter(x, op=hvd.Sum), (size, 3), rows * size)
    x = tf.constant([2.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = hvd.allreduce(x * x, op=hvd.Sum)
        first = inner.gradient(y, x)
    np.testing.assert_allclose(first, [4.0 * size])
    np.testing.assert_allclose(outer.gradient(first, x), [2.0 * size])


def test_gradients(pool: Pools) -> None:
    pool(2).run(in_world, all_gradients)
    pool(3).run(in_world, all_gradients, transport="tcp")


def raised(kind: type[BaseException], function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def mistakes(rank: int, size: int) -> None:
    disagreeing = tf.zeros([2 + rank])
    for kind, function in (
        (hvd.HorovodInternalError, hvd.allreduce),
        (tf.errors.FailedPreconditionError, hvd.allreduce),
        (tf.errors.FailedPreconditionError, tf.function(hvd.allreduce)),
    ):
        text = raised(kind, function, disagreeing)
        assert "do not fit together" in text
        assert all(f"rank {peer}: allreduce(float32 ({2 + peer},), op=average)" in text for peer in range(size))
    of_other_shapes = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3 + rank, 2]))
    for function in (hvd.allreduce, tf.function(lambda: hvd.allreduce(of_other_shapes))):
        arguments = (of_other_shapes,) if function is hvd.allreduce else ()
        assert "do not fit together" in raised(tf.errors.FailedPreconditionError, function, *arguments)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    assert "do not fit together" in raised(
        tf.errors.FailedPreconditionError, lambda: hvd.allreduce(slices, op=hvd.Sum if rank else hvd.Average)
    )
    with pytest.raises(hvd.HorovodInternalError) as told:
        hvd.allreduce(disagreeing)
    assert isinstance(told.value.__cause__, MismatchError)
    again = pickle.loads(pickle.dumps(told.value))
    assert (type(again), str(again)) == (type(told.value), str(told.value))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        node = hvd.broadcast(tf.zeros([1], tf.int32 if rank else tf.int64), 0, name="other_types")
        assert "rank 0: broadcast(int64" in raised(tf.errors.FailedPreconditionError, session.run, node)
    bad = [rank - 7] * size
    for kind in (ValueError, tf.errors.InvalidArgumentError):
        assert f"splits={bad}" in raised(kind, hvd.alltoall, tf.zeros([4]), bad)
    assert "float32; must be integers" in raised(TypeError, hvd.alltoall, tf.zeros([size]), [1.5] * size)
    assert str([2**32 + 1] * size) in raised(ValueError, hvd.alltoall, tf.zeros([size]), np.full(size, 2**32 + 1))
    graph = tf.function(lambda: hvd.alltoall(tf.zeros([4]), bad))
    assert f"splits={bad}" in raised(tf.errors.InvalidArgumentError, graph)
    assert "share equally" in raised(ValueError, hvd.alltoall, tf.zeros([size + 1]))
    assert "share equally" in raised(tf.errors.InvalidArgumentError, tf.function(hvd.alltoall), tf.zeros([size + 1]))
    assert "root_rank=9" in raised(ValueError, hvd.broadcast, tf.zeros(1), 9)
    assert "op='median'" in raised(ValueError, lambda: hvd.allreduce(tf.zeros(1), op="median"))
    assert "string" in raised(TypeError, hvd.allreduce, tf.constant("text"))
    plain, x, one = tf.compat.v1.train.GradientDescentOptimizer(1.0), tf.zeros(1), tf.Variable(1.0)
    for error, text, call in (
        (ValueError, "root_rank='a': must be", lambda: hvd.broadcast(x, "a")),
        (ValueError, "root_rank=0.5: must be", lambda: hvd.broadcast_([tf.Variable(x)], 0.5)),
        (ValueError, "root_rank=None: must be", lambda: hvd.BroadcastGlobalVariablesHook(None)),
        (TypeError, "variables=5: must be", lambda: hvd.broadcast_variables(5, 0)),
        (TypeError, "variables[0]=5: must be", lambda: hvd.elastic.TensorFlowState([5])),
        (TypeError, "tensors=None: must be", lambda: hvd.grouped_allreduce(None)),
        (TypeError, "tensors=5: must be", lambda: hvd.grouped_reducescatter(5)),
        (TypeError, "tensor=None: must be", lambda: hvd.allgather(None)),
        (TypeError, "name=5: must be", lambda: hvd.barrier(name=5)),
        (TypeError, "process_set_id='a': must be", lambda: hvd.size_op("a")),
        (TypeError, "compression=5: must be", lambda: hvd.reducescatter(x, compression=5)),
        (TypeError, "gradtape=5: must be", lambda: hvd.DistributedGradientTape(5)),
        (TypeError, "groups=[5]: must be", lambda: hvd.DistributedGradientTape(tf.GradientTape(), groups=[5])),
        (ValueError, "in more than one", lambda: hvd.DistributedOptimizer(plain, groups=[[one], [one]])),
        (ValueError, "op=5: must be", lambda: hvd.DistributedOptimizer(plain, op=5)),
        (TypeError, "process_set=5: must be", lambda: hvd.DistributedOptimizer(plain, process_set=5)),
    ):
        assert text in raised(error, call)
    for strange in (tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.sparse.from_dense([[1.0, 0.0]])):
        for function in (hvd.allreduce, hvd.allgather, hvd.reducescatter, hvd.alltoall, tf.function(hvd.allreduce)):
            assert f"not a {type(strange).__name__}" in raised(TypeError, function, strange)
    slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]))
    for op in (hvd.Max, hvd.Adasum):
        for function in (hvd.allreduce, tf.function(hvd.allreduce)):
            assert "make them dense" in raised(NotImplementedError, lambda f=function, op=op: f(slices, op=op))
    for kind in (hvd.HorovodInternalError, ValueError):
        assert "Average and Sum only" in raised(kind, lambda: hvd.reducescatter(tf.zeros([size]), op=hvd.Adasum))
    if rank == 0:  # the others do not count calls that are refused
        raised(TypeError, lambda: hvd.allreduce(tf.constant([True]), op=hvd.Sum))
        raised(TypeError, lambda: hvd.grouped_allreduce([tf.ones(1), tf.constant([True])], op=hvd.Sum))
        raised(TypeError, hvd.allgather, tf.constant(["text"]))
        raised(TypeError, hvd.broadcast, tf.constant(["text"]), 0)
        raised(ValueError, hvd.alltoall, tf.zeros([size + 1]))
        raised(TypeError, hvd.grouped_reducescatter, [tf.ones(size), tf.constant([True] * size)])
    for _ in range(2):
        hvd.allreduce(tf.ones(1))
        hvd.grouped_allreduce([tf.ones(1), tf.ones(1)])
        hvd.allgather(tf.ones(1))
        hvd.broadcast(tf.ones(1), 0)
        hvd.alltoall(tf.ones(size))
        hvd.grouped_reducescatter([tf.ones(size), tf.ones(size)])
    assert "eager" in raised(RuntimeError, hvd.broadcast_global_variables, 0)
    same(hvd.allreduce(tf.ones(2), op=hvd.Sum), np.full(2, size, np.float32))  # and all goes on


def shapes(rank: int, size: int) -> None:
    """Shapes that are known before the graph is run, that are known then, and that contradict its signature."""
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2) + rank
    total = sum(x - rank + peer for peer in range(size))
    for signature in ([2, 3, 2], [None, 3, None], None):

        @tf.function(input_signature=[tf.TensorSpec(signature, tf.float32)])
        def reduced(x: Any) -> Any:
            made, number = hvd.grouped_allreduce([x * 2, tf.reduce_sum(x) * 0 + 1], op=hvd.Sum)
            return hvd.allreduce(x, op=hvd.Sum), made, number, hvd.broadcast(x[:, :0], 0)

        for one, expected in zip(reduced(tf.constant(x)), (total, 2 * total, np.float32(size), x[:, :0]), strict=True):
            same(one, expected)

    @tf.function
    def told(shape: list[int]) -> Any:
        y = tf.numpy_function(lambda: x, [], tf.float32)
        y.set_shape(shape)
        return hvd.allreduce(y, op=hvd.Sum)

    assert "tensor 0: has shape (2, 3, 2), in the graph (5,)" in raised(tf.errors.InvalidArgumentError, told, [5])
    same(hvd.allreduce(tf.constant(x), op=hvd.Sum), total)


def test_shapes_known_before_and_not(pool: Pools) -> None:
    pool(2).run(in_world, shapes)


def find_callbacks() -> str:
    return str(hvd.callbacks.MetricAverageCallback.__mro__)


def test_callbacks_are_an_attribute(pool: Pools) -> None:
    assert "keras" in pool(1).run(find_callbacks)[0]


def test_an_operation_needs_a_world() -> None:
    for kind in (hvd.HorovodInternalError, tf.errors.FailedPreconditionError):
        assert "no world" in raised(kind, hvd.rank_op)
    assert "no world" in raised(tf.errors.FailedPreconditionError, tf.function(hvd.allreduce), tf.ones(1))


def in_layers(rank: int, size: int) -> None:
    """Keras makes an error of a layer again, with the layer's arguments in the text."""
    import keras

    class Layer(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, function: Callable[[Any], Any]) -> None:
            super().__init__()
            self.function = function

        def call(self, x: Any) -> Any:
            return self.function(x)

    op = hvd.Sum if rank else hvd.Average
    layers = {
        (ValueError, "splits=[7]"): Layer(lambda x: hvd.alltoall(x, splits=[7])),
        (hvd.HorovodInternalError, "do not fit"): Layer(lambda x: hvd.allreduce(x, op=op)),
    }
    for (kind, text), layer in layers.items():
        found = raised(kind, layer, tf.ones(2))
        assert text in found
        assert "Arguments received" in found
    error = pickle.loads(pickle.dumps(DisagreementError(None, None, "the text")))
    assert str(error) == error.message == "the text"
    same(hvd.allreduce(tf.ones(2), op=hvd.Sum), np.full(2, size, np.float32))


def test_errors_keep_their_text(pool: Pools) -> None:
    pool(2).run(in_world, mistakes)
    pool(2).run(in_world, in_layers)


def joining(rank: int, size: int) -> None:
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="step"))
    for turn in range(1 + rank):
        waiting = [peer for peer in range(size) if peer >= turn]
        same(step(tf.ones(2)), np.full(2, len(waiting), np.float32))
    assert hvd.join().numpy() == size - 1
    same(step(tf.ones(2)), np.full(2, size, np.float32))


def sets(rank: int, size: int) -> None:
    pair = hvd.add_process_set([size - 1, 0])
    if pair.included():
        for found in in_both_modes(lambda: hvd.allreduce(tf.constant([1.0 + rank]), op=hvd.Sum, process_set=pair)):
            same(found, np.array([size + 1], np.float32))
        same(hvd.broadcast(tf.constant(rank), 0, process_set=pair), np.int32(0))
        same(hvd.allgather(tf.constant([rank]), process_set=pair), np.array([0, size - 1], np.int32))
    else:
        assert "not in it" in raised(ValueError, lambda: hvd.allreduce(tf.zeros(1), process_set=pair))
    assert int(hvd.size_op(pair.process_set_id)) == 2
    assert int(hvd.process_set_included_op(pair.process_set_id)) == int(pair.included())
    assert str(pair) == f"ProcessSet(process_set_id={pair.process_set_id}, ranks=[0, {size - 1}], mpi_comm=None)"
    for op in (hvd.size_op, hvd.process_set_included_op):
        assert [int(one) for one in in_both_modes(lambda op=op: op(7))] == [-3] * 3, "Horovod's ...ERROR_UNKNOWN_SET"
    with tf.Graph().as_default(), tf.name_scope("scope"):
        for ignore, prefix in ((False, "scope/"), (True, "")):
            named = hvd.allreduce(tf.zeros(1), name=f"named_{ignore}", ignore_name_scope=ignore)
            assert named.op.name == f"{prefix}named_{ignore}"
    hvd.barrier()


def test_join_and_process_sets(pool: Pools) -> None:
    pool(3).run(in_world, joining)
    pool(3).run(in_world, sets)


def in_graphs(rank: int, size: int) -> None:
    """Within branches, loops, functions in functions, datasets and saved functions; in one world after another."""
    total = size * (size + 1) / 2
    once, twice = (tf.function(lambda x, by=by: hvd.allreduce(x, op=hvd.Sum) * by) for by in (1.0, 2.0))

    def composed(x: Any, count: Any) -> list[Any]:
        found = [tf.cond(count > 1, lambda: hvd.allreduce(x, op=hvd.Sum), lambda: x), once(x), twice(x), once(x)]
        turns = tf.TensorArray(tf.float32, size=count)
        for turn in tf.range(count):  # iterations that need nothing of each other
            turns = turns.write(turn, hvd.allreduce(x * tf.cast(turn, tf.float32), op=hvd.Sum))
        return [*found, turns.stack()]

    function = tf.function(composed)
    for _ in range(3):
        found = function(tf.constant(rank + 1.0), tf.constant(5))
        np.testing.assert_allclose(tf.stack(found[:4]), np.array([1, 1, 2, 1]) * total)
        np.testing.assert_allclose(found[4], np.arange(5) * total)

    def repeated(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(2):
                y = hvd.allreduce(y * 2.0, op=hvd.Sum)
        return tape.gradient(y, x)

    np.testing.assert_allclose(tf.function(repeated)(tf.constant(1.0)), (2.0 * size) ** 2)
    numbers = tf.data.Dataset.range(3).map(lambda number: hvd.allreduce(number + rank, op=hvd.Sum, name="mapped"))
    assert list(numbers.as_numpy_iterator()) == [number * size + size * (size - 1) // 2 for number in range(3)]
    module = tf.Module()
    module.step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum), input_signature=[tf.TensorSpec([2])])
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        same(tf.saved_model.load(folder).step(tf.ones(2)), np.full(2, size, np.float32))
    hvd.shutdown()
    hvd.init()
    same(once(tf.ones([])), np.float32(size))


def test_graphs_of_every_kind(pool: Pools) -> None:
    pool(2).run(in_world, in_graphs)
    pool(3).run(in_world, in_graphs, transport="tcp")


def test_where_its_function_cannot_be_moved_the_caller_of_a_kernel_waits() -> None:
    called: list[int] = []
    done = Done(7, called.append, movable=False)
    ending = threading.Timer(0.05, done)
    ending.start()
    done.wait()
    assert called == [7]
    ending.join()


def from_threads(rank: int, size: int) -> None:
    """Named operations from several threads, in other orders on every rank."""
    numbers = list(range(8))
    found: dict[int, float] = {}

    def one(number: int) -> None:
        found[number] = float(hvd.allreduce(tf.constant(float(number + rank)), op=hvd.Sum, name=f"thread.{number}"))

    threads = [threading.Thread(target=one, args=(number,)) for number in (numbers if rank else numbers[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {number: size * number + size * (size - 1) / 2 for number in numbers}


def test_threads(pool: Pools) -> None:
    pool(2).run(in_world, from_threads)


def test_imports_no_other_framework_and_names_its_extra() -> None:
    script = """
import sys
import tensorflow
before = set(sys.modules)
import frontends.tensorflow
print({name.split(".")[0] for name in set(sys.modules) - before} & {"torch", "jax", "keras", "mxnet"})
"""
    done = python("-c", script)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
    without = "import sys; sys.modules['tensorflow'] = None; import frontends.tensorflow"
    done = python("-c", without)
    assert "ModuleNotFoundError: ronde.tensorflow needs tensorflow: pip install 'ronde[tensorflow]'" in done.stderr
