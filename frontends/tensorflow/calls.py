"""What an operation in a graph asks for, and how that is begun when TensorFlow executes it.

The description is text in the graph, so that a graph outlives the world that it was made in, and may be saved.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives import Communicator, Work
from collectives.process_sets import ProcessSet
from frontends.horovod.names import Average, full_name, number_anew, root_in
from frontends.horovod.splits import rows_for
from frontends.tensorflow.kernel import Begin, Execution, register

Start = Callable[[], Work[Any]]
Finish = Callable[[list[Any]], None]


class Call(NamedTuple):
    """One operation on tensors.

    kind    a key of the table at the end
    name    by which the ranks find each other's; None: numbered when it is executed; "": that of the node
    ranks   of the process set; None: all
    root    a rank of the world
    shapes  of the tensors, where all of them are known before the graph is run
    """

    kind: str
    name: str | None = None
    ranks: tuple[int, ...] | None = None
    op: str = Average
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    shapes: tuple[tuple[int, ...], ...] | None = None

    @property
    def process_set(self) -> ProcessSet:
        """Of its ranks."""
        return ProcessSet(self.ranks)

    @property
    def communicator(self) -> Communicator:
        """Of its process set. Raises ValueError for a set that was not added, or without this rank."""
        return self.process_set.communicator

    def text(self) -> str:
        """What `read` makes a Call of."""
        return json.dumps(self._asdict(), sort_keys=True)

    @classmethod
    def read(cls, text: str | bytes) -> Call:
        """The Call that was described."""
        given = json.loads(text)
        ranks, shapes = given.pop("ranks"), given.pop("shapes")
        return cls(
            ranks=None if ranks is None else tuple(ranks),
            shapes=None if shapes is None else tuple(map(tuple, shapes)),
            **given,
        )


def ranks_of(process_set: ProcessSet) -> tuple[int, ...] | None:
    """What a Call says of a process set. Raises TypeError for something else."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set={process_set!r}: must be a ProcessSet")
    return None if process_set == ProcessSet() else tuple(process_set.ranks or ())


class _Begun:
    """Several operations of the runtime as one execution, which ends when all are over."""

    def __init__(self, execution: Execution, finish: Finish) -> None:
        self._execution = execution
        self._finish = finish
        self._lock = threading.Lock()
        self._works: list[Work[Any]] = []
        self._open = 1
        self._error: BaseException | None = None

    def begin(self, starts: Sequence[Start]) -> None:
        """What fails to begin does not end the execution while the others use its memory."""
        try:
            for start in starts:
                work = start()
                self._works.append(work)
                with self._lock:
                    self._open += 1
                work.add_done_callback(self._one_is_over)
        except Exception as error:  # noqa: BLE001 - it becomes the execution's
            self._error = error
        self._one_is_over()

    def _one_is_over(self, _: object = None) -> None:
        with self._lock:
            self._open -= 1
            if self._open:
                return
        error = self._error
        if error is None:
            try:
                self._finish([work.wait() for work in self._works])
            except BaseException as raised:  # noqa: BLE001 - it becomes the execution's
                error = raised
        self._execution.end(error)


def _scales(call: Call) -> dict[str, float | None]:
    return {
        "prescale": None if call.prescale == 1.0 else call.prescale,
        "postscale": None if call.postscale == 1.0 else call.postscale,
    }


def _nothing(_: list[Any]) -> None:
    """The results are where they belong."""


def _allreduce(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
    comm = call.communicator
    pairs = execution.pairs(call.shapes)
    if len(pairs) == 1:
        ((source, target),) = pairs
        name = full_name(comm, "allreduce", call.name)
        return [lambda: comm.allreduce_async(source, call.op, out=target, name=name, **_scales(call))], _nothing
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    name = full_name(comm, "grouped_allreduce", call.name)
    return [lambda: comm.grouped_allreduce_async(sources, call.op, out=targets, name=name, **_scales(call))], _nothing


def _allgather(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
    comm = call.communicator
    arrays, name = execution.inputs(), full_name(comm, "allgather", call.name)

    def finish(results: list[Any]) -> None:
        for index, array in enumerate(results[0]):
            np.copyto(execution.output(index, array.shape, array.dtype), array)

    return [lambda: comm.grouped_allgather_async(arrays, name=name)], finish


def _broadcast(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
    comm = call.communicator
    root, name = root_in(call.process_set, call.root), full_name(comm, "broadcast", call.name)

    def start(index: int, source: Any, target: Any) -> Start:
        return lambda: comm.broadcast_async(source, root, out=target, name=f"{name}.{index}")

    return [start(index, *pair) for index, pair in enumerate(execution.pairs(call.shapes))], _nothing


def _alltoall(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
    comm = call.communicator
    given, name = execution.inputs(), full_name(comm, "alltoall", call.name)
    array = given[0]
    splits = rows_for(array.shape, given[1].tolist() if len(given) > 1 else None, comm.size)

    def finish(results: list[Any]) -> None:
        came, received = results[0]
        np.copyto(execution.output(0, came.shape, came.dtype), came)
        np.copyto(execution.output(1, received.shape, np.dtype(np.int32)), received, casting="same_kind")

    return [lambda: comm.alltoall_async(array, splits, return_splits=True, name=name)], finish


def _reducescatter(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
    comm = call.communicator
    name = full_name(comm, "reducescatter", call.name)

    def start(index: int, array: Any) -> Start:
        if not array.ndim:
            raise ValueError("reducescatter: a tensor must have a first dimension")
        rows, more = divmod(array.shape[0], comm.size)
        target = execution.output(index, (rows + (comm.rank < more), *array.shape[1:]), array.dtype)
        return lambda: comm.reduce_scatter_async(array, call.op, out=target, name=f"{name}.{index}", **_scales(call))

    return [start(index, array) for index, array in enumerate(execution.inputs())], _nothing


def _barrier(call: Call, _: Execution) -> tuple[list[Start], Finish]:
    comm = call.communicator
    return [lambda: comm.barrier_async(name=full_name(comm, "barrier", call.name))], _nothing


def _number(execution: Execution, value: int) -> None:
    execution.output(0, (), np.dtype(np.int32))[...] = value


def _join(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
    def finish(results: list[Any]) -> None:
        number_anew(call.communicator)
        _number(execution, results[0])

    return [call.communicator.join_async], finish


def _known(find: Callable[[Call], int]) -> Callable[[Call, Execution], tuple[list[Start], Finish]]:
    """What a rank knows without the others."""

    def begin(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
        return [], lambda _: _number(execution, find(call))

    return begin


_KINDS: Final = {
    "allreduce": _allreduce,
    "allgather": _allgather,
    "broadcast": _broadcast,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
    "barrier": _barrier,
    "join": _join,
    "rank": _known(lambda call: call.communicator.rank),
    "size": _known(lambda call: len(call.process_set.ranks or ())),
    "local_rank": _known(lambda call: call.communicator.local_rank),
    "local_size": _known(lambda call: call.communicator.local_size),
    "included": _known(lambda call: bool(call.process_set.included())),
}


def _reader(text: str, node: str) -> Begin:
    """A node's name begins with those of the functions and loops that it was found in when these were put in their
    places. Numbers that were given to them then may differ from rank to rank, and do not count."""
    given = Call.read(text)
    if given.name == "":
        given = given._replace(name=re.sub(r"/_\d+(?=/)", "", node))
    begin = _KINDS[given.kind]

    def execute(execution: Execution) -> None:
        call, iteration = given, execution.iteration
        if iteration and call.name is not None:
            call = call._replace(name=f"{call.name}.iteration_{iteration}")
        starts, finish = begin(call, execution)
        _Begun(execution, finish).begin(starts)

    return execute


register(_reader)
