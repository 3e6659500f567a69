"""Summation of gradients over several backward passes before they are combined: backward_passes_per_step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Aggregation:
    """Sums of gradients in variables, and the number of passes in them; for eager mode and graphs."""

    def __init__(self, passes: int, average: bool) -> None:
        """`average` divides the sums by `passes`."""
        self._passes = passes
        self._average = average
        self._count: Any = None
        self._totals: dict[int, Any] = {}
        self._due: Any = None

    def add(self, gradients: Sequence[Any], reduce: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """Add a pass's gradients. Returns `reduce(sums)` in the last pass of a step and zeros in the others; None stays
        None."""
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        given = {index: gradient for index, gradient in enumerate(dense) if gradient is not None}
        with tf.init_scope():
            if self._count is None:
                self._count = _variable(tf.zeros([], tf.int32), "aggregation_count")
            for index, gradient in given.items():
                if index not in self._totals:
                    zeros = tf.zeros(gradient.shape, gradient.dtype)
                    self._totals[index] = _variable(zeros, f"aggregation_total_{index}")
        added = [self._totals[index].assign_add(gradient) for index, gradient in given.items()]
        with tf.control_dependencies([tf.convert_to_tensor(one) for one in added]):
            self._due = tf.equal(self._count.assign_add(1), self._passes)
        with tf.control_dependencies([self._due]):
            totals = [tf.identity(self._totals[index]) for index in given]

        def combined() -> list[Any]:
            share = [total / self._passes if self._average else total for total in totals]
            return reduce(share)

        chosen = tf.cond(self._due, combined, lambda: [tf.zeros_like(total) for total in totals])
        results = iter([chosen] if tf.is_tensor(chosen) else chosen)
        return [None if gradient is None else next(results) for gradient in dense]

    def apply(self, step: Callable[[], Any]) -> Any:
        """Run step() and reset the sums in the last pass; do nothing in the others."""

        def take() -> Any:
            done = step()
            with tf.control_dependencies([] if done is None else [done]):
                fresh = [
                    self._count.assign(0),
                    *(total.assign(tf.zeros_like(total)) for total in self._totals.values()),
                ]
            return tf.no_op() if tf.executing_eagerly() else tf.group(*fresh)

        return tf.cond(self._due, take, tf.no_op)


def _variable(value: Any, name: str) -> Any:
    return tf.Variable(value, trainable=False, name=name)
