"""GradientAverager: reduction of gradients while the remaining gradients are computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from collectives import OpName, ProcessSet, Work, global_process_set
from collectives.compression import Compressor, State
from collectives.trees import Array, leaves, rebuilt
from frontends.horovod import Average, Sum, as_horovod, choose_op, communicator_of
from frontends.numpy.ops import as_array, as_leaf, writable


class GradientAverager:
    """Averages gradients in the background.

        averager = GradientAverager()
        for layer in reversed(layers):
            averager.add(layer.name, layer.backward())        # begins to average; the next layer is computed meanwhile
        gradients = averager.wait()                           # {name: average over the ranks}

        averager.begin({"w": dw, "b": db}); ...; gradients = averager.wait()       # a whole tree at once
        gradients = averager.average({"w": dw, "b": db})                           # both

    Gradients that are ready at the same time travel together, and ranks may add them in different orders. Arrays must
    not be changed between `add` or `begin` and `wait`. Averagers in use at the same time need different names.

    state   error feedback of `compression`, different on each rank; keep it in checkpoints
    """

    def __init__(
        self,
        op: OpName | None = None,
        *,
        name: str = "gradients",
        in_place: bool = False,
        compression: Compressor | None = None,
        backward_passes_per_step: int = 1,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """op            Average by default; Sum, Adasum
        name          prefix of the operations' names
        in_place      write the results into the given arrays
        compression   one of collectives.compression, with error feedback, for Average and Sum
        backward_passes_per_step   number of this rank's gradients that are averaged before they are combined; `wait`
                      returns None before that

        Raises ValueError for a bad argument.
        """
        self._op = choose_op(op)
        if compression is not None and self._op not in (Average, Sum):
            raise ValueError(f"op={op!r}: with compression it must be Average or Sum")
        if isinstance(backward_passes_per_step, bool) or backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step={backward_passes_per_step!r}: must be an int, 1 or more")
        self._name = name
        self._in_place = in_place
        self._compression = compression
        self._passes = backward_passes_per_step
        self._process_set = process_set
        self._done = 0
        self._sums: dict[str, Array] = {}
        self._begun: dict[str, _PendingReduction] = {}
        self.state = State()

    def add(self, name: str, gradient: Any) -> None:
        """Begin to average one gradient, which ranks know by its name.

        Raises ValueError if it was added already since `wait`, TypeError if it is no array or number.
        """
        self._begin(name, gradient)

    def begin(self, tree: Any) -> None:
        """Begin to average a tree of gradients as one operation; then `wait` returns such a tree.

        Raises ValueError if something was added or begun already since `wait`.
        """
        if self._begun:
            raise ValueError(f"tree: {', '.join(map(repr, self._begun))} was begun already; call wait() first")
        self._begin("", tree)

    def wait(self) -> Any:
        """Return the averages: a dict of the added gradients, or the tree of `begin`; None if more passes must follow.

        Raises HorovodInternalError if the ranks disagree about a gradient, or a rank is lost. Afterwards no operation
        is in flight; after a disagreement the next step may begin.
        """
        begun, self._begun = self._begun, {}
        self._done = (self._done + 1) % self._passes
        errors: list[Exception] = []
        with as_horovod():
            for one in begun.values():
                try:
                    one.wait()
                except Exception as error:  # noqa: BLE001 - the first is raised when all are over
                    errors.append(error)
            if errors:
                raise errors[0]
        if self._done:
            return None
        self._sums.clear()
        return begun[""].tree() if "" in begun else {name: one.tree() for name, one in begun.items()}

    def average(self, tree: Any) -> Any:
        """`begin` and `wait`."""
        self.begin(tree)
        return self.wait()

    def _begin(self, name: str, tree: Any) -> None:
        if name in self._begun or "" in self._begun:
            raise ValueError(f"name={name!r}: was begun already; call wait() first")
        found = [(f"{name}/{path}" if name and path else name or path, leaf) for path, leaf in leaves(tree)]
        arrays = [as_array(leaf, self._op) for _, leaf in found]
        outs = [
            writable(array, path) if self._in_place else np.empty_like(array)
            for array, (path, _) in zip(arrays, found, strict=True)
        ]
        begun = _PendingReduction(tree, [leaf for _, leaf in found], outs)
        paths = [path for path, _ in found]
        if self._passes > 1:
            arrays = [self._add_up(path, array) for path, array in zip(paths, arrays, strict=True)]
        if self._done == self._passes - 1 and arrays:
            begun.work = self._combine(name, paths, arrays, outs)
        self._begun[name] = begun

    def _add_up(self, path: str, array: Array) -> Array:
        """The sum of the passes; with the last one, their average."""
        if array.dtype.kind in "biu":
            raise TypeError(f"{path!r}: gradients of {array.dtype} cannot be averaged over passes; give floats")
        if path in self._sums:
            self._sums[path] += array
        else:
            self._sums[path] = array.copy()
        if self._done == self._passes - 1:
            self._sums[path] /= self._passes
        return self._sums[path]

    def _combine(self, name: str, paths: list[str], arrays: list[Array], outs: list[Array]) -> Work[Any]:
        comm = communicator_of(self._process_set)
        label = f"{self._name}.{name}"
        with as_horovod():
            if self._compression is None:
                return comm.grouped_allreduce_async(arrays, self._op, out=outs, name=label)
            names = [path or "gradient" for path in paths]
            return self._compression.grouped_allreduce_async(
                comm, arrays, self._op, out=outs, state=self.state, names=names, name=label
            )


class _PendingReduction:
    """The reduction in flight under one name."""

    def __init__(self, tree: Any, given: Iterable[Any], outs: list[Array]) -> None:
        self._tree, self._given, self._outs = tree, list(given), outs
        self.work: Work[Any] | None = None

    def wait(self) -> None:
        if self.work is not None:
            self.work.wait()

    def tree(self) -> Any:
        pairs = zip(self._outs, self._given, strict=True)
        return rebuilt(self._tree, (as_leaf(out, leaf) for out, leaf in pairs))
