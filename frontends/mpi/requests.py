"""Requests: handles of operations in flight, persistent operations, and operations that the program ends itself."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

from frontends.mpi.constants import ANY_SOURCE, ANY_TAG, UNDEFINED
from frontends.mpi.errors import Exception as MPIException
from frontends.mpi.errors import Failure, error
from frontends.mpi.handles import SURFACE, Body, Handle
from frontends.mpi.ints import as_int, as_ints
from frontends.mpi.operations import Ended, Operation, Prompted, Receiving
from frontends.mpi.partitions import PartitionedSending
from frontends.mpi.processes import current
from frontends.mpi.status import Status

_FIRST_SLICE: Final = 20e-6
_LAST_SLICE: Final = 1e-3


class RequestBody(Body):
    """An operation in flight, or one that can be started.

    operation   None if there is none
    start       begins the operation of a persistent request; None for others
    partitions  number of parts of a partitioned message; 0 for others
    """

    def __init__(
        self, operation: Operation | None, start: Callable[[], Operation] | None = None, partitions: int = 0
    ) -> None:
        self.operation = operation
        self.start = start
        self.partitions = partitions


class Request(Handle):
    """A handle of an operation in flight."""

    __module__ = SURFACE
    null = "REQUEST_NULL"

    @classmethod
    def begun(cls, operation: Operation) -> Request:
        """The request of an operation in flight."""
        return cls.of(RequestBody(operation))

    @property
    def _operation(self) -> Operation | None:
        body: RequestBody | None = self._body
        return None if body is None else body.operation

    def _end(self, status: Status | None) -> Any:
        """The result of an operation that has ended; the request is inactive then, or null."""
        operation, body = self._operation, self._body
        if operation is None:
            if status is not None:
                status.empty()
            return None
        body.operation = None
        if body.start is None:
            self._body = None
        try:
            return operation.result()
        finally:
            if status is not None:
                status.fill(*operation.envelope())

    # ---- one request

    def _wait(self, status: Status | None) -> Any:
        if self._operation is not None:
            self._operation.wait()
        return self._end(status)

    def _test(self, status: Status | None) -> tuple[bool, Any]:
        if self._operation is not None and not self._operation.test():
            return False, None
        return True, self._end(status)

    def wait(self, status: Status | None = None) -> Any:
        return self._wait(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        return self._test(status)

    def get_status(self, status: Status | None = None) -> bool:
        operation = self._operation
        if operation is not None and not operation.test():
            return False
        if status is not None:
            status.fill(*(Ended((ANY_SOURCE, ANY_TAG, 0, False)) if operation is None else operation).envelope())
        return True

    def Wait(self, status: Status | None = None) -> bool:
        self._wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        return self._test(status)[0]

    Get_status = get_status

    def Cancel(self) -> None:
        if self._body is None:
            raise error("ERR_REQUEST", "it is REQUEST_NULL")
        if self._operation is not None:
            self._operation.cancel()

    cancel = Cancel

    def Free(self) -> None:
        if self._body is None:
            raise error("ERR_REQUEST", "it is REQUEST_NULL")
        self._release()
        self._body = None

    def _release(self) -> None:
        """An operation in flight goes on."""
        operation = self._operation
        if operation is not None:
            operation.free()

    # ---- several requests

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        active = [number for number, request in enumerate(requests) if request._operation is not None]
        if not active:
            _empty(status)
            return UNDEFINED, None
        number = _first_ended(requests, active)
        return number, requests[number]._end(status)

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        number, flag = cls.get_status_any(requests, None)
        if number == UNDEFINED:
            if flag:
                _empty(status)
            return UNDEFINED, flag, None
        return number, True, requests[number]._end(status)

    @classmethod
    def get_status_any(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        active = [number for number, request in enumerate(requests) if request._operation is not None]
        for number in active:
            if requests[number].get_status(status):
                return number, True
        if not active:
            _empty(status)
        return UNDEFINED, not active

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        for request in requests:
            if request._operation is not None:
                request._operation.wait()
        return _end_all(requests, statuses)

    @classmethod
    def testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> tuple[bool, Any]:
        if not cls.get_status_all(requests):
            return False, None
        return True, _end_all(requests, statuses)

    @classmethod
    def get_status_all(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        found = [Status() for _ in requests]
        if not all(request.get_status(status) for request, status in zip(requests, found, strict=True)):
            return False
        _give(statuses, found)
        return True

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        active = [number for number, request in enumerate(requests) if request._operation is not None]
        if not active:
            return None, None
        _first_ended(requests, active)
        return cls.testsome(requests, statuses)

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        ended = cls.get_status_some(requests)
        if ended is None:
            return None, None
        return ended, _end_all([requests[number] for number in ended], statuses)

    @classmethod
    def get_status_some(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        active = [number for number, request in enumerate(requests) if request._operation is not None]
        if not active:
            return None
        found: list[Status] = []
        ended = []
        for number in active:
            status = Status()
            if requests[number].get_status(status):
                ended.append(number)
                found.append(status)
        _give(statuses, found)
        return ended

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        return cls.waitany(requests, status)[0]

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        return cls.testany(requests, status)[:2]

    Get_status_any = get_status_any

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        return cls.testall(requests, statuses)[0]

    Get_status_all = get_status_all

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        return cls.testsome(requests, statuses)[0]

    Get_status_some = get_status_some


Request.family = Request


def _empty(status: Status | None) -> None:
    if status is not None:
        status.empty()


def _give(statuses: list[Status] | None, found: list[Status]) -> None:
    """Copy statuses into the program's list, which is made longer if it is too short."""
    if statuses is None:
        return
    for number, status in enumerate(found):
        if number < len(statuses):
            statuses[number]._words[:] = status._words
        elif isinstance(statuses, list):
            statuses.append(status)


def _end_all(requests: Sequence[Request], statuses: list[Status] | None) -> list[Any]:
    found = [Status() for _ in requests]
    results, failures = [], []
    for request, status in zip(requests, found, strict=True):
        try:
            results.append(request._end(status))
        except MPIException as failure:
            status.error = failure.Get_error_code()
            failures.append(failure)
    _give(statuses, found)
    if not failures:
        return results
    if statuses is None or isinstance(failures[0], Failure):
        raise failures[0]
    raise error("ERR_IN_STATUS", f"{len(failures)} of {len(found)} operations: {failures[0]}") from failures[0]


def _first_ended(requests: Sequence[Request], active: list[int]) -> int:
    """The first of the active requests that has ended; waits until there is one."""
    pause = _FIRST_SLICE
    while True:
        for number in active:
            operation = requests[number]._operation
            if operation is None or operation.test():
                return number
        operation = requests[active[0]]._operation
        if operation is not None:
            operation.wait_briefly(pause)
        pause = min(2 * pause, _LAST_SLICE)


class Prequest(Request):
    """A handle of an operation that can be started again and again."""

    __module__ = SURFACE

    @classmethod
    def _admits(cls, body: RequestBody) -> bool:
        return body.start is not None

    @classmethod
    def prepared(cls, start: Callable[[], Operation], partitions: int = 0) -> Prequest:
        """The request of an operation that `start` begins."""
        return cls.of(RequestBody(None, start, partitions))

    def Start(self) -> None:
        body: RequestBody | None = self._body
        if body is None or body.start is None or body.operation is not None:
            raise error("ERR_REQUEST", "it is not persistent, or is active")
        body.operation = body.start()

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        for request in requests:
            request.Start()

    def Pready(self, partition: int) -> None:
        self.Pready_list([partition])

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        self.Pready_list(range(as_int(partition_low, "partition_low"), as_int(partition_high, "partition_high") + 1))

    def Pready_list(self, partitions: Sequence[int]) -> None:
        numbers = self._checked(as_ints(partitions, "partitions"))
        operation = self._operation
        if operation is None or isinstance(operation, Receiving):
            raise error("ERR_REQUEST", "it is no partitioned send that has started")
        if isinstance(operation, PartitionedSending):  # with PROC_NULL there is nothing to send
            operation.ready(numbers)

    def Parrived(self, partition: int) -> bool:
        self._checked([as_int(partition, "partition")])
        operation = self._operation
        if isinstance(operation, PartitionedSending):
            raise error("ERR_REQUEST", "it is no partitioned receive")
        return operation is None or operation.test()

    def _checked(self, partitions: list[int]) -> list[int]:
        """Numbers of parts. Raises Exception."""
        count = 0 if self._body is None else self._body.partitions
        if not count:
            raise error("ERR_REQUEST", "it is no request of a partitioned message")
        for partition in partitions:
            if not 0 <= partition < count:
                raise error("ERR_ARG", f"partition={partition}: must be 0 to {count - 1}")
        return partitions


class _Generalized(Prompted):
    """An operation that the program ends by `Complete`."""

    def __init__(self, query: Any, free: Any, cancel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(current())
        self._query, self._free, self._cancel = query, free, cancel
        self._arguments, self._options = args, kwargs
        self._object: Any = None
        self._status = Status()
        self._unwanted = False
        """True once the program has freed its request."""
        self.is_gone = False
        """True once it has ended, and nobody will ask for it again."""

    def end(self, obj: Any) -> None:
        """The program has ended it, with this result."""
        self._object = obj
        self._prompt.set()
        if self._unwanted:
            self._go()

    def envelope(self) -> tuple[int, int, int, bool]:
        if not self.is_gone:
            self._ask()
        status = self._status
        return status.source, status.tag, status.count, status.cancelled

    def _ask(self) -> None:
        if self._query is not None:
            _called(self._query, self._status, *self._arguments, **self._options)

    def result(self) -> Any:
        try:
            self._ask()
        finally:
            self._go()
        return self._object

    def cancel(self) -> None:
        if self._cancel is not None:
            _called(self._cancel, self._prompt.is_set(), *self._arguments, **self._options)

    def free(self) -> None:
        self._unwanted = True
        if self._prompt.is_set():
            self._go()

    def _go(self) -> None:
        """Tell the program that the request is gone."""
        free, self._free = self._free, None
        self.is_gone = True
        if free is not None:
            _called(free, *self._arguments, **self._options)


def _called(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Call a function of the program. Raises MPI's Exception after it has shown that of the function."""
    try:
        function(*arguments, **options)
    except BaseException as cause:
        traceback.print_exception(cause)
        if isinstance(cause, MPIException):
            raise
        raise error("ERR_OTHER", f"a function of a request raised {cause!r}") from cause


class Grequest(Request):
    """A handle of an operation that the program ends by `Complete`."""

    __module__ = SURFACE
    _generalized: _Generalized | None = None
    """The operation, also after `Free`."""

    @classmethod
    def _admits(cls, body: RequestBody) -> bool:
        return isinstance(body.operation, _Generalized)

    @classmethod
    def Start(
        cls,
        query_fn: Callable[..., None] | None = None,
        free_fn: Callable[..., None] | None = None,
        cancel_fn: Callable[..., None] | None = None,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Grequest:
        operation = _Generalized(query_fn, free_fn, cancel_fn, tuple(args or ()), dict(kwargs or {}))
        made = cls.of(RequestBody(operation))
        made._generalized = operation
        return made

    @staticmethod
    def _copy(made: Any, other: Any) -> None:
        made._body = other._body
        made._generalized = getattr(other, "_generalized", None) or other._operation

    def Complete(self) -> None:
        self.complete()

    def complete(self, obj: Any = None) -> None:
        operation = self._generalized
        if operation is None or operation.is_gone:
            raise error("ERR_REQUEST", "it is no generalized request, or has ended")
        operation.end(obj)


REQUEST_NULL: Final = Request()
