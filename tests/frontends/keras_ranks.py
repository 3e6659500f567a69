"""The programs of the ranks of test_keras_training.py: they import Keras, the process of the tests does not."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import logging
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BACKENDS = ("jax", "torch", "tensorflow")
BATCH, STEPS = 6, 5
QUIET = {"verbose": 0, "shuffle": False, "batch_size": BATCH}


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Refuses to import the frameworks that Keras does not run on."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        other = name in BACKENDS and name != os.environ["KERAS_BACKEND"]
        return ModuleSpec(name, self) if other else None

    def create_module(self, spec: ModuleSpec) -> None:
        raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name)


def horovod() -> Any:
    """frontends.keras, initialised, in a process that has no framework but the one that Keras runs on."""
    assert any(isinstance(finder, Absent) for finder in sys.meta_path)
    hvd = importlib.import_module("frontends.keras")
    hvd.init()
    return hvd


def small_model(seed: int, *, built: bool = True) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(4, activation="softmax")]
    return keras.Sequential([keras.Input((8,)), *layers] if built else layers)


def data(size: int) -> tuple[Any, Any]:
    """STEPS batches of BATCH rows for each of `size` ranks."""
    random = np.random.default_rng(5)
    rows = STEPS * BATCH * size
    return random.normal(size=(rows, 8)).astype(np.float32), random.integers(0, 4, rows)


def mine(array: Any, rank: int, size: int) -> Any:
    """The rank's part of every batch of the whole."""
    return array.reshape(STEPS, size, BATCH, *array.shape[1:])[:, rank].reshape(STEPS * BATCH, *array.shape[1:])


def weights(model: Any) -> list[Any]:
    import keras

    return [np.array(keras.ops.convert_to_numpy(weight)) for weight in model.weights]


def identical(hvd: Any, model: Any) -> bool:
    every = hvd.allgather_object([array.tobytes() for array in weights(model)])
    return all(one == every[0] for one in every)


def close(model: Any, other: Any) -> None:
    for own, expected in zip(weights(model), weights(other), strict=True):
        np.testing.assert_allclose(own, expected, rtol=2e-4, atol=2e-5)


def new_optimizer(kind: str, **options: Any) -> Any:
    import keras

    if kind == "sgd":
        return keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.5, **options)
    return keras.optimizers.Adam(0.01, weight_decay=0.01, **options)


def compiled(optimizer: Any, seed: int, **options: Any) -> Any:
    model = small_model(seed)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], **options)
    return model


def train_like_one(kind: str, passes: int = 1, **options: Any) -> None:
    hvd = horovod()
    rank, size = hvd.rank(), hvd.size()
    x, y = data(size)
    optimizer = hvd.DistributedOptimizer(
        new_optimizer(kind), backward_passes_per_step=passes, average_aggregated_gradients=True, **options
    )
    model = compiled(optimizer, seed=rank)
    model.fit(
        mine(x, rank, size),
        mine(y, rank, size),
        epochs=2 * passes,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        **QUIET,
    )
    assert identical(hvd, model)
    alone = compiled(new_optimizer(kind), seed=0)
    if passes == 1:
        alone.fit(x, y, epochs=2, **QUIET | {"batch_size": BATCH * size})
    else:  # 2 passes of STEPS batches each make STEPS steps, of two batches in turn
        wide = np.concatenate([x, x]).reshape(STEPS, passes, BATCH * size, 8)
        wide_y = np.concatenate([y, y]).reshape(STEPS, passes, BATCH * size)
        for _ in range(passes):
            for some, labels in zip(wide, wide_y, strict=True):
                alone.train_on_batch(some.reshape(-1, 8), labels.reshape(-1))
    close(model, alone)
    hvd.shutdown()


def one_optimizer() -> None:
    train_like_one("adam", gradient_predivide_factor=2.0)


def two_optimizers() -> None:
    train_like_one("sgd")
    train_like_one("adam", passes=2)


def raises(kind: type[BaseException], words: str, function: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(kind) as caught:
        function(*args, **options)
    assert words in str(caught.value)


def callbacks() -> None:
    """All callbacks in one training: a model that is built late, an optimizer with momentum, warm-up, then decay."""
    hvd = horovod()
    import keras

    rank, size = hvd.rank(), hvd.size()
    x, y = data(size)
    rates: list[float] = []

    class Record(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    model = small_model(rank, built=False)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.2)), "sparse_categorical_crossentropy")
    history = model.fit(
        mine(x, rank, size),
        mine(y, rank, size),
        epochs=4,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2, verbose=1),
            hvd.callbacks.LearningRateScheduleCallback(0.2, lambda epoch: 0.5**epoch, start_epoch=2),
            Record(),
        ],
        **QUIET,
    )
    assert identical(hvd, model)
    losses = history.history["loss"]
    assert hvd.allgather_object(losses) == [losses] * size
    warm = [0.2 / size * ((step + 1) / STEPS * (size - 1) / 2 + 1) for step in range(2 * STEPS)]
    np.testing.assert_allclose(rates, [*warm, *[0.05] * STEPS, *[0.025] * STEPS], rtol=1e-5)
    np.testing.assert_allclose(history.history["lr"], [warm[STEPS - 1], 0.2, 0.05, 0.025], rtol=1e-5)
    raises(ValueError, "initial_lr", hvd.callbacks.LearningRateScheduleCallback, None, 1.0)
    hvd.shutdown()


def broken_warmup() -> None:
    """A warm-up of one and a half epochs ends with the full rate, not above it."""
    hvd = horovod()
    model = compiled(hvd.DistributedOptimizer(new_optimizer("sgd")), 0)
    x, y = data(1)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=1.5)
    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[warmup])
    assert abs(float(model.optimizer.learning_rate) - 0.2) < 1e-6
    hvd.shutdown()


def momentum_correction() -> None:
    """Against SGD with momentum by hand, whose velocity is divided by ten when the rate is."""
    hvd = horovod()
    import keras

    rank, size = hvd.rank(), hvd.size()
    x, y = data(size)
    schedule = hvd.callbacks.LearningRateScheduleCallback
    for correction in (True, False) if os.environ["KERAS_BACKEND"] == "torch" else (True,):  # which compiles nothing
        model = small_model(0)
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "sparse_categorical_crossentropy"
        )
        decay = schedule(0.1, lambda epoch: 1.0 if epoch < 1 else 0.1, momentum_correction=correction)
        model.fit(mine(x, rank, size), mine(y, rank, size), epochs=2, callbacks=[decay], **QUIET)
        alone = small_model(0)
        alone.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
        wide = QUIET | {"batch_size": BATCH * size}
        alone.fit(x, y, **wide)
        alone.optimizer.learning_rate = 0.01
        for velocity in alone.optimizer.momentums if correction else ():
            velocity.assign(velocity * 0.1)
        alone.fit(x, y, **wide)
        close(model, alone)
    hvd.shutdown()


def save_and_go_on(folder: str) -> None:
    """Two epochs, saved by rank 0 and by BestModelCheckpoint, loaded by all, one more: as three at once."""
    hvd = horovod()
    import keras

    rank, size = hvd.rank(), hvd.size()
    x, y = data(size)
    own = mine(x, rank, size), mine(y, rank, size)
    best = Path(folder) / f"best-{rank}.keras"
    saved = Path(folder) / "saved.keras"

    model = compiled(hvd.DistributedOptimizer(new_optimizer("adam"), backward_passes_per_step=5), 0)
    keeper = hvd.callbacks.BestModelCheckpoint("loss", filepath=best)
    model.fit(*own, epochs=2, callbacks=[hvd.callbacks.MetricAverageCallback(), keeper], **QUIET)
    assert best.exists() == (rank == 0)
    if rank == 0:
        model.save(saved)
    hvd.barrier()
    plain = keras.models.load_model(saved)
    assert not hasattr(plain.optimizer, "register_local_var")
    assert type(plain.optimizer).__name__ == "Adam"
    again = hvd.load_model(saved, backward_passes_per_step=5)
    assert float(again.optimizer.iterations) == 2
    again.fit(*own, epochs=1, **QUIET)
    model.fit(*own, epochs=1, **QUIET)
    assert identical(hvd, again)
    close(again, model)
    raises(ValueError, "mine", hvd.load_model, Path(folder) / "mine.keras")
    hvd.shutdown()


def own_optimizers(folder: str) -> None:
    """Optimizers that are not Keras's, one registered with it and one not, are saved as what they are."""
    hvd = horovod()
    import keras

    @keras.saving.register_keras_serializable("tests")
    class Registered(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    class Unknown(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    x, y = data(1)
    for kind, given in ((Registered, None), (Unknown, [Unknown])):
        path = Path(folder) / f"{kind.__name__}-{hvd.rank()}.keras"
        model = compiled(hvd.DistributedOptimizer(kind(0.1, momentum=0.5)), 0)
        model.fit(x, y, **QUIET)
        model.save(path)
        again = hvd.load_model(path, custom_optimizers=given, compression=hvd.Compression.fp16)
        assert isinstance(again.optimizer, kind)
        assert float(again.optimizer.iterations) == STEPS
        again.fit(x, y, **QUIET)
        plain = keras.models.load_model(path, custom_objects={"Unknown": Unknown})
        assert type(plain.optimizer) is kind
    hvd.shutdown()


def rates_and_configurations() -> None:
    """Learning rates that no configuration can make, and optimizers made by the class of a distributed one."""
    hvd = horovod()
    import keras

    class Halves(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            return 0.5

        def get_config(self) -> dict[str, Any]:
            return {}

    rank, size = hvd.rank(), hvd.size()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(Halves()))
    assert float(hvd.DistributedOptimizer(scaled).learning_rate) == 0.5
    for inner in (keras.optimizers.SGD(0.5), scaled):
        raises(ValueError, "around a Distr", keras.optimizers.LossScaleOptimizer, hvd.DistributedOptimizer(inner))
    for wrapped in (lambda plain: plain, keras.optimizers.LossScaleOptimizer):
        plain = keras.optimizers.SGD(0.5, weight_decay=0.1)
        plain.exclude_from_weight_decay(var_names=["bias"])
        plain.iterations.assign(7)
        optimizer = hvd.DistributedOptimizer(hvd.DistributedOptimizer(wrapped(plain)))
        variables = [keras.Variable(np.ones(2, np.float32), name=name) for name in ("kernel", "bias")]
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        optimizer.apply([keras.ops.zeros(2)] * 2, variables)
        np.testing.assert_allclose([keras.ops.convert_to_numpy(one) for one in variables], [[0.95] * 2, [1.0] * 2])
        assert float(optimizer.iterations) == 8
    made = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    for optimizer in (
        hvd.DistributedOptimizer(keras.optimizers.SGD(lambda: 0.5)),
        hvd.DistributedOptimizer(keras.optimizers.SGD(Halves())),
        type(made).from_config(made.get_config()),
    ):
        variable = keras.Variable(np.zeros(2, np.float32))
        optimizer.apply([keras.ops.convert_to_tensor(np.full(2, rank, np.float32))], [variable])
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), [-0.5 * (size - 1) / 2] * 2)
    hvd.shutdown()


def values() -> None:
    hvd = horovod()
    import keras

    rank, size = hvd.rank(), hvd.size()
    total = hvd.allreduce(rank + 1.0)
    assert keras.ops.is_tensor(total)
    assert float(total) == (size + 1) / 2
    summed = hvd.allreduce(np.arange(3) + rank, op=hvd.Sum, postscale_factor=2)
    assert np.array(summed).tolist() == [2 * (size * i + size * (size - 1) // 2) for i in range(3)]
    assert np.array(hvd.allreduce(np.float32([1.5, 2]), compression=hvd.Compression.bf16)).tolist() == [1.5, 2]
    assert np.array(hvd.allgather([[rank]] * (rank + 1))).ravel().tolist() == [
        one for one in range(size) for _ in range(one + 1)
    ]
    assert np.array(hvd.broadcast([rank, 7], 1)).tolist() == [1, 7]
    assert np.array(hvd.reducescatter(np.ones((size, 2), np.float32), op=hvd.Sum)).tolist() == [[size, size]]
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    assert hvd.allgather_object(rank) == list(range(size))
    raises(RuntimeError, "keeps no list", hvd.broadcast_global_variables, 0)
    raises(ValueError, "op='min'", hvd.DistributedOptimizer, new_optimizer("sgd"), op=hvd.Min)
    raises(
        ValueError,
        "backward_passes_per_step=0",
        hvd.DistributedOptimizer,
        new_optimizer("sgd"),
        None,
        *[""] * 2,
        backward_passes_per_step=0,
    )
    raises(
        ValueError,
        "gradient_predivide_factor",
        hvd.DistributedOptimizer,
        new_optimizer("sgd"),
        op=hvd.Sum,
        gradient_predivide_factor=2.0,
    )
    raises(TypeError, "Keras optimizer", hvd.DistributedOptimizer, "sgd")
    sgd, callbacks, state = new_optimizer("sgd"), hvd.callbacks, hvd.elastic.ObjectState(epoch=0)
    for error, text, function, *options in (
        (TypeError, "variables=5: must be", hvd.broadcast_variables, 5, 0),
        (TypeError, "variables[0]=5: must be", hvd.broadcast_variables, [5], 0),
        (TypeError, "value=None: must be", hvd.allgather, None),
        (ValueError, "root_rank='a': must be", callbacks.BroadcastGlobalVariablesCallback, "a"),
        (TypeError, "process_set=5: must be", callbacks.MetricAverageCallback, "", 5),
        (TypeError, "initial_lr='a': must be", callbacks.LearningRateWarmupCallback, "a"),
        (TypeError, "warmup_epochs='a': must be", callbacks.LearningRateWarmupCallback, 0.1, "a"),
        (ValueError, "warmup_epochs=-1: must be", callbacks.LearningRateWarmupCallback, 0.1, -1),
        (ValueError, "warmup_epochs=nan: must be", callbacks.LearningRateWarmupCallback, 0.1, float("nan")),
        (ValueError, "steps_per_epoch=-3: must be", callbacks.LearningRateWarmupCallback, 0.1, 5, True, -3),
        (TypeError, "model=5: must be", hvd.elastic.KerasState, 5),
        (TypeError, "state=5: must be", hvd.elastic.CommitStateCallback, 5),
        (
            ValueError,
            "batches_per_commit='a': must be",
            hvd.elastic.CommitStateCallback,
            state,
            "a",
        ),
        (ValueError, "no value 'batch'", hvd.elastic.UpdateBatchStateCallback, state),
        (TypeError, "local_layers: must be", functools.partial(hvd.PartialDistributedOptimizer, sgd, local_layers=[5])),
        (TypeError, "groups='a': must be", functools.partial(hvd.DistributedOptimizer, sgd, groups="a")),
        (TypeError, "process_set=5: must be", functools.partial(hvd.DistributedOptimizer, sgd, process_set=5)),
    ):
        raises(error, text, function, *options)
    state = hvd.elastic.KerasState(small_model(rank), epoch=rank)  # of a model that is not compiled
    state.sync()
    assert (state.epoch, identical(hvd, state.model)) == (0, True)
    raises(hvd.HorovodInternalError, "rank 1", hvd.allreduce, np.zeros(1 + rank), name="different")
    average = hvd.callbacks.MetricAverageCallback()
    for logs in ({"loss": 1.0, "lr" if rank else "val_loss": 2.0}, {} if rank else {"loss": 1.0}):
        raises(ValueError, "metrics: rank 0 has", average.on_epoch_end, 0, logs)
    for value in (None, "text" if rank else 1.0):  # one that a single rank has raises on all, at once
        raises(TypeError, "metrics['best']=", average.on_epoch_end, 0, {"loss": 1.0, "best": value})
    logs = {"loss": float(rank)}
    average.on_epoch_end(0, logs)
    assert logs == {"loss": (size - 1) / 2}
    hvd.shutdown()


def special_gradients() -> None:
    """Local gradients; embeddings, whose gradients are sparse in TensorFlow; half precision; scaled losses."""
    hvd = horovod()
    import keras

    rank, size = hvd.rank(), hvd.size()
    model = small_model(0)
    first, last = model.layers
    kept = weights(model)
    first.trainable = False
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=first)
    first.trainable = True
    optimizer = hvd.DistributedOptimizer(optimizer)  # with other options, for example
    ones = [keras.ops.ones(variable.shape) * (rank + 1) for variable in model.trainable_variables]
    optimizer.apply(ones, model.trainable_variables)
    local, mean = (rank + 1) / size, (size + 1) / 2
    for before, after, step in zip(kept, weights(model), [local, local, mean, mean], strict=True):
        np.testing.assert_allclose(before - after, step, rtol=1e-5)
    assert last.built

    words = np.random.default_rng(rank).integers(0, 20, (12, 5))
    ways: list[dict[str, Any]] = [{"compression": hvd.Compression.fp16}]
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        ways += [{}, {"sparse_as_dense": True}]
    for options in ways:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), **options), "mse")
        model.fit(words, np.ones((12, 2)), **QUIET)
        assert identical(hvd, model)
        every = np.concatenate(hvd.allgather_object(words.reshape(2, BATCH, 5)), axis=1)
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
        alone = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
        alone.compile(keras.optimizers.SGD(0.5), "mse")
        for batch in every:
            alone.train_on_batch(batch, np.ones((len(batch), 2)))
        tolerance = {"rtol": 1e-2, "atol": 1e-3} if "compression" in options else {"rtol": 1e-4, "atol": 1e-5}
        for own, expected in zip(weights(model), weights(alone), strict=True):
            np.testing.assert_allclose(own, expected, **tolerance)

    keras.config.set_dtype_policy("mixed_float16")
    model = compiled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), 0)
    keras.config.set_dtype_policy("float32")
    x, y = data(size)
    x = mine(x, rank, size)
    x[0, 0] = np.inf if rank == 0 else 1.0  # one rank's gradients are not finite: all leave the step out
    model.fit(x, mine(y, rank, size), **QUIET)
    assert identical(hvd, model)
    assert all(np.isfinite(array).all() for array in weights(model))
    (taken,) = set(hvd.allgather_object(float(model.optimizer.iterations)))
    assert 0 < taken < STEPS
    hvd.shutdown()


def other_passes() -> None:
    """The first step is an error on all ranks, in a compiled step as well."""
    hvd = horovod()
    rank = hvd.rank()
    x, y = data(1)
    for options, words in (
        ({"backward_passes_per_step": 1 + rank}, "'backward_passes_per_step'"),
        ({"backward_passes_per_step": 2, "average_aggregated_gradients": rank == 0}, "'average_aggregated_gradients'"),
    ):
        model = compiled(hvd.DistributedOptimizer(new_optimizer("sgd"), **options), 0)
        raises(Exception, words, model.fit, x, y, batch_size=BATCH, verbose=0)
    hvd.shutdown()


def missing_in_a_pass() -> None:
    """A step has the gradients of all its passes, also of a variable that the last one does not use."""
    hvd = horovod()
    import keras

    one, other, never = (keras.Variable(np.zeros(2, np.float32)) for _ in range(3))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=0.5), backward_passes_per_step=2)
    mean = (hvd.size() + 1) / 2
    places = [one, other, never]
    for passes, expected in (
        ([[1, 10, None], [1, None, None]], [2, 10, 0]),
        ([[1, None, None], [1, 10, None]], [2 + 3, 10 + 15, 0]),
        ([[1, None, None], [None, None, None]], [2 + 3 + 2.5, 10 + 15, 0]),  # without a gradient no momentum either
    ):
        for given in passes:
            gradients = [
                None if each is None else keras.ops.convert_to_tensor(np.full(2, each * (hvd.rank() + 1.0), np.float32))
                for each in given
            ]
            optimizer.apply(gradients, places)
        found = [keras.ops.convert_to_numpy(variable).tolist() for variable in places]
        assert found == [[-mean * value] * 2 for value in expected]
    hvd.shutdown()


def with_xla() -> None:
    """TensorFlow only: XLA is refused in words, and turned off by the callback."""
    hvd = horovod()
    x, y = data(1)
    model = compiled(hvd.DistributedOptimizer(new_optimizer("sgd")), 0, jit_compile=True)
    raises(RuntimeError, "jit_compile=False", model.fit, x, y, **QUIET)
    model = compiled(hvd.DistributedOptimizer(new_optimizer("sgd")), 0, jit_compile=True)
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)], **QUIET)
    assert not model.jit_compile
    hvd.shutdown()


def in_a_function() -> None:
    """TensorFlow only: a loop of one's own, which AutoGraph converts without a word."""
    hvd = horovod()
    import keras
    import tensorflow as tf

    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tensorflow").addHandler(handler)
    variable = keras.Variable(np.zeros(2, np.float32))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    optimizer.build([variable])

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> None:
        optimizer.apply([x * tf.ones(2)], [variable])

    for _ in range(2):
        step(tf.constant(hvd.rank() + 1.0))
    assert variable.numpy().tolist() == [-(hvd.size() + 1.0)] * 2
    assert [text for text in told if "AutoGraph" in text] == []
    hvd.shutdown()


def with_loss() -> None:
    """Compressions with a memory: training ends where it does without, and all ranks have the same weights."""
    hvd = horovod()
    import keras

    rank, size = hvd.rank(), hvd.size()
    random = np.random.default_rng(3)
    x = random.normal(size=(96, 40)).astype(np.float32)
    y = np.tanh(np.roll(x, 1, 1))
    losses = {}
    ways = {"int8": {}, "topk": {"ratio": 0.2}, "powersgd": {"rank": 4}}
    for name, arguments in {"none": {}, **ways}.items():
        compression = getattr(hvd.Compression, name)
        if name != "none":
            compression = compression(**arguments)
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(40, activation="tanh"), keras.layers.Dense(40)]
        model = keras.Sequential([keras.Input((40,)), *layers])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), compression=compression)
        model.compile(optimizer, "mse")
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x[rank::size], y[rank::size], epochs=12, callbacks=[callback], verbose=0, batch_size=16)
        assert identical(hvd, model), name
        losses[name] = float(np.mean((np.asarray(model.predict(x, verbose=0)) - y) ** 2))
        if name != "none":
            assert len(compression.memory.memories) == 4, "one memory for each gradient"
    assert all(abs(losses[name] - losses["none"]) < 0.1 * losses["none"] for name in ways), losses
    assert len(set(losses.values())) == 4, "the gradients were compressed"
    nothing, value = np.zeros(2000, np.float32), np.linspace(-1, 1, 2000, dtype=np.float32)
    compression = hvd.Compression.topk(0.01)
    one, other = (keras.Variable(nothing) for _ in range(2))
    for passes in (1, 2):
        optimizer = optimizer_with(hvd, compression=compression, backward_passes_per_step=passes)
        for given in [value] * passes + [None] * passes:  # what `one` has not sent is not added to `other`
            gradients = [None if given is None else keras.ops.convert_to_tensor(value), keras.ops.zeros(2000)]
            optimizer.apply(gradients, [one, other])
            assert not keras.ops.convert_to_numpy(other).any()
    second = optimizer_with(hvd, compression=compression)
    others = [keras.Variable(nothing) for _ in range(2)]
    raises(ValueError, "one for each", second.apply, [keras.ops.zeros(2000)] * 2, others)
    found = hvd.allreduce(value * (1 + rank), name="value", compression=hvd.Compression.int8())
    np.testing.assert_allclose(found, value * (size + 1) / 2, atol=0.03)
    raises(ValueError, "gradient_predivide_factor", optimizer_with, hvd, gradient_predivide_factor=2.0)
    hvd.shutdown()


def optimizer_with(hvd: Any, **options: Any) -> Any:
    import keras

    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), **{"compression": hvd.Compression.int8(), **options})


def local_sgd() -> None:
    """`fit` with a DiLoCo: ranks that saw other rows end with the same weights, near those of all rows."""
    hvd = horovod()
    from frontends.keras.local_sgd import DiLoCo, DiLoCoCallback, LocalSGD

    keras = importlib.import_module("keras")
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1), keras.layers.BatchNormalization(trainable=False)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(24, 3)).astype(np.float32)
    outer = DiLoCo(model, every=4, fragments=2, delay=1)
    model.fit(x, x.sum(1) + 1, epochs=15, callbacks=[DiLoCoCallback(outer)], **QUIET)
    assert outer.steps == 60
    assert len(outer.state_dict()["global"]) == 2
    weights = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    np.testing.assert_allclose(np.concatenate([w.reshape(-1) for w in weights]), np.ones(4), atol=0.1)
    assert len(set(hvd.allgather_object(b"".join(w.tobytes() for w in weights)))) == 1

    variables = [keras.Variable(np.full(2, float(hvd.rank()), np.float32))]
    local = LocalSGD(variables, every=1)
    local.start(variables)
    variables[0].assign(np.full(2, 4.0 * hvd.rank(), np.float32))
    assert local.step(variables) is variables
    assert keras.ops.convert_to_numpy(variables[0]).tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match=r"tuple, not ndarray"):
        LocalSGD([np.zeros(2)])
    layers = [keras.layers.Dense(2, trainable=number < 2) for number in range(3)]
    alike = keras.Sequential([keras.Input((2,)), *layers])
    local = LocalSGD(alike, every=1)
    local.start(alike)
    layers[0].trainable, layers[2].trainable = False, True  # as many variables of the same shapes
    raises(ValueError, "differs from the tree that was given at first", local.step, alike)
    hvd.shutdown()
