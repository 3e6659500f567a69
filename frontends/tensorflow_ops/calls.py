"""Start of a collective when TensorFlow executes its node. The node's attribute is the text of its Call."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from collectives import Communicator, Work, world
from collectives.arrays import check_op
from frontends import horovod
from frontends.horovod import begin_agreement, begin_digests, explain, full_name, naming, reset_numbers, rows_for
from frontends.tensorflow_ops.kernel import Begin, Execution, register

UNKNOWN_SET: Final = -3
"""Horovod's HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET, the answer for a process_set_id that no process set has."""

Finish = Callable[[list[Any]], Any]
"""Gets the results. Returns None, or a pair of further operations, which have begun, and their Finish."""
Begun = tuple[Iterable[Work[Any]], Finish]


@dataclass(frozen=True)
class Call(horovod.Call):
    """A node's collective.

    kind    a key of the table `_KINDS`
    name    as in horovod.Call; "": the name of the node
    number  also the process_set_id of a question about a process set
    shapes  shapes of the tensors, if all of them are known when the graph is built
    """

    shapes: tuple[tuple[int, ...], ...] | None = None


class _PendingWorks:
    """Several operations of the runtime as one execution, which ends when all of them have ended."""

    def __init__(self, execution: Execution, finish: Finish) -> None:
        self._execution = execution
        self._finish = finish
        self._lock = threading.Lock()
        self._works: list[Work[Any]] = []
        self._open = 1
        self._error: BaseException | None = None

    def begin(self, works: Iterable[Work[Any]]) -> None:
        """Begin all operations. If one cannot begin, the execution still ends only after the others, which use its
        memory."""
        try:
            for work in works:
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
        works, self._finish = more
        self._works, self._open = [], 1
        self.begin(works)


def _nothing(_: list[Any]) -> None:
    """Finish function for results that are already in place."""


def _from_pairs(call: Call, execution: Execution) -> Begun:
    comm, pairs = call.communicator, execution.pairs(call.shapes)
    kind = "grouped_allreduce" if call.kind == "allreduce" and len(pairs) > 1 else call.kind
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    return _named(comm, kind, call, sources, targets), _nothing


def _named(
    comm: Communicator, kind: str, call: Call, sources: Sequence[Any], targets: Sequence[Any]
) -> Iterator[Work[Any]]:
    with naming(comm, kind, call.name) as label:
        yield from call.begin(label, sources, targets)


def _allgather(call: Call, execution: Execution) -> Begun:
    comm = call.communicator
    arrays = execution.inputs()

    def finish(results: list[Any]) -> None:
        for index, array in enumerate(results[0]):
            np.copyto(execution.output(index, array.shape, array.dtype), array)

    with naming(comm, "allgather", call.name) as label:
        return [comm.grouped_allgather_async(arrays, name=label)], finish


def _alltoall(call: Call, execution: Execution) -> Begun:
    comm = call.communicator
    given = execution.inputs()
    array = given[0]
    splits = rows_for(array.shape, given[1].tolist() if len(given) > 1 else None, comm.size)

    def finish(results: list[Any]) -> None:
        came, received = results[0]
        np.copyto(execution.output(0, came.shape, came.dtype), came)
        np.copyto(execution.output(1, received.shape, np.dtype(np.int32)), received, casting="same_kind")

    with naming(comm, "alltoall", call.name) as label:
        return [comm.alltoall_async(array, splits, return_splits=True, name=label)], finish


def _reducescatter(call: Call, execution: Execution) -> Begun:
    comm = call.communicator
    sources, targets = execution.inputs(), []
    for index, array in enumerate(sources):
        check_op(call.op, array.dtype)  # before any of them begins
        if not array.ndim:
            raise ValueError("reducescatter: a tensor must have a first dimension")
        rows, more = divmod(array.shape[0], comm.size)
        targets.append(execution.output(index, (rows + (comm.rank < more), *array.shape[1:]), array.dtype))
    return _named(comm, call.kind, call, sources, targets), _nothing


def _barrier(call: Call, _: Execution) -> Begun:
    comm = call.communicator
    return [comm.barrier_async(name=full_name(comm, "barrier", call.name))], _nothing


def _agree(call: Call, _: Execution) -> Begun:
    comm, label = call.communicator, call.name or "gradients"
    judge = begin_agreement(comm, label)

    def finish(results: list[Any]) -> Any:
        more = judge(results[0], call.facts)
        return None if more is None else ([more], fail)

    def fail(results: list[Any]) -> None:
        raise ValueError(explain(results[0]))

    return [begin_digests(comm, label, call.facts)], finish


def _number(execution: Execution, value: int) -> None:
    execution.output(0, (), np.dtype(np.int32))[...] = value


def _join(call: Call, execution: Execution) -> Begun:
    def finish(results: list[Any]) -> None:
        reset_numbers(call.communicator)
        _number(execution, results[0])

    return [call.communicator.join_async()], finish


def _known(find: Callable[[Call], int]) -> Callable[[Call, Execution], Begun]:
    """Make the start function of a call that needs no communication."""

    def begin(call: Call, execution: Execution) -> Begun:
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
    "allreduce": _from_pairs,
    "allgather": _allgather,
    "compressed": _from_pairs,
    "broadcast": _from_pairs,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
    "barrier": _barrier,
    "agree": _agree,
    "join": _join,
    "rank": _known(lambda call: call.communicator.rank),
    "members": _known(lambda call: call.communicator.size),
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
        given = replace(given, name=re.sub(r"/_\d+(?=/)", "", node))
    begin = _KINDS[given.kind]

    def execute(execution: Execution) -> None:
        call, iteration = given, execution.iteration
        if iteration and call.name is not None:
            call = replace(call, name=f"{call.name}.iteration_{iteration}")
        works, finish = begin(call, execution)
        _PendingWorks(execution, finish).begin(works)

    return execute


register(_reader)
