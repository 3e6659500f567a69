"""Description of a collective in a graph, and its start when TensorFlow executes the node.

The description is text, an attribute of the node. So a graph can be saved, and be used in another world.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives import Communicator, OpName, ProcessSet, Work, world
from frontends.horovod import (
    Average,
    Fact,
    begin_agreement,
    begin_digests,
    explain,
    full_name,
    names_of,
    numbered,
    reset_numbers,
    root_in,
    rows_for,
    scale_options,
)
from frontends.tensorflow_ops.kernel import Begin, Execution, register

UNKNOWN_SET: Final = -3
"""Horovod's HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET, the answer for a process_set_id that no process set has."""

Start = Callable[[], Work[Any]]
Finish = Callable[[list[Any]], Any]
"""Gets the results. Returns None, or a pair of further operations to start and their Finish."""


class Call(NamedTuple):
    """One operation on tensors.

    kind    a key of the table `_KINDS`
    name    the name by which ranks match the call; None: numbered at each execution; "": the name of the node
    ranks   members of the process set; None for the world
    root    a rank of the world
    number  the process_set_id of a question about a process set; of an allreduce the number of its lossy compression
    memory  the tensors' name in the memory of that
    shapes  shapes of the tensors, if all of them are known when the graph is built
    facts   of an agreement: this rank's facts
    """

    kind: str
    name: str | None = None
    ranks: tuple[int, ...] | None = None
    op: OpName = Average
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    number: int = 0
    memory: str = ""
    shapes: tuple[tuple[int, ...], ...] | None = None
    facts: tuple[Fact, ...] = ()

    @property
    def process_set(self) -> ProcessSet:
        """The process set of `ranks`."""
        return ProcessSet(self.ranks)

    @property
    def communicator(self) -> Communicator:
        """The communicator of the process set. Raises ValueError for a set that was not added, or without this rank."""
        return self.process_set.communicator

    @property
    def scales(self) -> dict[str, Any]:
        """The scale factors as keyword arguments of a Communicator method."""
        return scale_options(self.prescale, self.postscale)

    def text(self) -> str:
        """Return the description as text; `read` is the inverse."""
        return json.dumps(self._asdict(), sort_keys=True)

    @classmethod
    def read(cls, text: str | bytes) -> Call:
        """Return the Call of a description."""
        given = json.loads(text)
        ranks, shapes, facts = given.pop("ranks"), given.pop("shapes"), given.pop("facts", ())
        return cls(
            facts=tuple(Fact(*fact) for fact in facts),
            ranks=None if ranks is None else tuple(ranks),
            shapes=None if shapes is None else tuple(map(tuple, shapes)),
            **given,
        )


def ranks_of(process_set: ProcessSet) -> tuple[int, ...] | None:
    """Return the `ranks` of a Call for a process set. Raises TypeError for another object."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set={process_set!r}: must be a ProcessSet")
    return None if process_set == ProcessSet() else tuple(process_set.ranks or ())


class _PendingWorks:
    """Several operations of the runtime as one execution, which ends when all of them have ended."""

    def __init__(self, execution: Execution, finish: Finish) -> None:
        self._execution = execution
        self._finish = finish
        self._lock = threading.Lock()
        self._works: list[Work[Any]] = []
        self._open = 1
        self._error: BaseException | None = None

    def begin(self, starts: Sequence[Start]) -> None:
        """Start all operations. If one cannot start, the execution still ends only after the others, which use its
        memory."""
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
        error, more = self._error, None
        if error is None:
            try:
                more = self._finish([work.wait() for work in self._works])
            except BaseException as raised:  # noqa: BLE001 - it becomes the execution's
                error = raised
        if more is None:
            self._execution.end(error)
            return
        starts, self._finish = more
        self._works, self._open = [], 1
        self.begin(starts)


def _nothing(_: list[Any]) -> None:
    """Finish function for results that are already in place."""


def _allreduce(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
    comm = call.communicator
    pairs = execution.pairs(call.shapes)
    if len(pairs) == 1:
        ((source, target),) = pairs
        name = full_name(comm, "allreduce", call.name)
        return [lambda: comm.allreduce_async(source, call.op, out=target, name=name, **call.scales)], _nothing
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    name = full_name(comm, "grouped_allreduce", call.name)
    return [lambda: comm.grouped_allreduce_async(sources, call.op, out=targets, name=name, **call.scales)], _nothing


def _compressed(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
    comm, feedback = call.communicator, numbered(call.number)
    pairs = execution.pairs(call.shapes)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    label, names = full_name(comm, "compressed", call.name), names_of(call.memory, len(pairs))
    return [lambda: feedback.begin(comm, sources, targets, call.op, label, names)], _nothing


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
        return lambda: comm.reduce_scatter_async(array, call.op, out=target, name=f"{name}.{index}", **call.scales)

    return [start(index, array) for index, array in enumerate(execution.inputs())], _nothing


def _barrier(call: Call, _: Execution) -> tuple[list[Start], Finish]:
    comm = call.communicator
    return [lambda: comm.barrier_async(name=full_name(comm, "barrier", call.name))], _nothing


def _agree(call: Call, _: Execution) -> tuple[list[Start], Finish]:
    comm, label = call.communicator, call.name or "gradients"
    judge = begin_agreement(comm, label)

    def finish(results: list[Any]) -> Any:
        more = judge(results[0], call.facts)
        return None if more is None else ([lambda: more], fail)

    def fail(results: list[Any]) -> None:
        raise ValueError(explain(results[0]))

    return [lambda: begin_digests(comm, label, call.facts)], finish


def _number(execution: Execution, value: int) -> None:
    execution.output(0, (), np.dtype(np.int32))[...] = value


def _join(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
    def finish(results: list[Any]) -> None:
        reset_numbers(call.communicator)
        _number(execution, results[0])

    return [call.communicator.join_async], finish


def _known(find: Callable[[Call], int]) -> Callable[[Call, Execution], tuple[list[Start], Finish]]:
    """Make the start function of a call that needs no communication."""

    def begin(call: Call, execution: Execution) -> tuple[list[Start], Finish]:
        return [], lambda _: _number(execution, find(call))

    return begin


def _size_of(call: Call) -> int:
    ranks = _ranks_of(call)
    return UNKNOWN_SET if ranks is None else len(ranks)


def _included_in(call: Call) -> int:
    ranks = _ranks_of(call)
    return UNKNOWN_SET if ranks is None else int(world().rank in ranks)


def _ranks_of(call: Call) -> Sequence[int] | None:
    """The ranks of the call's process set, None if there is no such set."""
    comm = world()
    if not call.number:
        return range(comm.size)
    found = comm.process_sets.get(call.number)
    return None if found is None else found[0]


_KINDS: Final = {
    "allreduce": _allreduce,
    "allgather": _allgather,
    "compressed": _compressed,
    "broadcast": _broadcast,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
    "barrier": _barrier,
    "agree": _agree,
    "join": _join,
    "rank": _known(lambda call: call.communicator.rank),
    "size": _known(_size_of),
    "local_rank": _known(lambda call: call.communicator.local_rank),
    "local_size": _known(lambda call: call.communicator.local_size),
    "included": _known(_included_in),
}


def _reader(text: str, node: str) -> Begin:
    """Return the function that starts an execution of the node, for `register`.

    A node's name begins with the names of the functions and loops that were inlined around it. Numbers in them may
    differ between ranks, so they are removed.
    """
    given = Call.read(text)
    if given.name == "":
        given = given._replace(name=re.sub(r"/_\d+(?=/)", "", node))
    begin = _KINDS[given.kind]

    def execute(execution: Execution) -> None:
        call, iteration = given, execution.iteration
        if iteration and call.name is not None:
            call = call._replace(name=f"{call.name}.iteration_{iteration}")
        starts, finish = begin(call, execution)
        _PendingWorks(execution, finish).begin(starts)

    return execute


register(_reader)
