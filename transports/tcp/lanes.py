"""Lanes: connections after their handshake. Data frames go one way; only GOODBYE and ABORT frames go back.

`outgoing` and `incoming` have the main lanes to and from peers.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
from typing import ClassVar, Final, Protocol

from transports import tls
from transports.compiled import HEAD_BYTES
from transports.errors import RondeError, TransportError
from transports.loop import READ, Loop
from transports.matching import Target
from transports.tcp.dead_links import LinkHealth
from transports.tcp.frames import ABORT, GOODBYE, HEADER, MAX_CONTROL_BYTES, SPREAD, parse_abort

_READ_BYTES: Final = 1 << 15
"""Two TLS records. One read takes a frame of 16 KiB with its header."""
LARGEST: Final = (1 << 21) + (1 << 12)
"""The largest payload of compiled code: 2 MiB, and some bytes by which a piece of a call may exceed an even share."""
BUFFER_BYTES: Final = LARGEST + HEAD_BYTES
"""Room for its largest frame."""
_READS_AT_ONCE: Final = 16
_HEADER_BYTES: Final = HEADER.size
_unpack_from: Final = HEADER.unpack_from
CUT_OFF: Final = "it closed the connection without a GOODBYE frame"


class LaneOwner(Protocol):
    """The receiver of the frames of lanes: the link, or the reassembly of its messages in pieces."""

    def deliver(self, peer: int, tag: int, check: int, payload: memoryview) -> bool:
        """Deliver a whole frame; False if no matching receive was posted: then `arrive` must be called."""

    def arrive(self, peer: int, tag: int, check: int, length: int) -> Target | None:
        """The destination of the payload of an arrived header; None to stop reading until `Lane.resume`."""

    def abort_received(self, cause: RondeError) -> None:
        """Report that another rank has aborted."""

    def goodbye_received(self, lane: Lane) -> None:
        """Report the peer's GOODBYE: it closes (incoming lane), or has read everything or closes (outgoing lane)."""

    def connection_lost(self, lane: Lane, error: Exception) -> None:
        """Report a broken connection or invalid data. The lane is closed."""


class _Control:
    """The payload of a control frame while it arrives."""

    def __init__(self, lane: Lane, kind: int, length: int) -> None:
        self._lane = lane
        self._kind = kind
        self._payload = bytearray(length)
        self.view = memoryview(self._payload)

    def finish(self) -> None:
        self._lane.control(self._kind, self._payload)


class _EmptyTarget:
    """The destination of an empty payload without further effect."""

    view = memoryview(bytearray())

    def finish(self) -> None:
        """Nothing to do."""


EMPTY_TARGET: Final = _EmptyTarget()
_NOTHING: Final = memoryview(b"")


class Lane:
    """One connection: its socket, and the reader of its frames."""

    in_memory = False
    _data: ClassVar[int | None] = None
    """The kind of frames that go to the match queue; all others are control frames."""

    def __init__(self, owner: LaneOwner, loop: Loop, peer: int, buffer: bytearray | mmap.mmap) -> None:
        self.peer = peer
        self.closed = False
        self.health = LinkHealth()
        self._owner = owner
        self._loop = loop
        self._sock: socket.socket | None = None
        self._buffer = buffer
        self._window = memoryview(buffer)
        self._first_read = self._window[:_READ_BYTES]
        self._end = 0
        self._inbound: Target | None = None
        self._rest = _NOTHING
        self._held = False

    @property
    def sock(self) -> socket.socket | None:
        """The connected socket, None before there is one and after the lane was released."""
        return self._sock

    def fileno(self) -> int:
        assert self._sock is not None
        return self._sock.fileno()

    def attach(self, sock: socket.socket) -> None:
        """Use the socket of a completed handshake."""
        self._sock = sock
        self._loop.watch(self, READ)
        self._look_again()

    def ready(self, events: int) -> None:
        if events & READ:
            self.pump()

    def pump(self) -> bool:
        """Read and handle the bytes that have arrived; True if there were any."""
        sock, read = self._sock, False
        if sock is None or self._held:
            return False
        try:
            for _ in range(_READS_AT_ONCE):
                if self.closed:
                    break
                if self._inbound is not None:
                    into = self._rest
                else:
                    into = self._window[self._end : _READ_BYTES] if self._end else self._first_read
                count = sock.recv_into(into)
                if not count:
                    raise EOFError(CUT_OFF)
                read = True
                if self._inbound is None:
                    self._end += count
                    self._parse()
                elif count < len(into):
                    self._rest = into[count:]
                else:
                    self._finish_inbound()
                    self._look_again()  # not at the socket: a read that finds nothing costs as much as another
                    break
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

    def _finish_inbound(self) -> None:
        """Report the end of the arriving frame. Keeps no view of its memory, which the caller may drop then."""
        assert self._inbound is not None
        inbound, self._inbound, self._rest = self._inbound, None, _NOTHING
        inbound.finish()

    def control(self, kind: int, payload: bytearray) -> None:
        """Handle a whole control frame."""
        if kind == ABORT:
            self._owner.abort_received(parse_abort(payload))
        elif kind == GOODBYE:
            self._owner.goodbye_received(self)
        else:
            raise TransportError(f"received a frame of kind {kind}, which is not allowed here")

    def fail(self, error: Exception) -> None:
        """Close the connection and report the error."""
        if not self.closed:
            self.release()
            self._owner.connection_lost(self, error)

    def send_last(self, frame: bytes) -> None:
        """Send a last frame, if that is possible without waiting, and shut the connection down for writing. The socket
        stays open until `release`: closing it with unread data could discard the frame."""
        self.closed = True
        if self._sock is not None:
            self._loop.watch(self, 0)
            # Best effort: if it fails, the other end notices the broken connection.
            if self._between_frames():
                with contextlib.suppress(OSError):
                    self._sock.send(frame)
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
        self._drop()

    def release(self) -> None:
        """Release the descriptor and all views of buffers. Idempotent."""
        self.closed = True
        if self._sock is not None:
            self._loop.watch(self, 0)
            self._sock.close()
            self._sock = None
        self._drop()

    @property
    def held(self) -> bool:
        """True while reading is stopped because the next frame has no destination."""
        return self._held

    def resume(self) -> None:
        """Ask again for a destination of the held frame."""
        if not self._held:
            return
        self._held = False
        self._loop.watch(self, READ)
        self._handle()
        self._look_again()

    def progress(self) -> str:
        """Progress of the frame that is arriving, for diagnosis."""
        if self._held:
            return "its next frame exceeds the space for unexpected messages (max_parked_bytes) and is not read"
        if self._inbound is not None:
            total = len(self._inbound.view)
            return f"{total - len(self._rest)} of {total} bytes of a frame have arrived"
        return "nothing is arriving from it"

    def _between_frames(self) -> bool:
        return True

    def _look_again(self) -> None:
        if tls.pending(self._sock):
            self._loop.revisit(self)

    def _drop(self) -> None:
        self._inbound = None
        self._rest = _NOTHING
        self._held = False

    def _handle(self) -> None:
        """Handle the bytes in the buffer. Never raises for invalid ones."""
        try:
            self._parse()
        except TransportError as error:
            self.fail(error)

    def _parse(self, start: int = 0) -> None:
        """Handle the bytes in the buffer from `start` on; those before have been handled."""
        window, end = self._window, self._end
        inbound: Target | None
        while end - start >= _HEADER_BYTES and not self.closed:
            tag, check, kind, length = _unpack_from(window, start)
            if kind == self._data:
                after = start + _HEADER_BYTES + length
                if after <= end and self._owner.deliver(self.peer, tag, check, window[after - length : after]):
                    start = after
                    continue
                inbound = self._owner.arrive(self.peer, tag, check, length)
            elif kind == SPREAD:
                inbound = self._announced(tag, check, length)
                length = 0
            else:
                inbound = self._begin_control(kind, length)
            if inbound is None:
                self._held = True
                self._loop.watch(self, 0)
                break
            start += _HEADER_BYTES
            if length <= end - start:
                inbound.view[:] = window[start : start + length]
                start += length
                inbound.finish()
            else:
                have = end - start
                inbound.view[:have] = window[start:end]
                self._inbound, self._rest = inbound, inbound.view[have:]
                start = end
        left = end - start
        if left and start:
            window[:left] = window[start:end]
        self._end = left

    def _announced(self, tag: int, check: int, length: int) -> Target | None:
        """Handle the announcement of a message in pieces. Returns the destination of the SPREAD frame's empty payload;
        None as `arrive` does."""
        raise TransportError("a message in pieces was announced on a connection that carries no announcements")

    def _begin_control(self, kind: int, length: int) -> _Control:
        if length > MAX_CONTROL_BYTES:
            raise TransportError(f"received a control frame of kind {kind} with {length} bytes")
        return _Control(self, kind, length)
