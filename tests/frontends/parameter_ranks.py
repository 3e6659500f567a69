"""The programs of the ranks of test_any_parameters.py: trainings by one framework each."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from typing import Any

import numpy as np

from tests.frontends.scenarios import RATE, SHAPE, Training, rows


def run(framework: str, trainings: list[Training]) -> list[Any]:
    """In a rank: the parameters after each training, or the error of a step."""
    name = framework if framework in ("tensorflow", "mxnet") else "keras"
    hvd = importlib.import_module(f"frontends.{name}")
    hvd.init()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Gradients do not exist")
            return [BODIES[name](hvd, training) for training in trainings]
    finally:
        hvd.shutdown()


def by_tape(hvd: Any, training: Training) -> Any:
    import tensorflow as tf

    rank = hvd.rank()
    variables = [tf.Variable(tf.fill(SHAPE, first), name=training.name(n)) for n, first in enumerate(training.first)]
    extra = tf.Variable(tf.zeros(SHAPE), name="extra")
    order = training.orders[rank]
    for step, uses in enumerate(training.uses):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(extra)
            for number, use in enumerate(uses[rank]):
                if training.gradient(step, rank, number) is not None:
                    chosen = tf.gather(variables[number], rows(rank)) if use == "sparse" else variables[number]
                    for _ in range(2 if use == "twice" else 1):
                        loss += training.factor(step, rank, number) * tf.reduce_sum(chosen)
        sources = [variables[number] for number in order]
        if training.alone and rank == 0 and step == len(training.uses) - 1:
            sources.append(extra)
        try:
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, sources)
        except ValueError as error:
            return str(error)
        for source, gradient in zip(sources, gradients, strict=True):
            if gradient is not None:
                source.assign_sub(RATE * tf.convert_to_tensor(gradient))
    return [variable.numpy() for variable in variables]


def by_keras(hvd: Any, training: Training) -> Any:
    import keras

    rank = hvd.rank()
    backend = keras.backend.backend()
    failures: tuple[type[Exception], ...] = (ValueError, hvd.HorovodInternalError)
    if backend == "jax":
        failures = (*failures, importlib.import_module("jax").errors.JaxRuntimeError)
    variables = [
        keras.Variable(np.full(SHAPE, first, np.float32), name=training.name(n).replace(".", "_"))
        for n, first in enumerate(training.first)
    ]
    extra = keras.Variable(np.zeros(SHAPE, np.float32), name="extra")
    order = training.orders[rank]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE))
    for step in range(len(training.uses)):
        chosen, gradients = [], []
        for number in order:
            found = training.gradient(step, rank, number)
            chosen.append(variables[number])
            gradients.append(None if found is None else keras.ops.convert_to_tensor(found.astype(np.float32)))
        joins = training.alone and step == len(training.uses) - 1
        if joins and rank == 0:
            chosen.append(extra)
            gradients.append(keras.ops.zeros(SHAPE))
        ranks, numbers = range(training.size), range(len(variables))
        if not joins and all(training.gradient(step, other, number) is None for other in ranks for number in numbers):
            continue  # Keras refuses to step
        try:
            optimizer.apply(gradients, chosen)
            [keras.ops.convert_to_numpy(variable) for variable in variables]
        except failures as error:
            if backend == "jax":
                with contextlib.suppress(*failures):
                    importlib.import_module("frontends.jax").settle()
            return str(error)
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def by_trainer(hvd: Any, training: Training) -> Any:
    import mxnet as mx

    rank = hvd.rank()
    names = [training.name(number) for number in range(len(training.first))]
    parameters = [mx.gluon.Parameter(name, shape=SHAPE) for name in [*names, "extra"]]
    for parameter, first in zip(parameters, [*training.first, 0.0], strict=True):
        parameter.initialize(mx.init.Constant(first))
    own = [parameters[number] for number in training.orders[rank]]
    trainer = None
    for step, uses in enumerate(training.uses):
        if training.alone and rank == 0 and step == len(training.uses) - 1:
            own, trainer = [*own, parameters[-1]], None
        trainer = trainer or hvd.DistributedTrainer(own, "sgd", {"learning_rate": RATE})
        for number, use in enumerate(uses[rank]):
            frozen = number in training.frozen[step] or use == "frozen"
            parameters[number].grad_req = "null" if frozen else "write"
        with mx.autograd.record():
            loss = parameters[-1].data().sum()
            for number, use in enumerate(uses[rank]):
                factor = 0.0 if use in ("", "frozen") else training.factor(step, rank, number)
                for _ in range(2 if use == "twice" else 1):
                    loss = loss + factor * parameters[number].data().sum()
        loss.backward()
        try:
            trainer.step(1)
        except ValueError as error:
            return str(error)
    return [parameter.data().asnumpy() for parameter in parameters[:-1]]


BODIES = {"tensorflow": by_tape, "keras": by_keras, "mxnet": by_trainer}
