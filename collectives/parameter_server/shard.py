"""The parameters of a shard, as its server holds them: rounds of changes, and snapshots. No communication."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from collectives.trees import Array

_VERSION: Final = "version/"
_VALUE: Final = "value/"


class Rules(NamedTuple):
    """When the changes of a round are applied; see the arguments of Synchronizer."""

    quorum: int
    grace: float
    staleness: int | None


class Parameter:
    """One parameter: its value, its version, and the round of changes that is under way.

    Values are replaced and never changed in place, so that replies may refer to them.
    """

    def __init__(self, value: Array, version: int = 1) -> None:
        self.value = value
        self.version = version
        self.due = math.inf
        """The monotonic time at which the round is applied; infinity before there is a quorum."""
        self._workers = set[int]()
        self._weight = 0.0
        self._mean: Array | None = None

    def add(self, worker: int, delta: Array, weight: float, base: int, staleness: int | None) -> bool:
        """Add a change to the round. False, with nothing done, if it was computed on a version that is too old."""
        if staleness is not None and self.version - base > staleness:
            return False
        self._weight += weight
        if self._mean is None:
            self._mean = delta
        else:  # with shares of at most 1, as a sum of weighted changes may leave the range of the dtype
            share = weight / self._weight
            self._mean = np.asarray(self._mean * value_of(1.0 - share, delta) + delta * value_of(share, delta))
        self._workers.add(worker)
        return True

    def decide(self, active: frozenset[int], rules: Rules, now: float) -> bool:
        """Apply the round if it is time; True if it was applied.

        active   the workers that have not finished
        """
        if self._mean is None or len(self._workers) < min(rules.quorum, len(active)):
            return False
        if self.due == math.inf:
            self.due = now + rules.grace
        if now < self.due and not active <= self._workers:
            return False
        self.value = np.asarray(self.value + self._mean)
        self.version += 1
        self.give_up()
        return True

    def give_up(self) -> None:
        """Forget the round that is under way."""
        self._workers.clear()
        self._weight, self._mean, self.due = 0.0, None, math.inf


def value_of(number: float, like: Array) -> Array:
    """The number in the dtype of an array."""
    return np.asarray(number, like.dtype)


class Shard:
    """The parameters of a shard, and the file with its snapshot.

    path    file of the snapshot; None: none is written
    every   updates of parameters from one snapshot to the next
    """

    def __init__(self, parameters: Mapping[str, Parameter], path: Path | None, every: int) -> None:
        self.parameters = dict(parameters)
        self._path, self._every = path, every
        self._updates = 0

    @classmethod
    def restored(cls, forms: Mapping[str, Array], path: Path, every: int) -> Shard:
        """The shard of a snapshot. Versions go on `every` higher, so that a version never means two values.

        forms   arrays of the shapes and dtypes that the parameters must have

        Raises ValueError if the snapshot is of other parameters; OSError if the file cannot be read.
        """
        found = {}
        with np.load(path, allow_pickle=False) as saved:
            names = {key.removeprefix(_VALUE) for key in saved.files if key.startswith(_VALUE)}
            if names != set(forms):
                raise ValueError(f"{path}: has the parameters {sorted(names)}, must have {sorted(forms)}")
            for name, form in forms.items():
                value = saved[_VALUE + name]
                if (value.shape, value.dtype) != (form.shape, form.dtype):
                    has, wanted = f"{value.dtype} {value.shape}", f"{form.dtype} {form.shape}"
                    raise ValueError(f"{path}: parameter {name!r} is {has}, must be {wanted}")
                found[name] = Parameter(value, int(saved[_VERSION + name]) + every)
        return cls(found, path, every)

    def interrupt(self) -> None:
        """Forget the rounds under way, because ranks were lost. Raises OSError, as `save`.

        Versions grow as by an update: a worker that waits for a newer one may have lost the change that would make it.
        """
        for parameter in self.parameters.values():
            parameter.give_up()
            parameter.version += 1
        self.updated()

    def updated(self) -> None:
        """Count an update, and write a snapshot if it is time."""
        self._updates += 1
        if self._updates >= self._every:
            self.save()

    def save(self) -> None:
        """Write a snapshot, in place of the one before. Raises OSError; the one before is intact then."""
        self._updates = 0
        if self._path is None:
            return
        arrays: dict[str, Array] = {}
        for name, parameter in self.parameters.items():
            arrays[_VALUE + name] = parameter.value
            arrays[_VERSION + name] = np.asarray(parameter.version)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(f".{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes no other keys than its options
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)
