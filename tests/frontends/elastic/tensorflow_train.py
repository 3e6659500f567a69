"""Horovod's elastic loop for TensorFlow 2, with its import changed. It trains until a rank has come and left."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import ronde.tensorflow as hvd

hvd.init()
tf.random.set_seed(hvd.rank())
inputs = tf.random.stateless_normal((64, 8), (1, 2))
targets = tf.reduce_sum(inputs, 1, keepdims=True)
weights, bias = tf.Variable(tf.random.normal((8, 1))), tf.Variable(tf.zeros(1))
optimizer = tf.keras.optimizers.SGD(0.001)


def step(data: Any, target: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((data @ weights + bias - target) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, [weights, bias]), [weights, bias], strict=True))


@hvd.elastic.run
def train(state: Any) -> None:
    state.sizes = [*state.sizes, hvd.size()]
    print("train", f"size={hvd.size()}", flush=True)
    graph = tf.function(step)
    while not (state.sizes[-1] == 2 and 3 in state.sizes and state.step % 20 == 0):
        at = (state.step * hvd.size() + hvd.rank()) % 8 * 8
        graph(inputs[at : at + 8], targets[at : at + 8])
        state.step += 1
        if state.step % 5 == 0:
            state.commit()


state = hvd.elastic.TensorFlowState([weights, bias], step=0, sizes=[])
train(state)
print("done", float(tf.reduce_sum(tf.cast(weights, tf.float64))).hex(), *state.sizes, flush=True)
