"""Lanes: connections after their handshake. Frames of data go one way; only GOODBYE and ABORT may come back.

`outgoing` has those to peers.
"""

from __future__ import annotations

import contextlib
import socket
from typing import ClassVar, Final, Protocol

from transports import tls
from transports.errors import RondeError, TransportError
from transports.tcp import sockets
from transports.tcp.dead_links import LinkHealth
from transports.tcp.frames import ABORT, DATA, GOODBYE, HEADER, MAX_CONTROL_BYTES, SPREAD, parse_abort
from transports.tcp.loop import READ, Loop

_IN_BUFFER: Final = 1 << 15
"""Two records of TLS; and frames of up to 16 KiB with some room to spare are read as one."""
_READS_AT_ONCE: Final = 16
_HEADER_BYTES: Final = HEADER.size
_DELAY_EVERY: Final = 0.02
"""Seconds; the system forgets it when it has answered late, which is after 40 ms without a message."""
_unpack_from: Final = HEADER.unpack_from
_CUT_OFF: Final = "it closed the connection without a goodbye"


class Target(Protocol):
    """The place of a payload. It is written as a whole into `view`, then finished."""

    @property
    def view(self) -> memoryview:
        """Memory of the length of the payload."""

    def finish(self) -> None:
        """The payload is complete."""


class Host(Protocol):
    """The transport, as its lanes use it."""

    def deliver(self, peer: int, tag: int, check: int, payload: memoryview) -> bool:
        """A whole frame has come; False if no receive was posted that it fits, and `arrive` must be asked."""

    def arrive(self, peer: int, tag: int, check: int, length: int) -> Target | None:
        """A header of data has come: where its payload goes, or None to stop reading until `Lane.resume`."""

    def told(self, cause: RondeError) -> None:
        """A rank has aborted."""

    def said_goodbye(self, lane: Lane) -> None:
        """The other end closes (incoming lane), or has read everything or closes (outgoing lane)."""

    def lost(self, lane: Lane, error: Exception) -> None:
        """The connection broke, or what came makes no sense. The lane is closed."""


class Announced(Protocol):
    """The receiver of striped messages, as their announcements use it."""

    def expect(self, place: Target) -> None:
        """The pieces of the next such message go there."""

    def complete(self) -> None:
        """Nothing more will come. Raises TransportError if pieces are missing."""

    def pump(self) -> bool:
        """Read what has come of them; True if anything had."""

    def progress(self) -> str:
        """Progress of the striped message that is arriving, for diagnosis; empty if none is."""


class _Control:
    """The payload of a control frame while it arrives."""

    def __init__(self, lane: Lane, kind: int, length: int) -> None:
        self._lane = lane
        self._kind = kind
        self._payload = bytearray(length)
        self.view = memoryview(self._payload)

    def finish(self) -> None:
        self._lane.control(self._kind, self._payload)


class _Nowhere:
    """The place of an empty payload of which nobody needs to know."""

    view = memoryview(bytearray())

    def finish(self) -> None:
        """There is nothing to do."""


_NOWHERE: Final = _Nowhere()


class Lane:
    """One connection: its socket, and the reader of what comes on it."""

    _data: ClassVar[int | None] = None
    """The kind of frames that go to the match queue; all others are control frames."""

    def __init__(self, host: Host, loop: Loop, peer: int, buffer_bytes: int) -> None:
        self.peer = peer
        self.closed = False
        self.health = LinkHealth()
        self._host = host
        self._loop = loop
        self._sock: socket.socket | None = None
        self._buffer = bytearray(buffer_bytes)
        self._window = memoryview(self._buffer)
        self._end = 0
        self._inbound: Target | None = None
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
                if self._inbound is not None:
                    into = self._rest
                else:
                    into = self._window[self._end :] if self._end else self._window
                count = sock.recv_into(into)
                if not count:
                    raise EOFError(_CUT_OFF)
                read = True
                if self._inbound is None:
                    self._end += count
                    self._parse()
                elif count < len(into):
                    self._rest = into[count:]
                else:
                    inbound, self._inbound = self._inbound, None
                    inbound.finish()
                    self._look_again()  # not at the socket: to find that nothing more has come takes as long as to read
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

    def send_last(self, frame: bytes) -> None:
        """Send a last frame, if that is possible without waiting, and shut the connection down for writing. The socket
        stays open until `release`: closing it with unread data could discard the frame."""
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

    def progress(self) -> str:
        """Progress of the frame that is arriving, for diagnosis."""
        if self._held:
            return "its next frame is held back for want of room to park it (max_parked_bytes)"
        if self._inbound is not None:
            total = len(self._inbound.view)
            return f"{total - len(self._rest)} of {total} bytes of a frame have come"
        return "nothing is arriving from it"

    def _between_frames(self) -> bool:
        return True

    def _look_again(self) -> None:
        if tls.pending(self._sock):
            self._loop.revisit(self)

    def _drop(self) -> None:
        self._inbound = None
        self._rest = memoryview(b"")
        self._held = False

    def _parse(self) -> None:
        window, start, end = self._window, 0, self._end
        inbound: Target | None
        while end - start >= _HEADER_BYTES and not self.closed:
            tag, check, kind, length = _unpack_from(window, start)
            if kind == self._data:
                after = start + _HEADER_BYTES + length
                if after <= end and self._host.deliver(self.peer, tag, check, window[after - length : after]):
                    start = after
                    continue
                inbound = self._host.arrive(self.peer, tag, check, length)
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
        """A message in pieces is to come: where the rest of its SPREAD frame goes, which is empty, or None as `arrive`
        has it."""
        raise TransportError("a message in pieces was announced on a connection for something else")

    def _begin_control(self, kind: int, length: int) -> _Control:
        if length > MAX_CONTROL_BYTES:
            raise TransportError(f"a control frame of kind {kind} with {length} bytes came")
        return _Control(self, kind, length)


class Incoming(Lane):
    """The lane of all messages from a peer, made when its handshake has ended. Of those in pieces it brings only the
    announcements, which put them in order with the others."""

    _data = DATA

    def __init__(self, host: Host, loop: Loop, peer: int, sock: socket.socket, pieces: Announced) -> None:
        super().__init__(host, loop, peer, _IN_BUFFER)
        self._delay_at = 0.0
        self._pieces = pieces
        self.attach(sock)

    def fetch(self, tag: int, check: int, view: memoryview, now: float) -> memoryview | None:
        """Read the next frame straight into `view`, if it comes soon and is the expected one. Returns the part of
        `view` that is still missing; None if another frame came, or none, or one is under way already."""
        sock, window = self._sock, self._window
        if sock is None or self._end or self._held or self._inbound is not None:
            return None
        try:
            if now >= self._delay_at:
                self._delay_at = now + _DELAY_EVERY
                sockets.delay_answers(sock)
            count = self._soon(sock, window)
            if count < _HEADER_BYTES or _unpack_from(window) != (tag, check, DATA, len(view)):
                self._end = count
                self._parse()
                self._look_again()
                return None
            got = min(count - _HEADER_BYTES, len(view))
            after = _HEADER_BYTES + got
            view[:got] = window[_HEADER_BYTES:after]
            if count > after:
                self._end = count - after
                window[: self._end] = window[after:count]
                self._parse()
            while got < len(view):
                count = self._soon(sock, view[got:])
                if not count:
                    break
                got += count
            self._look_again()
            return view[got:]
        except (EOFError, OSError, TransportError) as error:
            self.fail(error)
            return None

    def receive_rest(self, target: Target, rest: memoryview) -> None:
        """Receive the rest of a frame that `fetch` has begun to read into `target`, which is `rest` from here on."""
        self._inbound, self._rest = target, rest

    def _soon(self, sock: socket.socket, into: memoryview) -> int:
        """Read what comes within some glances: how many bytes."""
        for _ in self._loop.glances:
            try:
                count = sock.recv_into(into)
            except BlockingIOError:
                continue
            if not count:
                raise EOFError(_CUT_OFF)
            return count
        return 0

    def pump_pieces(self) -> bool:
        """`pump` for the lanes that bring pieces."""
        return self._pieces.pump()

    def control(self, kind: int, payload: bytearray) -> None:
        if kind == GOODBYE:
            self._pieces.complete()
        super().control(kind, payload)

    def progress(self) -> str:
        return self._pieces.progress() or super().progress()

    def _announced(self, tag: int, check: int, length: int) -> Target | None:
        place = self._host.arrive(self.peer, tag, check, length)
        if place is None:
            return None
        self._pieces.expect(place)
        return _NOWHERE
