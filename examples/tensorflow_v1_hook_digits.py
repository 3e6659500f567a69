"""Horovod-style training in a graph of `tf.compat.v1` on scikit-learn's handwritten digits.

    ronde run -np 2 python examples/tensorflow_v1_hook_digits.py
    ronde run -np 2 python examples/tensorflow_v1_hook_digits.py --checkpoint digits --epochs 10  # resumes from it

Only the import differs from the same script for Horovod: it has a DistributedOptimizer, a
MonitoredTrainingSession, and a hook that broadcasts the variables of rank 0, which alone saves checkpoints.
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
v1 = tf.compat.v1


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="epochs in total, with those of the checkpoint")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of one rank; scaled by the size")
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes per step")
    parser.add_argument("--checkpoint", type=Path, help="folder for checkpoints; training resumes from the last one")
    return parser.parse_args()


def dense(x: tf.Tensor, width: int, name: str) -> tf.Tensor:
    """Return the output of a dense layer."""
    with v1.variable_scope(name):
        weights = v1.get_variable("weights", [x.shape[1], width])
        return x @ weights + v1.get_variable("biases", [width], initializer=tf.zeros_initializer())


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    options = parse()
    v1.disable_eager_execution()
    hvd.init()
    v1.set_random_seed(hvd.rank())
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1500], order[1500:]
    mine = train[hvd.rank() :: hvd.size()]

    x, y = v1.placeholder(tf.float32, [None, 64]), v1.placeholder(tf.int64, [None])
    logits = dense(tf.nn.relu(dense(x, HIDDEN, "hidden")), 10, "output")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    hits = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.int32))
    mean_loss, all_hits = hvd.allreduce(loss, name="mean_loss"), hvd.allreduce(hits, op=hvd.Sum, name="all_hits")
    step = v1.train.get_or_create_global_step()
    optimizer = v1.train.AdamOptimizer(options.lr * hvd.size())
    optimizer = hvd.DistributedOptimizer(
        optimizer, backward_passes_per_step=options.accumulate, average_aggregated_gradients=True
    )
    minimize = optimizer.minimize(loss, global_step=step)

    config = v1.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    folder = str(options.checkpoint) if options.checkpoint is not None and hvd.rank() == 0 else None
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    with v1.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, config=config) as session:
        steps = len(mine) // BATCH // options.accumulate
        for epoch in range(session.run(step) // steps, options.epochs):
            shuffled = np.random.default_rng((epoch, hvd.rank())).permutation(mine)
            batches = np.split(shuffled[: steps * options.accumulate * BATCH], steps * options.accumulate)
            for batch in batches:
                session.run(minimize, {x: images[batch], y: labels[batch]})
            found = session.run(mean_loss, {x: images[mine], y: labels[mine]})
            if hvd.rank() == 0:
                print(f"epoch {epoch + 1}: loss {found:.4f}", flush=True)
        part = test[hvd.rank() :: hvd.size()]
        right = session.run(all_hits, {x: images[part], y: labels[part]})
        weights = session.run(v1.trainable_variables())
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()
    equal = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        accuracy = right / len(test)
        print(f"accuracy {accuracy:.1%} on {hvd.size()} ranks, parameters {'identical' if equal else 'DIFFER'}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
