"""Synchronous collectives on trees of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from collectives import Communicator, OpName, ProcessSet, global_process_set
from collectives.arrays import check_dtype
from collectives.compression import Compressor
from collectives.trees import ARRAYS_AND_NUMBERS, Array, leaves, rebuilt
from frontends.horovod import (
    VALUE,
    Average,
    Fact,
    as_horovod,
    begin_agreement,
    begin_digests,
    broadcast_object,
    check_compressor,
    choose_op,
    communicator_of,
    explain,
    root_in,
)


class Agreement:
    """The agreement of the ranks that their trees have the same leaves, whose results are combined by their order."""

    def __init__(
        self,
        comm: Communicator,
        label: str,
        paths: Sequence[str],
        forms: Iterable[str] = repeat(""),
        given: Sequence[Fact] = (),
    ) -> None:
        """Begin it. Collective; ranks match it by `label`.

        forms   of the leaves, as texts, which must be equal on all ranks
        given   the arguments, of `option_facts`, which must be equal, too
        """
        self._facts = [*given, *(Fact(path, path, form, VALUE) for path, form in zip(paths, forms, strict=False))]
        self._judge = begin_agreement(comm, label)
        self._work = begin_digests(comm, label, self._facts)

    def wait(self) -> None:
        """End it. Raises ValueError on every rank, with the keys, if they differ."""
        more = self._judge(self._work.wait(), self._facts)
        if more is not None:
            raise ValueError(explain(more.wait()))


def allreduce(
    tree: Any,
    op: OpName | None = None,
    *,
    in_place: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Compressor | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a tree over the ranks of a process set, element by element, as one operation; bit-identical on all ranks.

    tree          arrays and numbers, also in dicts, lists and tuples; numbers are returned as numbers
    op            Average by default, Sum, Adasum, Min, Max, Product. Averages of integer arrays are truncated
    in_place      write the results into the arrays themselves, which the returned tree contains
    prescale_factor, postscale_factor   factors before and after the reduction
    compression   one of ronde.compression, for Average and Sum. GradientAverager adds error feedback

    Raises TypeError or ValueError for a bad argument, such as a masked array or a dtype that cannot be communicated;
    ValueError on every rank, with the keys, if their trees have different ones. Raises HorovodInternalError if the
    ranks disagree about shapes, types or op, or a rank is lost; after it only `shutdown` can be called, and the arrays
    are unchanged unless in place.
    """
    op = choose_op(op)
    comm = communicator_of(process_set)
    found = list(leaves(tree))
    arrays = [as_array(leaf, op, path) for path, leaf in found]
    outs = [
        writable(array, path) if in_place else np.empty_like(array)
        for array, (path, _) in zip(arrays, found, strict=True)
    ]
    if compression is not None:
        check_compressor(compression, "compression")
        if (prescale_factor, postscale_factor) != (1.0, 1.0):
            raise ValueError("compression: cannot be combined with prescale_factor and postscale_factor")
    with as_horovod():
        if not isinstance(tree, ARRAYS_AND_NUMBERS):
            Agreement(comm, "allreduce", [path for path, _ in found]).wait()
        if compression is not None:
            compression.grouped_allreduce(comm, arrays, op, out=outs)
        elif arrays:
            comm.grouped_allreduce(arrays, op, out=outs, prescale=prescale_factor, postscale=postscale_factor)
    return rebuilt(tree, (as_leaf(out, leaf) for out, (_, leaf) in zip(outs, found, strict=True)))


def allgather(tree: Any, *, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the arrays of all ranks along the first dimension, which may differ; numbers become arrays.

    Raises as `allreduce`.
    """
    comm = communicator_of(process_set)
    found = list(leaves(tree))
    arrays = [checked(np.asarray(leaf), path) for path, leaf in found]
    with as_horovod():
        if not isinstance(tree, ARRAYS_AND_NUMBERS):
            Agreement(comm, "allgather", [path for path, _ in found]).wait()
        return rebuilt(tree, iter(comm.grouped_allgather(arrays) if arrays else []))


def broadcast_parameters(tree: Any, root_rank: int = 0, *, process_set: ProcessSet = global_process_set) -> Any:
    """Give all ranks the tree of `root_rank`, a rank of the world: arrays in place, numbers in the returned tree.

    Raises ValueError for a read-only array, and on every rank if a leaf is a number on some ranks and an array on
    others, or arrays differ in shape or dtype; otherwise as `allreduce`.
    """
    comm, root = communicator_of(process_set), root_in(process_set, root_rank)
    found = list(leaves(tree))
    arrays = [writable(checked(leaf, path), path) for path, leaf in found if isinstance(leaf, np.ndarray)]
    numbers = [leaf for _, leaf in found if not isinstance(leaf, np.ndarray)]
    with as_horovod():
        if not isinstance(tree, ARRAYS_AND_NUMBERS):
            forms = (f"{x.dtype.name} {x.shape}" if isinstance(x, np.ndarray) else "number" for _, x in found)
            Agreement(comm, "parameters", [path for path, _ in found], forms).wait()
        for array in arrays:
            comm.broadcast(array, root, out=array)
    if numbers:
        numbers = broadcast_object(numbers, root_rank, process_set=process_set)
    of_kind = {True: iter(arrays), False: iter(numbers)}
    return rebuilt(tree, (next(of_kind[isinstance(leaf, np.ndarray)]) for _, leaf in found))


def as_array(leaf: Any, op: OpName, path: str) -> Array:
    """Return the array of a leaf. Numbers to be averaged become floats. Raises TypeError as `checked`."""
    array = checked(np.asarray(leaf), path)
    return array.astype(np.float64) if op == Average and _is_number(leaf) and array.dtype.kind in "iub" else array


def checked(array: Array, path: str) -> Array:
    """Return the array itself. Raises TypeError, naming the leaf, for a dtype that cannot be communicated."""
    check_dtype(array.dtype, _argument(path))
    return array


def as_leaf(array: Array, leaf: Any) -> Any:
    """Return the result for a leaf: an array, or a number if the leaf was one."""
    return array if isinstance(leaf, np.ndarray) else array[()].item() if _is_number(leaf) else array[()]


def writable(array: Array, path: str) -> Array:
    """Return the array itself. Raises ValueError if it is read-only."""
    if not array.flags.writeable:
        raise ValueError(f"{_argument(path)}: is a read-only array, which cannot be changed in place; give a copy")
    return array


def _is_number(leaf: Any) -> bool:
    return not isinstance(leaf, np.ndarray | np.generic)


def _argument(path: str) -> str:
    return f"tree[{path!r}]" if path else "tree"
