"""frontends.keras with tf-keras 2: TF_USE_LEGACY_KERAS=1."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.launch import python
from tests.frontends.pool import Framework, Pool

if importlib.util.find_spec("tf_keras") is None:  # this process must not import it
    pytest.skip("tf-keras is not installed: pip install 'ronde[tf-keras]'", allow_module_level=True)

ROWS, STEPS = 8, 6
X = np.random.default_rng(5).normal(size=(STEPS, 2 * ROWS, 6)).astype(np.float32)
Y = np.tanh(X[..., :3] - X[..., 3:])


@pytest.fixture(scope="module")
def pool(frameworks: Callable[[str], Framework]) -> Pool:
    """Two ranks with tf-keras."""
    return frameworks("tf-keras")(2)


def setup() -> tuple[Any, Any]:
    import tensorflow as tf

    import frontends.tensorflow as hvd

    assert "tf_keras" in tf.keras.__name__
    hvd.init()
    return tf.keras, hvd


def new_model(keras: Any, seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="tanh", input_shape=(6,)), keras.layers.Dense(3)]
    return keras.Sequential(layers)


def optimizers(keras: Any) -> dict[str, Callable[[], Any]]:
    return {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "older sgd": lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9),
        "older adam": lambda: keras.optimizers.legacy.Adam(0.01),
    }


def check(hvd: Any, model: Any, expected: Any) -> None:
    for mine, right in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, right, rtol=2e-4, atol=2e-5)
    every = hvd.allgather_object([weight.tobytes() for weight in model.get_weights()])
    assert every[0] == every[1]


def fitting() -> None:
    keras, hvd = setup()
    rank = hvd.rank()
    rows = slice(rank * ROWS, (rank + 1) * ROWS)
    x, y = X[:, rows].reshape(-1, 6), Y[:, rows].reshape(-1, 3)
    for new in optimizers(keras).values():
        model, alone = new_model(keras, rank), new_model(keras, 0)
        model.compile(hvd.DistributedOptimizer(new()), "mse", metrics=["mae"])
        alone.compile(new(), "mse", metrics=["mae"])
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        told = model.fit(x, y, batch_size=ROWS, shuffle=False, epochs=2, verbose=0, callbacks=callbacks)
        right = alone.fit(X.reshape(-1, 6), Y.reshape(-1, 3), batch_size=2 * ROWS, shuffle=False, epochs=2, verbose=0)
        check(hvd, model, alone)
        np.testing.assert_allclose(told.history["loss"], right.history["loss"], rtol=1e-4)
        assert isinstance(model.optimizer, type(new()))
    hvd.shutdown()


def test_training_is_that_of_one_process(pool: Pool) -> None:
    pool.run(fitting)


def passes() -> None:
    """Several passes for a step, local variables, a tape's gradients, compression."""
    keras, hvd = setup()
    import tensorflow as tf

    rank = hvd.rank()
    for kind in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        for compiled in (False, True):
            variable, own = tf.Variable([1.0, 2.0]), tf.Variable([0.0])
            options = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
            optimizer = hvd.DistributedOptimizer(kind(1.0), **options)
            optimizer.register_local_var(own)

            def step(size: Any, optimizer: Any = optimizer, variable: Any = variable, own: Any = own) -> None:
                gradients = tf.fill([2], size), tf.fill([1], size)
                optimizer.apply_gradients(zip(gradients, (variable, own), strict=True))

            run = tf.function(step) if compiled else step
            for index in range(4):
                run(tf.constant(float(rank + index)))
                if index == 0:
                    np.testing.assert_array_equal(variable, [1.0, 2.0])
            np.testing.assert_allclose(variable, [1.0 - 4.0, 2.0 - 4.0])
            np.testing.assert_allclose(own, [-(0.5 + rank + 2.5 + rank) / 2])
            assert int(optimizer.iterations) == 2
    model = new_model(keras, 0)
    compression = hvd.Compression.int8()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=compression), "mse")
    model.fit(X[0], Y[0] + rank, verbose=0)
    assert len(compression.memory.memories) == 4
    strange = importlib.import_module("keras").optimizers.SGD(0.1)  # of Keras 3
    with pytest.raises(TypeError, match=r"tf-keras optimizer.*TF_USE_LEGACY_KERAS"):
        hvd.DistributedOptimizer(strange)
    hvd.shutdown()


def test_passes_local_variables_and_compression(pool: Pool) -> None:
    pool.run(passes)


def loss_scales() -> None:
    """All ranks skip the same steps: those in which a combined gradient is not finite."""
    keras, hvd = setup()
    rank, scaling = hvd.rank(), keras.mixed_precision.LossScaleOptimizer
    for kind in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        with pytest.raises(ValueError, match=r"LossScaleOptimizer.*DistributedOptimizer"):
            scaling(hvd.DistributedOptimizer(kind(0.1)))
        for policy in ("float32", "mixed_float16"):
            keras.mixed_precision.set_global_policy(policy)
            try:
                model = new_model(keras, 0)
                model.compile(hvd.DistributedOptimizer(kind(0.1) if policy != "float32" else scaling(kind(0.1))), "mse")
                before = None
                for step in range(3):
                    x = X[step, :ROWS].copy()
                    x[0, 0] = np.inf if step == 1 and rank == 0 else x[0, 0]
                    model.train_on_batch(x, Y[step, :ROWS])
                    after = [weight.tobytes() for weight in model.get_weights()]
                    assert hvd.allgather_object(after) == [after] * hvd.size()
                    assert (after == before) == (step == 1)
                    before = after
            finally:
                keras.mixed_precision.set_global_policy("float32")
    hvd.shutdown()


def test_ranks_skip_the_same_steps(pool: Pool) -> None:
    pool.run(loss_scales)


def saving(folder: str) -> None:
    import frontends.keras as hvd

    keras, _ = setup()
    rank = hvd.rank()
    x, y = X.reshape(-1, 6), Y.reshape(-1, 3)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2, verbose=1)
    for name, new in (("new", keras.optimizers.SGD), ("older", keras.optimizers.legacy.SGD)):
        file = Path(folder) / f"{name}.{rank}.h5"
        model = new_model(keras, 0)
        model.compile(hvd.DistributedOptimizer(new(0.1, momentum=0.9)), "mse")
        warmup = hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2)
        best = hvd.callbacks.BestModelCheckpoint("loss", filepath=str(Path(folder) / f"best.{name}.h5"))
        told = model.fit(x, y, epochs=2, verbose=0, callbacks=[warmup, best])
        np.testing.assert_allclose(told.history["lr"], [0.15, 0.2], rtol=1e-5)
        model.save(file)
        again = hvd.load_model(str(file))
        assert hasattr(again.optimizer, "register_local_var")
        assert float(again.optimizer.learning_rate) == pytest.approx(0.2)
        for one in (model, again):
            one.fit(x[rank::2], y[rank::2], epochs=1, shuffle=False, verbose=0)
        check(hvd, again, model)
        state = hvd.elastic.KerasState(model, epoch=rank)
        before = model.get_weights()
        model.set_weights([weight + 1 for weight in before])
        state.restore()
        np.testing.assert_array_equal(model.get_weights()[0], before[0])
        state.sync()
        assert state.epoch == 0
    hvd.barrier()
    assert Path(folder, "best.new.h5").exists()
    hvd.shutdown()


def test_saving_loading_schedules_and_elastic_state(pool: Pool, tmp_path: Path) -> None:
    pool.run(saving, str(tmp_path))


def normalising() -> None:
    keras, hvd = setup()
    import tensorflow as tf

    x = np.random.default_rng(1).normal(2.0, 3.0, (10, 4)).astype(np.float32)
    rows = slice(0, 3) if hvd.rank() == 0 else slice(3, 10)
    layer, plain = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    assert isinstance(layer, keras.layers.BatchNormalization)
    for call in (layer, tf.function(layer)):
        np.testing.assert_allclose(call(tf.constant(x[rows]), training=True), plain(x, training=True)[rows], atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, x.mean(0) * (1 - 0.99**2), rtol=1e-4)
    hvd.shutdown()


def test_sync_batch_normalization(pool: Pool) -> None:
    pool.run(normalising)


def test_without_tf_keras_it_is_named() -> None:
    code = "import sys; sys.modules['tf_keras'] = None; import frontends.keras"
    done = python("-c", code, KERAS_BACKEND="tensorflow", TF_USE_LEGACY_KERAS="1")
    assert "pip install 'ronde[tf-keras]'" in done.stderr
