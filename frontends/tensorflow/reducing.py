"""Combination of gradients over the ranks, for the tape and the optimizer."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from collectives import OpName, ProcessSet
from frontends import tensorflow_ops as ops
from frontends.horovod import (
    BUCKET,
    DENSE,
    MISSING,
    SPARSE,
    AnyCompression,
    Fact,
    Reduction,
    buckets,
    check_groups,
    check_process_set,
    choose_op,
    divided,
    is_lossy,
    option_facts,
    predivided,
    ranks_may_change,
    title_of,
)
from frontends.tensorflow_ops import Aggregation
from transports.core_count import count_together

Groups = int | Sequence[Sequence[Any]] | None


class Reducer:
    """Combines gradients, except those of variables that are registered as local."""

    def __init__(
        self,
        name: str,
        compression: AnyCompression,
        sparse_as_dense: bool,
        op: OpName,
        gradient_predivide_factor: float,
        num_groups: int,
        groups: Groups,
        process_set: ProcessSet,
        scale_local_gradients: bool,
        passes: int = 1,
        averages_passes: bool = False,
    ) -> None:
        """`name` is the prefix of the operations' names; `passes` and `averages_passes` are the optimizer's arguments
        backward_passes_per_step and average_aggregated_gradients. Raises TypeError or ValueError for a bad argument."""
        op = choose_op(op)
        self._factors = predivided(op, gradient_predivide_factor)
        if is_lossy(compression):
            compression.check(op, gradient_predivide_factor, 1.0)
        check_groups(num_groups, "num_groups")
        if num_groups:
            warnings.warn("num_groups: deprecated, use groups", DeprecationWarning, stacklevel=4)
            groups = num_groups if groups is None else groups
        check_groups(groups)
        check_process_set(process_set)
        members = Counter(_key(one) for group in groups for one in group) if isinstance(groups, Sequence) else {}
        if any(count > 1 for count in members.values()):
            raise ValueError("groups: a variable is in more than one")
        self._passes = passes
        self._averages_passes = averages_passes
        self._name = name
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._op = op
        self._groups = groups
        self._process_set = process_set
        self._scale_local = scale_local_gradients
        self._local: set[Any] = set()

    def register_local_source(self, source: Any) -> None:
        """Do not combine the gradient of a variable."""
        self._local.add(_key(source))

    def reduce_sums(self, passes: Aggregation, gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """`reduce` of the sums of several passes, in the last one."""

        def reduce(sums: list[Any], variables: list[Any], name: str) -> list[Any]:
            return self.reduce(sums, variables, reserved=name)

        return passes.add(gradients, sources, self._name, reduce)

    def reduce(
        self, gradients: Sequence[Any], sources: Sequence[Any], generic_names: bool = False, reserved: str | None = None
    ) -> list[Any]:
        """Return the combined gradients of `sources`; None stays None.

        Gradients are matched by the names of their sources, so ranks may list them in different orders; with
        `generic_names`, by their positions. In a graph, a group travels as soon as its
        gradients are complete; in eager mode, all gradients are complete, and travel as one operation. `reserved` is
        the name of the agreement, of `ops.reserve`, in a tf.cond.

        Raises ValueError on every rank, with the names, if a gradient is not of the same kind on all ranks (missing,
        dense or sparse), or if one rank lists sources of the same name in the order of their creation, and another
        does not.
        """
        results = list(gradients)
        if ops.stays_alone(self._process_set):
            return results
        names = [f"grad_{index}" for index in range(len(sources))] if generic_names else source_names(sources)
        known = names if generic_names else told_apart(sources, names)
        combined, facts = [], self._options(sources, names)
        for index in sorted(range(len(sources)), key=names.__getitem__):
            gradient, kind = gradients[index], MISSING
            if _key(sources[index]) in self._local:
                results[index] = None if gradient is None else self._own(gradient)
                continue
            if gradient is not None:
                kind = DENSE
                if isinstance(gradient, tf.IndexedSlices):
                    if self._sparse_as_dense:
                        results[index] = tf.convert_to_tensor(gradient)
                    else:
                        kind = SPARSE
                combined.append(index)
            facts.append(Fact(known[index], known[index], "", kind))
        if not sources:
            return results
        if is_lossy(self._compression):
            owners = {f"{self._name}/{names[index]}": _inner(sources[index]) for index in combined}
            lasting = {name: owner for name, owner in owners.items() if isinstance(owner, tf.Variable)}
            self._compression.belong_to(list(lasting), list(lasting.values()))
        with ops.agreement(reserved or self._name, facts, self._process_set, reserved is not None):
            return self._reduced(results, combined, names, sources)

    def _options(self, sources: Sequence[Any], names: Sequence[str]) -> list[Fact]:
        """Return the facts about the arguments by which this rank combines gradients of `sources`."""
        groups: Any = self._groups
        if isinstance(groups, Sequence):
            known = {_key(source): name for source, name in zip(sources, names, strict=True)}
            groups = [[known[_key(one)] for one in group if _key(one) in known] for group in groups]
        return option_facts(
            op=self._op,
            factors=self._factors,
            compression=title_of(self._compression),
            groups=groups,
            backward_passes_per_step=self._passes,
            average_aggregated_gradients=self._passes > 1 and self._averages_passes,
        )

    def _reduced(self, results: list[Any], combined: list[int], names: list[str], sources: Sequence[Any]) -> list[Any]:
        """Return the gradients with those of the numbers `combined` replaced by their combinations."""
        for group in self._divide(combined, sources, results):
            how = Reduction(self._op, f"{self._name}/{names[group[0]]}", *self._factors, self._process_set)
            given = [results[index] for index in group]
            kept = [f"{self._name}/{names[index]}" for index in group]
            reduced = ops.reduce_together(given, how, self._compression, kept)
            for index, gradient in zip(group, reduced, strict=True):
                results[index] = gradient
        return results

    @property
    def _crowded(self) -> bool:
        """True if all ranks are on one host with less than two cores for each rank.

        Then no core is free to combine gradients while others are computed, and overlapping the two takes longer. All
        ranks get the same answer, so it is False where ranks come and go: their graphs are made in worlds of different
        sizes.
        """
        comm = self._process_set.communicator
        cores = count_together([member.cores for member in comm.members])
        return comm.local_size == comm.size and cores < 2 * comm.size and not ranks_may_change()

    def _own(self, gradient: Any) -> Any:
        """Return a local gradient, divided by the number of ranks if `scale_local_gradients` is set."""
        if not self._scale_local:
            return gradient
        factor = 1.0 / tf.cast(ops.members(self._process_set), tf.float64)
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values * tf.cast(factor, gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient * tf.cast(factor, gradient.dtype)

    def _divide(self, indices: list[int], sources: Sequence[Any], gradients: Sequence[Any]) -> list[list[int]]:
        """Return the groups of gradients that travel together. `indices` are in the order of the names, which is the
        same on all ranks."""
        if isinstance(self._groups, int) and self._groups:
            return divided(indices, self._groups)
        if self._groups:
            group_of = {_key(source): number for number, group in enumerate(self._groups) for source in group}
            found: dict[Any, list[int]] = {}
            for index in indices:
                key = _key(sources[index])
                found.setdefault(group_of.get(key, ("alone", index)), []).append(index)
            return list(found.values())
        if tf.executing_eagerly() or self._crowded:
            return [indices] if indices else []
        sizes = [(sources[index].shape.num_elements() or 0) * gradients[index].dtype.size for index in indices]
        return buckets(indices, sizes, BUCKET)


def source_names(sources: Sequence[Any]) -> list[str]:
    """Return a unique name for each source: the name of the variable, numbered if several have the same."""
    counts: Counter[str] = Counter()
    names = []
    for name in map(_plain_name, sources):
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return names


def told_apart(sources: Sequence[Any], names: Sequence[str]) -> list[str]:
    """Return the names with numbers in which sources of the same plain name were created in this process.

    Ranks that list such sources in different orders then have different lists.
    """
    equal: dict[str, list[int]] = {}
    for index, source in enumerate(sources):
        equal.setdefault(_plain_name(source), []).append(index)
    found = list(names)
    for name, indices in equal.items():
        made = [(_created(sources[index]), index) for index in indices]
        if len(indices) > 1 and all(number is not None for number, _ in made):
            for number, (_, index) in enumerate(sorted(made)):
                found[index] = f"{name}#{number}"
    return found


def _plain_name(source: Any) -> str:
    name = getattr(source, "path", None) or (source.name if isinstance(source, tf.Variable) else "source")
    return str(name).partition(":")[0]


def _created(source: Any) -> int | None:
    """Return a number that is greater for sources created later; None if TensorFlow keeps none."""
    inner = _inner(source)
    number = getattr(inner, "_id", None)  # of an eager tensor
    if isinstance(number, int):
        return number
    text = getattr(inner, "_unique_id", "")  # of a variable: its name and a number
    found = re.search(r"_(\d+)$", text) if isinstance(text, str) else None
    return None if found is None else int(found[1])


def _key(source: Any) -> Any:
    """Return a key for a variable that is the same for a Keras variable and the TensorFlow variable in it."""
    inner = _inner(source)
    return inner.ref() if hasattr(inner, "ref") else id(inner)


def _inner(source: Any) -> Any:
    """Return the TensorFlow variable in a Keras variable; another source itself."""
    inner = getattr(source, "value", source)
    return source if callable(inner) else inner
