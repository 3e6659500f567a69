"""Horovod-style training with Keras and TensorFlow on scikit-learn's handwritten digits.

    ronde run -np 2 python examples/tensorflow_keras_digits.py
    ronde run -np 2 python examples/tensorflow_keras_digits.py --checkpoint digits.keras --epochs 10   # resumes from it
    ronde run -np 2 python examples/tensorflow_keras_digits.py --logs logs    # then: tensorboard --logdir logs

Only the import differs from the same script for Horovod. Every rank trains on its share of the digits; gradients are
averaged in every step of `model.fit`. Rank 0 saves a checkpoint after each epoch, and all ranks resume from it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

import ronde.keras as hvd

BATCH = 30


class Report(keras.callbacks.Callback):
    """A line of output per epoch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Print the epoch's loss on rank 0."""
        logs = logs or {}
        print(f"epoch {epoch + 1}: loss {logs['loss']:.4f}, validation accuracy {logs['val_accuracy']:.1%}", flush=True)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6, help="epochs in total, with those of the checkpoint")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank; scaled by the size")
    parser.add_argument("--warmup", type=int, default=2, help="epochs until the scaled learning rate is reached")
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes per step")
    parser.add_argument("--checkpoint", type=Path, help="file to keep, and to resume from if it is there: *.keras")
    parser.add_argument("--logs", type=Path, help="folder for TensorBoard, with one for each rank; needs tensorboard")
    return parser.parse_args()


def new_model(options: argparse.Namespace) -> keras.Model:
    """A small network, compiled with Horovod's optimizer."""
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(options.lr * hvd.size(), momentum=0.9), backward_passes_per_step=options.accumulate
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    options = parse()
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # one for each process of this machine
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    keras.utils.set_random_seed(hvd.rank())
    images, labels = shuffle(*load_digits(return_X_y=True), random_state=0)
    images = images.astype("float32") / 16
    steps = 1500 // hvd.size() // BATCH
    mine = slice(hvd.rank(), steps * BATCH * hvd.size(), hvd.size())
    test, part = slice(1500, None), slice(1500 + hvd.rank(), None, hvd.size())

    first = 0
    if options.checkpoint is not None and hvd.broadcast_object(options.checkpoint.exists()) and hvd.rank() == 0:
        model = hvd.load_model(options.checkpoint, backward_passes_per_step=options.accumulate)
        first = int(model.optimizer.iterations) * options.accumulate // steps
    else:
        model = new_model(options)
    first = hvd.broadcast_object(first)

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),  # before all that look at metrics
        hvd.callbacks.LearningRateWarmupCallback(options.lr * hvd.size(), warmup_epochs=options.warmup),
        hvd.callbacks.LearningRateScheduleCallback(
            options.lr * hvd.size(), lambda epoch: 1.0 if epoch < 8 else 0.1, start_epoch=options.warmup
        ),
    ]
    if options.logs is not None:
        callbacks.append(keras.callbacks.TensorBoard(options.logs / f"rank{hvd.rank()}"))
    if hvd.rank() == 0:
        callbacks.append(Report())
        if options.checkpoint is not None:
            callbacks.append(keras.callbacks.ModelCheckpoint(options.checkpoint))
    model.fit(
        images[mine],
        labels[mine],
        batch_size=BATCH,
        initial_epoch=first,
        epochs=options.epochs,
        validation_data=(images[part], labels[part]),
        callbacks=callbacks,
        verbose=0,
    )
    _, accuracy = model.evaluate(images[test], labels[test], verbose=0)
    equal = len(set(hvd.allgather_object(b"".join(weight.tobytes() for weight in model.get_weights())))) == 1
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.1%} on {hvd.size()} ranks, parameters {'identical' if equal else 'DIFFER'}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
