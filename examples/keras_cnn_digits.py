"""A convolutional network with Keras on several processes, on any backend: scikit-learn's handwritten digits.

    ronde run -np 2 python examples/keras_cnn_digits.py
    KERAS_BACKEND=torch ronde run -np 2 python examples/keras_cnn_digits.py

Each rank trains on its share of the digits. Rank 0 saves the model with the best average accuracy over all ranks.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

import ronde.keras as hvd


def new_model() -> keras.Model:
    """Two convolutions and a dense layer."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6, help="number of epochs")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of one rank; scaled by the size")
    parser.add_argument("--best", type=Path, help="file for the best model: *.keras")
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    images, labels = shuffle(*load_digits(return_X_y=True), random_state=0)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    mine, test = slice(hvd.rank(), 1500 // hvd.size() * hvd.size(), hvd.size()), slice(1500, None)

    model = new_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(options.lr * hvd.size()))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(options.lr * hvd.size(), warmup_epochs=2),
    ]
    if options.best is not None:
        callbacks.append(hvd.callbacks.BestModelCheckpoint("loss", filepath=options.best))
    model.fit(
        images[mine],
        labels[mine],
        batch_size=30,
        epochs=options.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(images[test], labels[test], verbose=0)
    equal = len(set(hvd.allgather_object(b"".join(weight.tobytes() for weight in model.get_weights())))) == 1
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.1%} on {hvd.size()} ranks, parameters {'identical' if equal else 'DIFFER'}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
