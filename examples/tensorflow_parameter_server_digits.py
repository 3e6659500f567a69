"""Asynchronous SGD in TensorFlow on scikit-learn's handwritten digits, in a cluster of chief, workers and servers.

    export RONDE_SECRET=$(python -c 'import secrets; print(secrets.token_hex(32))')
    for task in '"chief", "index": 0' '"worker", "index": 0' '"ps", "index": 0'; do
        TF_CONFIG='{"cluster": {"chief": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"], "ps": ["127.0.0.1:2224"]},
                    "task": {"type": '$task'}}' python examples/tensorflow_parameter_server_digits.py &
    done; wait

    ronde run -np 3 python examples/tensorflow_parameter_server_digits.py     # the same; the last rank is a server

Tasks of type chief and worker train, each at its own pace; tasks of type ps hold the variables.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import ronde
from ronde.parameter_server import Synchronizer

ROWS, HIDDEN, RATE = 128, 128, 1.0


class Network(tf.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = tf.Variable(tf.random.normal([64, HIDDEN], stddev=0.18), name="w1")
        self.b1 = tf.Variable(tf.zeros([HIDDEN]), name="b1")
        self.w2 = tf.Variable(tf.random.normal([HIDDEN, 10], stddev=0.12), name="w2")
        self.b2 = tf.Variable(tf.zeros([10]), name="b2")

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Return the logits."""
        return tf.nn.relu(images @ self.w1 + self.b1) @ self.w2 + self.b2


def number_of_servers() -> int:
    """The tasks of type ps in TF_CONFIG; 1 under a launcher without types of tasks."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    return cluster.num_tasks("ps") if "ps" in cluster.jobs else 1


def main() -> None:
    """Train, and report the accuracy of the final variables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="changes per worker on the average")
    options = parser.parse_args()

    ronde.init()
    servers = number_of_servers()
    workers = ronde.size() - servers
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    numbers = np.random.default_rng(ronde.rank())
    model = Network()

    @tf.function
    def gradients(images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images)))
        return tape.gradient(loss, model.trainable_variables)

    # The servers count the changes in a parameter of their own.
    params = {variable.name: variable.numpy() for variable in model.trainable_variables} | {"changes": np.zeros(1)}
    sync = Synchronizer(params, servers=servers)
    sync.start()
    pushed = 0
    while sync.role == "worker":
        params = sync.pull_all()
        done = params["changes"][0] / (options.steps * workers)
        if done >= 1:
            break
        for variable in model.trainable_variables:
            variable.assign(params[variable.name])
        rows = numbers.choice(train, ROWS)
        found = gradients(tf.constant(images[rows]), tf.constant(labels[rows]))
        factor = -RATE * (1 - done) / workers  # falls to 0: the order of the last changes does not matter
        changes = zip(model.trainable_variables, found, strict=True)
        sync.push_all({v.name: factor * gradient.numpy() for v, gradient in changes} | {"changes": np.ones(1)})
        pushed += 1
    final = sync.finish()
    for variable in model.trainable_variables:
        variable.assign(final[variable.name])
    print(f"rank {ronde.rank()} of {ronde.size()} was a {sync.role} and pushed {pushed} changes", flush=True)
    if ronde.rank() == 0:
        accuracy = np.mean(tf.argmax(model(images[test]), 1).numpy() == labels[test])
        print(f"accuracy {accuracy:.1%} after {int(final['changes'][0])} changes", flush=True)
    ronde.shutdown()


if __name__ == "__main__":
    main()
