"""Sequence to sequence with two LSTMs, in Keras on several processes: an encoder reads digits, a decoder returns
them in reverse order.

    ronde run -np 2 python examples/keras_lstm_seq2seq.py
    KERAS_BACKEND=jax ronde run -np 2 python examples/keras_lstm_seq2seq.py

The decoder is trained with the right answer, delayed by one step, as its input ("teacher forcing"). The data are the
labels of scikit-learn's handwritten digits.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from sklearn.datasets import load_digits

import ronde.keras as hvd

LENGTH, START, UNITS = 4, 10, 64


def new_model() -> keras.Model:
    """Return a model: (digits, answer delayed by one step) -> probabilities of each digit of the answer."""
    question, late = keras.Input((LENGTH,), dtype="int32"), keras.Input((LENGTH,), dtype="int32")
    embed = keras.layers.Embedding(START + 1, 16)
    _, *state = keras.layers.LSTM(UNITS, return_state=True)(embed(question))
    decoded = keras.layers.LSTM(UNITS, return_sequences=True)(embed(late), initial_state=state)
    return keras.Model([question, late], keras.layers.Dense(10, activation="softmax")(decoded))


def pairs(questions: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return inputs and answers of the model."""
    answers = questions[:, ::-1]
    late = np.concatenate([np.full((len(answers), 1), START), answers[:, :-1]], axis=1)
    return [questions, late], answers


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="number of epochs")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate of one rank; scaled by the size")
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    _, labels = load_digits(return_X_y=True)
    windows = np.lib.stride_tricks.sliding_window_view(labels, LENGTH).astype("int32")
    rows = 1500 // hvd.size() * hvd.size()
    inputs, answers = pairs(windows[:rows][hvd.rank() :: hvd.size()])
    test_inputs, test_answers = pairs(windows[1500:])

    model = new_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(options.lr * hvd.size()))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        inputs,
        answers,
        batch_size=30,
        epochs=options.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(test_inputs, test_answers, verbose=0)
    equal = len(set(hvd.allgather_object(b"".join(weight.tobytes() for weight in model.get_weights())))) == 1
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.1%} on {hvd.size()} ranks, parameters {'identical' if equal else 'DIFFER'}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
