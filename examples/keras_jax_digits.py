"""Keras on JAX, on several processes: scikit-learn's handwritten digits.

    ronde run -np 2 python examples/keras_jax_digits.py

Three lines distribute a script for one process: `hvd.init`, `hvd.DistributedOptimizer` and the broadcast callback.
XLA still compiles the train step.
"""

from __future__ import annotations

import argparse
import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

import ronde.keras as hvd


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="number of epochs")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of one rank; scaled by the size")
    parser.add_argument(
        "--compression", choices=("none", "fp16", "bf16"), default="none", help="type of sent gradients"
    )
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    images, labels = shuffle(*load_digits(return_X_y=True), random_state=0)
    images = images.astype("float32") / 16
    mine, test = slice(hvd.rank(), 1500 // hvd.size() * hvd.size(), hvd.size()), slice(1500, None)

    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(options.lr * hvd.size()), compression=getattr(hvd.Compression, options.compression)
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        images[mine],
        labels[mine],
        batch_size=30,
        epochs=options.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(images[test], labels[test], verbose=0)
    equal = len(set(hvd.allgather_object(b"".join(weight.tobytes() for weight in model.get_weights())))) == 1
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.1%} on {hvd.size()} ranks, parameters {'identical' if equal else 'DIFFER'}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
