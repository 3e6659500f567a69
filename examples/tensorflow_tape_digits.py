"""Horovod-style training with a tf.GradientTape on scikit-learn's handwritten digits.

    ronde run -np 2 python examples/tensorflow_tape_digits.py
    ronde run -np 2 python examples/tensorflow_tape_digits.py --checkpoint digits --epochs 10     # resumes from it

Only the import differs from the same script for Horovod. Every rank trains on its share of the data; gradients
are averaged in the tf.function. Rank 0 saves a checkpoint after each epoch, and all ranks begin with its variables.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import ronde.tensorflow as hvd

BATCH = 30
HIDDEN = 64


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="epochs in total, with those of the checkpoint")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of one rank; scaled by the size")
    parser.add_argument(
        "--compression", choices=("none", "fp16", "bf16"), default="none", help="type of sent gradients"
    )
    parser.add_argument("--checkpoint", type=Path, help="folder for checkpoints; training resumes from the last one")
    return parser.parse_args()


class Network(tf.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = tf.Variable(tf.random.normal([64, HIDDEN], stddev=0.125), name="w1")
        self.b1 = tf.Variable(tf.zeros([HIDDEN]), name="b1")
        self.w2 = tf.Variable(tf.random.normal([HIDDEN, 10], stddev=0.125), name="w2")
        self.b2 = tf.Variable(tf.zeros([10]), name="b2")
        self.epoch = tf.Variable(0, trainable=False, name="epoch")

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Return the logits."""
        return tf.nn.relu(images @ self.w1 + self.b1) @ self.w2 + self.b2


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    options = parse()
    hvd.init()
    for number, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        if number == hvd.local_rank():
            tf.config.set_visible_devices(gpu, "GPU")
    tf.random.set_seed(hvd.rank())
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1500], order[1500:]
    mine = train[hvd.rank() :: hvd.size()]

    model = Network()
    checkpoint = tf.train.Checkpoint(model=model)
    if options.checkpoint is not None and hvd.rank() == 0:
        checkpoint.restore(tf.train.latest_checkpoint(options.checkpoint))
    hvd.broadcast_variables(model.variables, root_rank=0)
    rate = options.lr * hvd.size()

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images)))
        tape = hvd.DistributedGradientTape(tape, compression=getattr(hvd.Compression, options.compression))
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(rate * gradient)
        return loss

    for epoch in range(int(model.epoch), options.epochs):
        shuffled = np.random.default_rng((epoch, hvd.rank())).permutation(mine)
        batches = np.split(shuffled[: len(shuffled) // BATCH * BATCH], len(shuffled) // BATCH)
        losses = [step(tf.constant(images[batch]), tf.constant(labels[batch])) for batch in batches]
        loss = hvd.allreduce(tf.reduce_mean(losses), name="loss")
        model.epoch.assign(epoch + 1)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)
            if options.checkpoint is not None:
                checkpoint.save(options.checkpoint / "digits")
    mine = test[hvd.rank() :: hvd.size()]
    hits = tf.reduce_sum(tf.cast(tf.argmax(model(images[mine]), 1) == labels[mine], tf.int32))
    hits = hvd.allreduce(hits, op=hvd.Sum, name="hits")
    digest = hashlib.sha256(b"".join(variable.numpy().tobytes() for variable in model.variables)).hexdigest()
    equal = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        accuracy = int(hits) / len(test)
        print(f"accuracy {accuracy:.1%} on {hvd.size()} ranks, parameters {'identical' if equal else 'DIFFER'}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
