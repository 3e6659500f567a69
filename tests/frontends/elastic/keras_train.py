"""Horovod's elastic loop for Keras, with its import changed. It trains until a rank has come and left."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import ronde.keras as hvd

hvd.init()
keras.utils.set_random_seed(hvd.rank())
inputs = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.001, momentum=0.9)), loss="mse")


class Enough(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if state.sizes[-1] == 2 and 3 in state.sizes:
            model.stop_training = True


@hvd.elastic.run
def train(state: Any) -> None:
    state.sizes = [*state.sizes, hvd.size()]
    print("train", f"size={hvd.size()}", flush=True)
    callbacks = [
        hvd.elastic.CommitStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        Enough(),
    ]
    model.fit(
        inputs,
        inputs.sum(1, keepdims=True),
        batch_size=8,
        epochs=100000 - state.epoch,
        callbacks=callbacks,
        verbose=0,
    )


state = hvd.elastic.KerasState(model, batch=0, epoch=0, sizes=[])
train(state)
print("done", sum(float(np.sum(w, dtype="d")) for w in model.get_weights()).hex(), *state.sizes, flush=True)
