"""Lanes: connections after their handshake. Frames of data go one way; only GOODBYE and ABORT may come back."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections import deque
from typing import ClassVar, Final, Protocol

from transports import tls
from transports.errors import RondeError, TransportError
from transports.matching import Landing
from transports.tcp import sockets
from transports.tcp.frames import ABORT, DATA, GOODBYE, GOODBYE_FRAME, HEADER, MAX_CONTROL_BYTES, parse_abort
from transports.tcp.loop import READ, WRITE, Loop
from transports.tcp.silence import Silence

_IN_BUFFER: Final = 1 << 14
_BACK_BUFFER: Final = 1 << 9
_READS_AT_ONCE: Final = 16
_BUFFERS_AT_ONCE: Final = 64
_JOIN_BELOW: Final = 1 << 12
_HEADER_BYTES: Final = HEADER.size
_unpack_from: Final = HEADER.unpack_from


class Host(Protocol):
    """What a lane tells its transport."""

    def deliver(self, peer: int, tag: int, check: int, payload: memoryview) -> bool:
        """A whole frame has come; False if no receive was posted that it fits, and `arrive` must be asked."""

    def arrive(self, peer: int, tag: int, check: int, length: int) -> Landing | None:
        """A header of data has come: where its payload goes, or None to stop reading until `Incoming.resume`."""

    def told(self, cause: RondeError) -> None:
        """A rank has aborted."""

    def said_goodbye(self, lane: Lane) -> None:
        """The other end closes (incoming lane), or has read everything or closes (outgoing lane)."""

    def lost(self, lane: Lane, error: Exception) -> None:
        """The connection broke, or what came makes no sense. The lane is closed."""


class Sending(Protocol):
    """A send in flight."""

    done: bool


class _Control:
    """The payload of a control frame while it arrives."""

    def __init__(self, lane: Lane, kind: int, length: int) -> None:
        self._lane = lane
        self._kind = kind
        self._payload = bytearray(length)
        self.view = memoryview(self._payload)

    def finish(self) -> None:
        self._lane.control(self._kind, self._payload)


class Lane:
    """One connection: its socket, and the reader of what comes on it."""

    _data: ClassVar[int | None] = None
    """The kind of frames that go to the mailbox; all others are control frames."""

    def __init__(self, host: Host, loop: Loop, peer: int, buffer_bytes: int) -> None:
        self.peer = peer
        self.closed = False
        self.silence = Silence()
        self._host = host
        self._loop = loop
        self._sock: socket.socket | None = None
        self._buffer = bytearray(buffer_bytes)
        self._window = memoryview(self._buffer)
        self._end = 0
        self._landing: Landing | _Control | None = None
        self._rest = memoryview(b"")
        self._held = False

    @property
    def sock(self) -> socket.socket | None:
        """The connected socket, None before there is one and after the lane was released."""
        return self._sock

    def fileno(self) -> int:
        assert self._sock is not None
        return self._sock.fileno()

    def attach(self, sock: socket.socket) -> None:
        """The handshake is done: frames may go and come."""
        self._sock = sock
        self._loop.watch(self, READ)
        self._look_again()

    def ready(self, events: int) -> None:
        if events & READ:
            self.pump()

    def pump(self) -> bool:
        """Read what has come and deal with it; True if anything had."""
        sock, read = self._sock, False
        if sock is None or self._held:
            return False
        try:
            for _ in range(_READS_AT_ONCE):
                if self.closed:
                    break
                if self._landing is not None:
                    into = self._rest
                else:
                    into = self._window[self._end :] if self._end else self._window
                count = sock.recv_into(into)
                if not count:
                    raise EOFError("it closed the connection without a goodbye")
                read = True
                if self._landing is None:
                    self._end += count
                    self._parse()
                elif count < len(into):
                    self._rest = into[count:]
                else:
                    landing, self._landing = self._landing, None
                    landing.finish()
                    continue
                if count < len(into) or self._held:
                    break
            else:
                self._look_again()
        except BlockingIOError:
            return read
        except (EOFError, OSError, TransportError) as error:
            self.fail(error)
            read = True
        return read

    def control(self, kind: int, payload: bytearray) -> None:
        """A whole control frame has come."""
        if kind == ABORT:
            self._host.told(parse_abort(payload))
        elif kind == GOODBYE:
            self._host.said_goodbye(self)
        else:
            raise TransportError(f"a frame of kind {kind} came, which has no place here")

    def fail(self, error: Exception) -> None:
        """Give the connection up."""
        if not self.closed:
            self.release()
            self._host.lost(self, error)

    def farewell(self, frame: bytes) -> None:
        """Say a last word if it can be said without waiting, and leave. The socket stays until `release`, since
        closing it with data unread could destroy what was said."""
        self.closed = True
        if self._sock is not None:
            self._loop.watch(self, 0)
            # Best effort: where it fails, the other end notices by the connection itself.
            if self._between_frames():
                with contextlib.suppress(OSError):
                    self._sock.send(frame)
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
        self._drop()

    def release(self) -> None:
        """Give the descriptor and all views of buffers back. Idempotent."""
        self.closed = True
        if self._sock is not None:
            self._loop.watch(self, 0)
            self._sock.close()
            self._sock = None
        self._drop()

    def progress(self) -> str:
        """What is arriving just now, for diagnosis."""
        if self._held:
            return "its next frame is held back for want of room to park it (max_parked_bytes)"
        if self._landing is not None:
            total = len(self._landing.view)
            return f"{total - len(self._rest)} of {total} bytes of a frame have come"
        return "nothing is arriving from it"

    def _between_frames(self) -> bool:
        return True

    def _look_again(self) -> None:
        if tls.pending(self._sock):
            self._loop.revisit(self)

    def _drop(self) -> None:
        self._landing = None
        self._rest = memoryview(b"")
        self._held = False

    def _parse(self) -> None:
        window, start, end = self._window, 0, self._end
        landing: Landing | _Control | None
        while end - start >= _HEADER_BYTES and not self.closed:
            tag, check, kind, length = _unpack_from(window, start)
            if kind == self._data:
                after = start + _HEADER_BYTES + length
                if after <= end and self._host.deliver(self.peer, tag, check, window[after - length : after]):
                    start = after
                    continue
                landing = self._host.arrive(self.peer, tag, check, length)
            else:
                landing = self._begin_control(kind, length)
            if landing is None:
                self._held = True
                self._loop.watch(self, 0)
                break
            start += _HEADER_BYTES
            if length <= end - start:
                landing.view[:] = window[start : start + length]
                start += length
                landing.finish()
            else:
                have = end - start
                landing.view[:have] = window[start:end]
                self._landing, self._rest = landing, landing.view[have:]
                start = end
        left = end - start
        if left and start:
            window[:left] = window[start:end]
        self._end = left

    def _begin_control(self, kind: int, length: int) -> _Control:
        if length > MAX_CONTROL_BYTES:
            raise TransportError(f"a control frame of kind {kind} with {length} bytes came")
        return _Control(self, kind, length)


class Incoming(Lane):
    """A lane from a peer, made when its handshake has ended."""

    _data = DATA

    def __init__(self, host: Host, loop: Loop, peer: int, sock: socket.socket) -> None:
        super().__init__(host, loop, peer, _IN_BUFFER)
        self.attach(sock)

    @property
    def held(self) -> bool:
        """True while the next frame has no place to go to."""
        return self._held

    def resume(self) -> None:
        """There may be a place now."""
        if not self._held:
            return
        self._held = False
        self._loop.watch(self, READ)
        try:
            self._parse()
        except TransportError as error:
            self.fail(error)
        self._look_again()


class _Piece:
    """A buffer on its way out. `opens` is true if it is a frame's untouched header."""

    __slots__ = ("opens", "sending", "view")

    def __init__(self, view: memoryview, sending: Sending | None, opens: bool) -> None:
        self.view = view
        self.sending = sending
        self.opens = opens


class Outgoing(Lane):
    """A lane to a peer. It takes frames from the start, and moves them once it has a socket."""

    def __init__(self, host: Host, loop: Loop, peer: int) -> None:
        super().__init__(host, loop, peer, _BACK_BUFFER)
        self._queue: deque[_Piece] = deque()

    @property
    def queued_bytes(self) -> int:
        """Bytes that the system has not taken yet."""
        return sum(len(piece.view) for piece in self._queue)

    def attach(self, sock: socket.socket) -> None:
        super().attach(sock)
        self.flush()

    def ready(self, events: int) -> None:
        if events & WRITE:
            self.flush()
        if events & READ and not self.closed:
            self.pump()

    def push(self, header: bytes, payload: memoryview, sending: Sending) -> None:
        """Send a frame: at once what the system takes, the rest when it can. `sending.done` tells the end of it."""
        if self.closed:
            return
        sent = 0
        if not self._queue and self._sock is not None:
            try:
                if len(payload) < _JOIN_BELOW:
                    sent = self._sock.send(header + payload)
                else:
                    sent = sockets.send_vector(self._sock, (memoryview(header), payload))
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._broken(error)
                return
            if sent == HEADER.size + len(payload):
                sending.done = True
                return
        self._queue.append(_Piece(memoryview(header), None, True))
        self._queue.append(_Piece(payload, sending, False))
        self._consume(sent)

    def say_goodbye(self) -> None:
        """After all that is queued, tell the peer that this was all."""
        if not self.closed:
            self._queue.append(_Piece(memoryview(GOODBYE_FRAME), None, True))
            self.flush()

    def flush(self) -> bool:
        """Write what the system takes; True if it took anything."""
        if self._sock is None or not self._queue or self.closed:
            return False
        try:
            buffers = [piece.view for piece in itertools.islice(self._queue, _BUFFERS_AT_ONCE)]
            sent = sockets.send_vector(self._sock, buffers)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken(error)
            return True
        self._consume(sent)
        return sent > 0

    def _consume(self, sent: int) -> None:
        queue = self._queue
        while queue and sent >= len(queue[0].view):
            piece = queue.popleft()
            sent -= len(piece.view)
            if piece.sending is not None:
                piece.sending.done = True
        if sent:
            queue[0].view = queue[0].view[sent:]
            queue[0].opens = False
        if self._sock is not None:
            self._loop.watch(self, READ | WRITE if queue else READ)

    def _broken(self, error: OSError) -> None:
        # The reason may have come before the connection broke.
        self.pump()
        self.fail(error)

    def _between_frames(self) -> bool:
        return (not self._queue or self._queue[0].opens) and not tls.midway(self._sock)

    def _drop(self) -> None:
        super()._drop()
        self._queue.clear()
