"""Matched messages: messages that a probe has found and taken, to be received later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from frontends.mpi.blocks import Block
from frontends.mpi.comm_messages import Messages
from frontends.mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from frontends.mpi.errors import error
from frontends.mpi.handles import SURFACE, Body, Handle
from frontends.mpi.memory import Bytes
from frontends.mpi.operations import Ended, Operation
from frontends.mpi.requests import Request
from frontends.mpi.specs import message
from frontends.mpi.status import Status


class MessageBody(Body):
    """A message that was taken; `operation` receives it into memory of its own."""

    def __init__(self, operation: Operation, decode: Callable[[Bytes], Any] | None = None) -> None:
        self.operation = operation
        self.decode = decode


class _Delivery(Operation):
    """A matched message on its way into the program's buffer, or to its object."""

    def __init__(self, operation: Operation, block: Block | None, decode: Callable[[Bytes], Any] | None) -> None:
        self._operation = operation
        self._block = block
        self._decode = decode
        self._done = False
        self._result: Any = None

    def test(self) -> bool:
        return self._operation.test()

    def wait(self) -> None:
        self._operation.wait()

    def wait_briefly(self, seconds: float) -> None:
        self._operation.wait_briefly(seconds)

    def envelope(self) -> tuple[int, int, int, bool]:
        return self._operation.envelope()

    def free(self) -> None:
        if self._block is not None:
            self.then(self.end_alone)

    def then(self, call: Callable[[], None]) -> None:
        self._operation.then(call)

    def result(self) -> Any:
        if not self._done:
            data: Bytes | None = self._operation.result()
            self._done = True
            if data is not None and self._block is None and self._decode is not None:
                self._result = self._decode(data)
            elif data is not None and self._block is not None:
                if len(data) > self._block.nbytes:
                    text = f"a message of {len(data)} bytes for a buffer of {self._block.nbytes}"
                    raise error("ERR_TRUNCATE", text)
                self._block.write(data)
        return self._result


class Message(Handle):
    """A message that a matched probe has found."""

    __module__ = SURFACE
    null = "MESSAGE_NULL"

    @classmethod
    def Probe(
        cls, comm: Messages, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message:
        found = cls._taken(comm, source, tag, status, wait=True)
        assert found is not None
        return found

    @classmethod
    def Iprobe(
        cls, comm: Messages, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        return cls._taken(comm, source, tag, status, wait=False)

    probe = Probe
    iprobe = Iprobe

    @classmethod
    def _taken(cls, comm: Messages, source: int, tag: int, status: Status | None, *, wait: bool) -> Message | None:
        operation = comm.matched(source, tag, status, wait=wait)
        if operation is None:
            return None
        if isinstance(operation, Ended):
            return cls(MESSAGE_NO_PROC)
        return cls.of(MessageBody(operation, comm._decode))

    def _take(self) -> MessageBody:
        body: MessageBody | None = self._body
        if body is None:
            raise error("ERR_REQUEST", "it is MESSAGE_NULL")
        if not (body.predefined and self is MESSAGE_NO_PROC):
            self._body = None
        return body

    def _delivered(self, block: Block | None) -> Operation:
        body = self._take()
        operation = body.operation
        return operation if isinstance(operation, Ended) else _Delivery(operation, block, body.decode)

    def Irecv(self, buf: Any) -> Request:
        rank = PROC_NULL if self == MESSAGE_NO_PROC else 0
        return Request.begun(self._delivered(message(buf, writable=True, rank=rank)))

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        self.Irecv(buf).wait(status)

    def irecv(self) -> Request:
        return Request.begun(self._delivered(None))

    def recv(self, status: Status | None = None) -> Any:
        return self.irecv().wait(status)


Message.family = Message


def _no_process() -> Message:
    body = MessageBody(Ended((PROC_NULL, ANY_TAG, 0, False)))
    body.predefined = "MESSAGE_NO_PROC"
    return Message.of(body)


MESSAGE_NULL: Final = Message()
MESSAGE_NO_PROC: Final = _no_process()
