"""GradientAverager: reduction of gradients while the remaining gradients are computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from collectives import OpName, ProcessSet, Work, global_process_set
from collectives.arrays import is_small_float, rest, share
from collectives.compression import Compressor, State
from collectives.trees import Array, leaves, rebuilt
from collectives.written import WrittenMemory, span
from frontends.horovod import (
    Average,
    Sum,
    as_horovod,
    check_compressor,
    check_passes,
    choose_op,
    communicator_of,
    option_facts,
)
from frontends.numpy.ops import Agreement, as_array, as_leaf, writable

_Form = tuple[np.dtype[Any], tuple[int, ...]]


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
        compression   one of ronde.compression, with error feedback, for Average and Sum
        backward_passes_per_step   number of this rank's gradients that are averaged before they are combined; `wait`
                      returns None before that

        Raises TypeError or ValueError for a bad argument.
        """
        self._op = choose_op(op)
        if compression is not None:
            check_compressor(compression, "compression")
            if self._op not in (Average, Sum):
                raise ValueError(f"op={op!r}: with compression it must be Average or Sum")
        check_passes(backward_passes_per_step)
        self._name = name
        self._in_place = in_place
        self._compression = compression
        self._passes = backward_passes_per_step
        self._process_set = process_set
        self._done = 0
        self._sums: dict[str, tuple[dict[str, _Form], dict[str, Array]]] = {}
        """The forms of the gradients of this step's passes, and the sums of their shares: for each name, by paths."""
        self._trees: dict[str, Any] = {}
        """The trees of the sums, as they were given last."""
        self._begun: dict[str, _PendingReduction] = {}
        self._written = WrittenMemory()
        """That of arrays that are reduced in place."""
        self.state = State()

    def add(self, name: str, gradient: Any) -> None:
        """Begin to average one gradient, which ranks know by its name.

        With several passes per step, a gradient that a pass does not add counts as zeros in it.

        Raises ValueError if it was added already since `wait`, in place also under another name, or is not of the form
        of the step's earlier passes; TypeError if it is no array or number. Nothing is added then.
        """
        self._begin(name, gradient)

    def begin(self, tree: Any) -> None:
        """Begin to average a tree of gradients as one operation; then `wait` returns such a tree.

        Raises ValueError if something was added or begun already since `wait`, otherwise as `add`.
        """
        if self._begun:
            raise ValueError(f"tree: {', '.join(map(repr, self._begun))} was begun already; call wait() first")
        self._begin("", tree)

    def wait(self) -> Any:
        """Return the averages: a dict of the added gradients, or the tree of `begin`; None if more passes must follow.

        Raises HorovodInternalError if the ranks disagree about a gradient, or a rank is lost; ValueError on every rank
        if their trees have different keys. Afterwards no operation is in flight. After a disagreement the next step may
        begin; what was added in the passes of this one is forgotten, and arrays are undefined if they are in place.
        """
        last = self._done == self._passes - 1
        if last:
            for name in self._sums.keys() - self._begun.keys():
                tree = self._trees[name]
                self._begin(name, rebuilt(tree, (_zero(leaf) for _, leaf in leaves(tree))))
        begun, self._begun = self._begun, {}
        self._written.clear()
        self._done = 0 if last else self._done + 1
        if last:
            self._sums.clear()
            self._trees.clear()
        errors: list[Exception] = []
        with as_horovod():
            for one in begun.values():
                try:
                    one.wait()
                except Exception as error:  # noqa: BLE001 - the first is raised when all are over
                    errors.append(error)
            if errors:
                raise errors[0]
        if not last:
            return None
        return begun[""].tree() if "" in begun else {name: one.tree() for name, one in begun.items()}

    def average(self, tree: Any) -> Any:
        """`begin` and `wait`."""
        self.begin(tree)
        return self.wait()

    def _begin(self, name: str, tree: Any) -> None:
        if name in self._begun or "" in self._begun:
            raise ValueError(f"name={name!r}: was begun already; call wait() first")
        found = [(f"{name}/{path}" if name and path else name or path, leaf) for path, leaf in leaves(tree)]
        arrays = [as_array(leaf, self._op, path) for path, leaf in found]
        outs = [
            writable(array, path) if self._in_place else np.empty_like(array)
            for array, (path, _) in zip(arrays, found, strict=True)
        ]
        spans = [span(out) for out in outs] if self._in_place else []
        owner = self._written.owner(spans)
        if owner is not None:
            raise ValueError(
                f"name={name!r}: its array has memory of that of {owner!r}, which is in use; add it once, or a copy"
            )
        begun = _PendingReduction(tree, [leaf for _, leaf in found], outs)
        paths = [path for path, _ in found]
        if self._passes > 1:
            arrays = self._add_up(name, tree, dict(zip(paths, arrays, strict=True)))
        if self._done == self._passes - 1:
            self._combine(begun, name, paths, arrays, outs)
        self._begun[name] = begun
        self._written.add(name, spans)

    def _add_up(self, name: str, tree: Any, arrays: dict[str, Array]) -> list[Array]:
        """The averages of the passes with the last one; with the others, the gradients as they were given. Shares are
        added, since a sum may leave the range of the dtype; of halves in float32."""
        forms = {path: (array.dtype, array.shape) for path, array in arrays.items()}
        for path, (dtype, _) in forms.items():
            if dtype.kind in "biu":
                raise TypeError(f"{path!r}: gradients of {dtype} cannot be averaged over passes; give floats")
        known, sums = self._sums.get(name, (forms, {}))
        if forms != known:
            path = sorted(path for path, _ in forms.items() ^ known.items())[0]
            raise ValueError(
                f"{path!r}: {_form(forms.get(path))} in this pass, {_form(known.get(path))} in an earlier one; all "
                "passes of a step need gradients of the same forms, zeros where there are none"
            )
        for path, array in arrays.items():
            wide = array.astype(np.float32) if is_small_float(array.dtype) else array
            part = np.asarray(wide * share(self._passes))
            sums[path] = part if path not in sums else np.add(sums[path], part, out=sums[path])
        self._sums[name], self._trees[name] = (forms, sums), tree
        if self._done < self._passes - 1:
            return list(arrays.values())
        for path in sums:
            sums[path] /= rest(self._passes)
        return [sums[path].astype(dtype, copy=False) for path, (dtype, _) in forms.items()]

    def _combine(
        self, begun: _PendingReduction, name: str, paths: list[str], arrays: list[Array], outs: list[Array]
    ) -> None:
        comm = communicator_of(self._process_set)
        label = f"{self._name}.{name}"
        with as_horovod():
            if paths != [name]:  # a bare array has no keys
                given = option_facts(backward_passes_per_step=self._passes)
                begun.agreement = Agreement(comm, label, paths, given=given)
            if not arrays:
                return
            if self._compression is None:
                begun.work = comm.grouped_allreduce_async(arrays, self._op, out=outs, name=label)
                return
            names = [path or "gradient" for path in paths]
            begun.work = self._compression.grouped_allreduce_async(
                comm, arrays, self._op, out=outs, state=self.state, names=names, name=label
            )


def _zero(leaf: Any) -> Any:
    return np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else type(leaf)(0)


def _form(form: _Form | None) -> str:
    return "is missing" if form is None else f"is {form[0]} of shape {form[1]}"


class _PendingReduction:
    """The reduction in flight under one name."""

    def __init__(self, tree: Any, given: Iterable[Any], outs: list[Array]) -> None:
        self._tree, self._given, self._outs = tree, list(given), outs
        self.work: Work[Any] | None = None
        self.agreement: Agreement | None = None

    def wait(self) -> None:
        """Wait until nothing is in flight, then raise the first error."""
        try:
            if self.work is not None:
                self.work.wait()
        finally:
            if self.agreement is not None:
                self.agreement.wait()

    def tree(self) -> Any:
        pairs = zip(self._outs, self._given, strict=True)
        return rebuilt(self._tree, (as_leaf(out, leaf) for out, leaf in pairs))
