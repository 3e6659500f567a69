"""Summation of gradients over several backward passes before they are combined: backward_passes_per_step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from frontends.tensorflow_ops.nodes import reserve

Reduce = Callable[[list[Any], list[Any], str], list[Any]]
"""Gets sums, their variables, and the name of the agreement, of `reserve`; returns the sums combined over the ranks."""


class Aggregation:
    """Sums of gradients in variables, and the number of passes in them; for eager mode and graphs.

    Each list of the model's variables has sums and a number of its own.
    """

    def __init__(self, passes: int, average: bool) -> None:
        """`average` divides the sums by `passes`."""
        self._passes = passes
        self._average = average
        self._sums: dict[tuple[int, ...], _Sums] = {}
        """By the ids of the variables; the list of the last pass is at the end."""

    def add(self, gradients: Sequence[Any], variables: Sequence[Any], name: str, reduce: Reduce) -> list[Any]:
        """Add a pass's gradients of these variables. Returns `reduce(sums, variables, ...)`, for those that have a
        gradient in a pass, in the last pass of a step, and zeros in the others; None for the others stays None.

        name   of the agreement; a rank with one pass per step agrees under it, too
        """
        key = tuple(map(id, variables))
        sums = self._sums.pop(key, None)
        self._sums[key] = sums = _Sums(self._passes, self._average, variables) if sums is None else sums
        return sums.add(gradients, name, reduce)

    def apply(self, step: Callable[[], Any], variables: Sequence[Any]) -> Any:
        """Run step() and reset the sums in the last pass; do nothing in the others.

        variables   of the results of `add` that are applied, all or some of them
        """
        given = set(map(id, variables))
        latest = list(self._sums.items())[::-1]
        return next((sums for key, sums in latest if given <= set(key)), latest[0][1]).apply(step)


class _Sums:
    """The sums for one list of variables, which it keeps alive."""

    def __init__(self, passes: int, average: bool, variables: Sequence[Any]) -> None:
        self._passes = passes
        self._average = average
        self._variables = list(variables)
        self._count: Any = None
        self._totals: dict[int, Any] = {}
        self._used = set[int]()
        """The places of the gradients that a pass of this step has; in a graph, of those that any pass has."""
        self._due: Any = None

    def add(self, gradients: Sequence[Any], name: str, reduce: Reduce) -> list[Any]:
        name = reserve(name)
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        given = {index: gradient for index, gradient in enumerate(dense) if gradient is not None}
        with tf.init_scope():
            if self._count is None:
                self._count = _variable(tf.zeros([], tf.int32), "aggregation_count")
            for index, gradient in given.items():
                if index not in self._totals:
                    zeros = tf.zeros(gradient.shape, gradient.dtype)
                    self._totals[index] = _variable(zeros, f"aggregation_total_{index}")
        self._used |= given.keys()
        used = sorted(self._used)
        added = [self._totals[index].assign_add(gradient) for index, gradient in given.items()]
        with tf.control_dependencies([tf.convert_to_tensor(one) for one in added]):
            self._due = tf.equal(self._count.assign_add(1), self._passes)
        with tf.control_dependencies([self._due]):
            totals = [tf.identity(self._totals[index]) for index in used]

        def combined() -> list[Any]:
            whole: list[Any] = [None] * len(dense)  # so that a variable keeps its name among those of the same name
            for index, total in zip(used, totals, strict=True):
                whole[index] = total / self._passes if self._average else total
            reduced = reduce(whole, self._variables, name)
            return [reduced[index] for index in used]

        chosen = tf.cond(self._due, combined, lambda: [tf.zeros_like(total) for total in totals])
        results: list[Any] = [None] * len(dense)
        for index, result in zip(used, [chosen] if tf.is_tensor(chosen) else chosen, strict=True):
            results[index] = result
        return results

    def apply(self, step: Callable[[], Any]) -> Any:
        def take() -> Any:
            done = step()
            with tf.control_dependencies([] if done is None else [done]):
                fresh = [
                    self._count.assign(0),
                    *(total.assign(tf.zeros_like(total)) for total in self._totals.values()),
                ]
            if not tf.executing_eagerly():
                return tf.group(*fresh)
            self._used.clear()
            return tf.no_op()

        return tf.cond(self._due, take, tf.no_op)


def _variable(value: Any, name: str) -> Any:
    return tf.Variable(value, trainable=False, name=name)
