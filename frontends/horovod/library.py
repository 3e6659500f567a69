"""Horovod's operations on the tensors of a library. Each begins at once and returns its handle.

Ranks match calls by name. Calls without a name are numbered, with one count for each kind and process set, so all ranks
must make them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from collectives import Communicator, OpName, ProcessSet
from collectives.arrays import check_op
from frontends.horovod.arguments import listed
from frontends.horovod.errors import as_horovod
from frontends.horovod.feedback import ErrorFeedback
from frontends.horovod.handles import Handle, Handles
from frontends.horovod.names import communicator_of, naming, root_in
from frontends.horovod.ops import check_linear, scale_options
from frontends.horovod.splits import rows_for

__all__ = ["ARRAYS", "Library", "Reduction"]


class Reduction(NamedTuple):
    """The arguments of a reduction, under Horovod's names."""

    op: OpName
    name: str | None
    prescale_factor: float
    postscale_factor: float
    process_set: ProcessSet

    @property
    def scales(self) -> dict[str, Any]:
        """The scale factors as keyword arguments of a Communicator method."""
        return scale_options(self.prescale_factor, self.postscale_factor)


@dataclass(frozen=True)
class Library:
    """The ways of a library from tensors to arrays and back, and the operations on them.

    as_array    (tensor, name of the argument): an array that shares the tensor's memory; TypeError for another object
    writable    the same for a tensor to be written to
    as_tensor   (array, tensor): a result as a tensor, of the kind of that tensor
    empty_like  (tensor, name of the argument): a tensor for a result of the same shape and type

    An operation writes into `output`, which may be its tensor; None means a new one. Raises ValueError or TypeError for
    a bad argument or a name that is in flight; HorovodInternalError after a failure.
    """

    as_array: Callable[[Any, str], Any]
    writable: Callable[[Any, str], Any]
    as_tensor: Callable[[Any, Any], Any]
    empty_like: Callable[[Any, str], Any]

    def obstacle(self, tensor: Any) -> str:
        """Return the reason why a tensor cannot be broadcast, empty if it can."""
        try:
            self.writable(tensor, "")
        except (TypeError, ValueError) as error:
            return str(error).removeprefix(": ")
        return ""

    def allreduce(self, tensor: Any, output: Any, how: Reduction) -> Handle:
        """Begin to reduce a tensor."""
        comm = communicator_of(how.process_set)
        output, source, target = self._arrays(tensor, output)

        def begin(label: str) -> Any:
            return comm.allreduce_async(source, how.op, out=target, name=label, **how.scales)

        return _begun(comm, "allreduce", how.name, begin, lambda _: output)

    def grouped_allreduce(self, tensors: Sequence[Any], outputs: Sequence[Any] | None, how: Reduction) -> Handle:
        """Begin to reduce several tensors as one operation; its result is a list."""
        comm = communicator_of(how.process_set)
        results, sources, targets = self._lists(tensors, outputs)

        def begin(label: str) -> Any:
            return comm.grouped_allreduce_async(sources, how.op, out=targets, name=label, **how.scales)

        return _begun(comm, "grouped_allreduce", how.name, begin, lambda _: results)

    def compressed(
        self,
        tensors: Sequence[Any],
        outputs: Sequence[Any] | None,
        how: Reduction,
        memory: Sequence[str],
        feedback: ErrorFeedback,
    ) -> Handle:
        """`grouped_allreduce` with a lossy compression, for tensors in the host's memory, without scale factors.

        memory  names of the tensors in the memory of the compression
        """
        comm = communicator_of(how.process_set)
        results, sources, targets = self._lists(tensors, outputs)

        def begin(label: str) -> Any:
            return feedback.begin(comm, sources, targets, how.op, label, memory)

        return _begun(comm, "compressed", how.name, begin, lambda _: results)

    def allgather(self, tensor: Any, name: str | None, process_set: ProcessSet) -> Handle:
        """Begin to concatenate the tensors of all ranks along the first dimension, which may differ."""
        comm = communicator_of(process_set)
        source = self.as_array(tensor, "tensor")

        def begin(label: str) -> Any:
            return comm.allgather_async(source, name=label)

        return _begun(comm, "allgather", name, begin, lambda array: self.as_tensor(array, tensor))

    def grouped_allgather(
        self, tensors: Sequence[Any], name: str | None, process_set: ProcessSet, argument: str = "tensors[{}]"
    ) -> Handle:
        """`allgather` of several tensors as one operation; its result is a list. `argument` names each by its
        place."""
        comm, given = communicator_of(process_set), listed(tensors)
        sources = [self.as_array(tensor, argument.format(index)) for index, tensor in enumerate(given)]

        def begin(label: str) -> Any:
            return comm.grouped_allgather_async(sources, name=label)

        return _begun(comm, "grouped_allgather", name, begin, lambda arrays: list(map(self.as_tensor, arrays, given)))

    def broadcast(self, tensor: Any, output: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Handle:
        """Begin to send the tensor of `root_rank`, a rank of the world, to all ranks of the set."""
        comm, root = communicator_of(process_set), root_in(process_set, root_rank)
        output, source, target = self._arrays(tensor, output)

        def begin(label: str) -> Any:
            return comm.broadcast_async(source, root, out=target, name=label)

        return _begun(comm, "broadcast", name, begin, lambda _: output)

    def alltoall(
        self,
        tensor: Any,
        splits: Sequence[int] | None,
        name: str | None,
        process_set: ProcessSet,
        finish: Callable[[Any, Any], Any],
    ) -> Handle:
        """Begin to send parts of a tensor, cut along the first dimension, to all ranks.

        splits   rows for each rank; equal parts if None
        finish   makes the result of the received tensor and an array with the number of rows from each rank
        """
        comm = communicator_of(process_set)
        source = self.as_array(tensor, "tensor")
        rows = rows_for(source.shape, splits, comm.size)  # always given: ranks may have different numbers of rows

        def begin(label: str) -> Any:
            return comm.alltoall_async(source, rows, return_splits=True, name=label)

        def end(both: Any) -> Any:
            return finish(self.as_tensor(both[0], tensor), np.asarray(both[1]))

        return _begun(comm, "alltoall", name, begin, end)

    def reducescatter(self, tensor: Any, how: Reduction, argument: str = "tensor") -> Handle:
        """Begin to reduce a tensor and give each rank its rows of the result. Average and Sum only."""
        comm = communicator_of(how.process_set)
        source = self.as_array(tensor, argument)
        check_linear(how.op, "reducescatter")

        def begin(label: str) -> Any:
            return comm.reduce_scatter_async(source, how.op, name=label, **how.scales)

        return _begun(comm, "reducescatter", how.name, begin, lambda array: self.as_tensor(array, tensor))

    def grouped_reducescatter(self, tensors: Sequence[Any], how: Reduction, argument: str = "tensors[{}]") -> Handles:
        """`reducescatter` of several tensors; the result is a list. `argument` names each by its place."""
        comm = communicator_of(how.process_set)
        named = {argument.format(index): tensor for index, tensor in enumerate(listed(tensors))}
        check_linear(how.op, "reducescatter")
        for place, tensor in named.items():  # before any of them begins
            source = self.as_array(tensor, place)
            check_op(how.op, source.dtype)
            if not source.ndim:
                raise ValueError(f"{place}: has no axis to split; it must have at least one dimension")
        with naming(comm, "grouped_reducescatter", how.name) as label:
            return Handles(
                [
                    self.reducescatter(tensor, how._replace(name=f"{label}.{index}"), place)
                    for index, (place, tensor) in enumerate(named.items())
                ]
            )

    def _arrays(self, tensor: Any, output: Any, name: str = "tensor") -> tuple[Any, Any, Any]:
        """Return the output, the array of the tensor, and that of the output; the same if the output is the tensor."""
        if output is None:
            output = self.empty_like(tensor, name)
        target = self.writable(output, name)
        return output, target if output is tensor else self.as_array(tensor, name), target

    def _lists(self, tensors: Sequence[Any], outputs: Sequence[Any] | None) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the outputs, the arrays of the tensors, and those of the outputs."""
        given = listed(tensors)
        pairs = zip(given, [None] * len(given) if outputs is None else outputs, strict=True)
        found = [self._arrays(*pair, f"tensors[{index}]") for index, pair in enumerate(pairs)]
        return [one for one, _, _ in found], [source for _, source, _ in found], [target for _, _, target in found]


def _begun(
    comm: Communicator, kind: str, name: str | None, begin: Callable[[str], Any], finish: Callable[[Any], Any]
) -> Handle:
    with as_horovod(), naming(comm, kind, name) as label:
        return Handle(begin(label), finish)


ARRAYS: Final = Library(
    as_array=lambda array, _: array,
    writable=lambda array, _: array,
    as_tensor=lambda array, _: array,
    empty_like=lambda array, _: np.empty_like(array),
)
"""NumPy's arrays."""
