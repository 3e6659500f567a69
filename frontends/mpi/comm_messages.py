"""Messages between two ranks, of buffers and of objects: blocking, immediate, persistent, and matched probes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from collectives import RondeError
from frontends.mpi import plain
from frontends.mpi.blocks import Block, Blocks
from frontends.mpi.comm_base import CommBase
from frontends.mpi.constants import ANY_SOURCE, ANY_TAG, PATIENCE, PROC_NULL, TAG_LIMIT
from frontends.mpi.errors import error, failure
from frontends.mpi.info import INFO_NULL, Info
from frontends.mpi.ints import as_int
from frontends.mpi.memory import Bytes, as_memory
from frontends.mpi.objects import check_authenticated
from frontends.mpi.operations import Ended, Envelope, Operation, Receiving, Sending, Several, completed, tags_of
from frontends.mpi.partitions import TAG_LIMIT as PARTITIONED_LIMIT
from frontends.mpi.partitions import PartitionedReceiving, PartitionedSending, slot_tag
from frontends.mpi.peers import Peers
from frontends.mpi.pickles import encoded, pickle
from frontends.mpi.requests import Prequest, Request
from frontends.mpi.specs import divided, message
from frontends.mpi.status import Status

_NO_RANK: Envelope = (PROC_NULL, ANY_TAG, 0, False)
_STANDARD, _BUFFERED, _SYNCHRONOUS = range(3)
"""The modes of a send. The ready mode is the standard one."""
_NO_BYTES: Bytes = np.empty(0, np.uint8)


class Messages(CommBase):
    """The messages of a communicator."""

    # ---- how they begin

    @staticmethod
    def _encode(obj: Any) -> Bytes:
        """The bytes of an object that is sent."""
        return encoded(obj)

    @staticmethod
    def _decode(data: Bytes) -> Any:
        """The object of bytes that have arrived; None for none."""
        return pickle.loads(data.data) if len(data) else None

    def _check(self, rank: int, tag: int, *, receive: bool) -> Peers:
        """The ranks, if a message from or to one of them can have the tag. Raises Exception."""
        peers = self.peers
        peers.check()
        rank, tag = as_int(rank, "rank"), as_int(tag, "tag")
        if not (0 <= tag <= TAG_LIMIT or (receive and tag == ANY_TAG)):
            raise error("ERR_TAG", f"tag={tag}: must be 0 to {TAG_LIMIT}{', or ANY_TAG' if receive else ''}")
        if not (0 <= rank < peers.peer_count or rank == PROC_NULL or (receive and rank == ANY_SOURCE)):
            more = ", ANY_SOURCE" if receive else ""
            raise error("ERR_RANK", f"rank {rank}: must be 0 to {peers.peer_count - 1}{more} or PROC_NULL")
        return peers

    def _send(self, data: Callable[[], Bytes], dest: int, tag: int, mode: int) -> Operation:
        """Begin to send. The data of a buffered message are copied, and nobody waits for it."""
        peers, tag = self._check(dest, tag, receive=False), int(tag)
        if dest == PROC_NULL:
            return Ended(_NO_RANK)
        if mode != _BUFFERED:
            return Sending(peers, data(), dest, tag, synchronous=mode == _SYNCHRONOUS)
        try:
            copy = data().copy().data
            peers.process.keep(peers.channel.send(copy, peers.number(dest), tag, PATIENCE))
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error
        return Ended((ANY_SOURCE, ANY_TAG, 0, False))

    def _receive(self, target: Bytes | None, finish: Callable[[Bytes], Any] | None, source: int, tag: int) -> Operation:
        peers, tag = self._check(source, tag, receive=True), int(tag)
        if source == PROC_NULL:
            return Ended(_NO_RANK)
        return Receiving(peers, target, finish, source, tag)

    def _receive_block(self, block: Block, source: int, tag: int) -> Operation:
        target, scatter = block.target()
        operation = self._receive(target, scatter, source, tag)
        operation.keeps = block
        return operation

    def _send_block(self, buf: Any, dest: int, tag: int, mode: int = _STANDARD) -> Operation:
        block = message(buf, writable=False, rank=dest)
        operation = self._send(block.read, dest, tag, mode)
        operation.keeps = block
        return operation

    def _send_object(self, obj: Any, dest: int, tag: int, mode: int = _STANDARD) -> Operation:
        self._check(dest, tag, receive=False)
        if dest == PROC_NULL:
            return Ended(_NO_RANK)
        data = self._encode(obj)
        operation = self._send(lambda: data, dest, tag, mode)
        operation.keeps = data
        return operation

    def _receive_object(self, buf: Any, source: int, tag: int) -> Operation:
        check_authenticated(self.peers)
        if buf is not None and not isinstance(buf, (int, np.integer)):
            as_memory(buf)  # the pickle does not need the memory that mpi4py asks for
        return self._receive(None, self._decode, source, tag)

    # ---- buffers

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        if not plain.send(self.peers, plain.bytes_of(buf), dest, tag):
            completed(self.peers, self._send_block(buf, dest, tag))

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._send_block(buf, dest, tag, _BUFFERED)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        completed(self.peers, self._send_block(buf, dest, tag, _SYNCHRONOUS))

    Rsend = Send

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        view = plain.bytes_of(buf)
        if view is None or plain.recv(self.peers, view, source, tag, status) is None:
            _ended(self.peers, self._receive_block(message(buf, writable=True, rank=source), source, tag), status)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request.begun(self._send_block(buf, dest, tag))

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request.begun(self._send_block(buf, dest, tag, _BUFFERED))

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request.begun(self._send_block(buf, dest, tag, _SYNCHRONOUS))

    Irsend = Isend

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return Request.begun(self._receive_block(message(buf, writable=True, rank=source), source, tag))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        data, view = plain.bytes_of(sendbuf), plain.bytes_of(recvbuf)
        if view is None or plain.sendrecv(self.peers, data, dest, sendtag, view, source, recvtag, status) is None:
            _ended(self.peers, self._sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag), status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        return Request.begun(self._sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag))

    def _sendrecv(self, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int) -> Operation:
        given = message(sendbuf, writable=False, rank=dest)
        result = message(recvbuf, writable=True, rank=source)
        self._check(dest, sendtag, receive=False)
        data = given.read()
        receiving = self._receive_block(result, source, recvtag)
        return Several([receiving, self._send(lambda: data, dest, sendtag, _STANDARD)])

    def _replace(self, buf: Any, dest: int, sendtag: int, source: int, recvtag: int) -> Operation:
        block = message(buf, writable=True, rank=source if dest == PROC_NULL else dest)
        data = block.read().copy()
        self._check(dest, sendtag, receive=False)
        receiving = self._receive_block(block, source, recvtag)
        return Several([receiving, self._send(lambda: data, dest, sendtag, _STANDARD)])

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        _ended(self.peers, self._replace(buf, dest, sendtag, source, recvtag), status)

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        return Request.begun(self._replace(buf, dest, sendtag, source, recvtag))

    # ---- persistent

    def _prepared(self, buf: Any, dest: int, tag: int, mode: int) -> Prequest:
        block = message(buf, writable=False, rank=dest)
        self._check(dest, tag, receive=False)
        return Prequest.prepared(lambda: self._send(block.read, dest, tag, mode))

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        return self._prepared(buf, dest, tag, _STANDARD)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        return self._prepared(buf, dest, tag, _BUFFERED)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        return self._prepared(buf, dest, tag, _SYNCHRONOUS)

    Rsend_init = Send_init

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        block = message(buf, writable=True, rank=source)
        self._check(source, tag, receive=True)
        return Prequest.prepared(lambda: self._receive_block(block, source, tag))

    def Psend_init(self, buf: Any, partitions: int, dest: int, tag: int = 0, info: Info = INFO_NULL) -> Prequest:
        peers, blocks = self._partitioned(buf, partitions, dest, tag, receive=False)
        if blocks is None:
            return Prequest.prepared(lambda: Ended(_NO_RANK), partitions)
        slot = slot_tag(peers, "send", dest, tag)
        return Prequest.prepared(lambda: PartitionedSending(peers, blocks, dest, slot), partitions)

    def Precv_init(
        self, buf: Any, partitions: int, source: int = ANY_SOURCE, tag: int = ANY_TAG, info: Info = INFO_NULL
    ) -> Prequest:
        peers, blocks = self._partitioned(buf, partitions, source, tag, receive=True)
        if blocks is None:
            return Prequest.prepared(lambda: Ended(_NO_RANK), partitions)
        slot = slot_tag(peers, "receive", source, tag)
        return Prequest.prepared(lambda: PartitionedReceiving(peers, blocks, source, slot, tag), partitions)

    def _partitioned(
        self, buf: Any, partitions: int, rank: int, tag: int, *, receive: bool
    ) -> tuple[Peers, Blocks | None]:
        """The ranks, and the parts of a buffer; None without a rank. Raises Exception."""
        peers = self._check(rank, tag, receive=False)
        if tag > PARTITIONED_LIMIT:
            raise error("ERR_TAG", f"tag={tag}: must be 0 to {PARTITIONED_LIMIT} for a partitioned message")
        if as_int(partitions, "partitions") < 1:
            raise error("ERR_ARG", f"partitions={partitions}: must be 1 or more")
        return peers, None if rank == PROC_NULL else divided(buf, partitions, writable=receive)

    # ---- objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        peers = self._check(dest, tag, receive=False)
        if dest != PROC_NULL:
            data = self._encode(obj)
            if not plain.send(peers, data.data, dest, tag):
                completed(peers, self._send(lambda: data, dest, tag, _STANDARD))

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._send_object(obj, dest, tag, _BUFFERED)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        completed(self.peers, self._send_object(obj, dest, tag, _SYNCHRONOUS))

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return Request.begun(self._send_object(obj, dest, tag))

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return Request.begun(self._send_object(obj, dest, tag, _BUFFERED))

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return Request.begun(self._send_object(obj, dest, tag, _SYNCHRONOUS))

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        if buf is not None:
            warnings.warn("recv: the argument buf is not used", UserWarning, stacklevel=2)
        peers = self.peers
        check_authenticated(peers)
        data = plain.recv(peers, None, source, tag, status)
        if data is not None:
            return self._decode(np.frombuffer(data, np.uint8))
        return _ended(self.peers, self._receive_object(buf, source, tag), status)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return Request.begun(self._receive_object(buf, source, tag))

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        peers = self._check(dest, sendtag, receive=False)
        data = _NO_BYTES if dest == PROC_NULL else self._encode(sendobj)
        if recvbuf is None:
            check_authenticated(peers)
            found = plain.sendrecv(peers, data.data, dest, sendtag, None, source, recvtag, status)
            if found is not None:
                return self._decode(np.frombuffer(found, np.uint8))
        receiving = self._receive_object(recvbuf, source, recvtag)
        return _ended(self.peers, Several([receiving, self._send(lambda: data, dest, sendtag, _STANDARD)]), status)

    # ---- probes

    def _probe(self, source: int, tag: int, status: Status | None, *, wait: bool) -> bool:
        self._check(source, tag, receive=True)
        if source == PROC_NULL:
            if status is not None:
                status.fill(*_NO_RANK)
            return True
        peers = self.peers
        number = None if source == ANY_SOURCE else peers.number(source)
        try:
            arrival = peers.channel.probe(number, tags_of(tag), PATIENCE if wait else None)
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error
        if arrival is None:
            return False
        if status is not None:
            status.fill(peers.rank_of(arrival.source), arrival.tag, arrival.nbytes)
        return True

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        return self._probe(source, tag, status, wait=True)

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        return self._probe(source, tag, status, wait=False)

    probe = Probe
    iprobe = Iprobe

    def matched(self, source: int, tag: int, status: Status | None, *, wait: bool) -> Operation | None:
        """The receive of the message that a probe finds, which no other receive can take; None without one."""
        found = Status() if status is None else status
        while True:
            if not self._probe(source, tag, found, wait=wait):
                if wait:
                    continue
                return None
            if found.source == PROC_NULL:
                return Ended(_NO_RANK)
            receiving = Receiving(self.peers, None, _as_they_are, found.source, found.tag)
            receiving.cancel()  # it does nothing to a receive that has matched
            rank, number, nbytes, cancelled = receiving.envelope()
            if not cancelled:
                found.fill(rank, number, nbytes)
                return receiving
            # another thread has received the message


def _as_they_are(data: Bytes) -> Bytes:
    return data


def _ended(peers: Peers, operation: Operation, status: Status | None) -> Any:
    """The result of an operation, which is waited for."""
    completed(peers, operation)
    try:
        return operation.result()
    finally:
        if status is not None:
            status.fill(*operation.envelope())
