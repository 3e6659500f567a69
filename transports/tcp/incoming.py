"""Main lanes from peers."""

from __future__ import annotations

import ctypes
import mmap
import socket
import time
from typing import Final

from transports.anysource import Taken
from transports.compiled import BUFFER, EARLY, IN, IN_DATA, Words
from transports.errors import TransportError
from transports.loop import Loop
from transports.matching import Receive, Target
from transports.tcp import sockets
from transports.tcp.frames import DATA, GOODBYE, HEADER
from transports.tcp.lanes import BUFFER_BYTES, CUT_OFF, EMPTY_TARGET, Lane, LaneOwner
from transports.tcp.reassembly import Reassembly

_HEADER_BYTES: Final = HEADER.size
_DELAY_EVERY: Final = 0.02
"""Seconds between two calls of `delay_answers`: the system drops the setting after 40 ms without a message."""
_unpack_from: Final = HEADER.unpack_from


class Incoming(Lane):
    """The main lane from a peer, made when its handshake has ended. Of messages in pieces it carries only the
    announcements, which define their order among the other messages."""

    _data = DATA

    def __init__(self, owner: LaneOwner, loop: Loop, peer: int, sock: socket.socket, pieces: Reassembly) -> None:
        super().__init__(owner, loop, peer, mmap.mmap(-1, BUFFER_BYTES))  # the system gives the pages that are used
        self._delay_at = 0.0
        self._pieces = pieces
        self.attach(sock)

    @property
    def is_clear(self) -> bool:
        """True if the next byte that is read begins a frame, and may be read."""
        return not (self._end or self._held or self.closed) and self._inbound is None

    # For compiled code; see transports.compiled.LaneFrom.

    def tell(self, words: Words) -> bool:
        if self._sock is None:
            return False
        buffer = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        words[IN], words[IN_DATA], words[BUFFER] = self.fileno(), 0, buffer
        return True

    def catch_up(self) -> None:
        """Nothing to do: the system knows how far the code has read."""

    def put_back(self, words: Words, header: bytes, payload: memoryview) -> None:
        end = len(header) + len(payload)
        self._window[: len(header)], self._window[len(header) : end] = header, payload
        words[EARLY] = end

    def adopt(self, count: int) -> None:
        self._end = count
        self._handle()

    def expect(self, now: float) -> None:
        """Have the system delay its acknowledgements of the messages that are read; to be called often."""
        if now >= self._delay_at and self._sock is not None:
            self._delay_at = now + _DELAY_EVERY
            sockets.delay_answers(self._sock)

    def take(self, tags: range, view: memoryview | None, check: int | None, polls: range) -> Taken | None:
        """Read the next frame without asking for a target, if it arrives soon and as a whole: see AnySource.take. Any
        other frame that arrives goes the usual way."""
        sock = self._sock
        if sock is None or not self.is_clear:
            return None
        try:
            self.expect(time.monotonic())
            count = self._poll_read(sock, self._first_read, polls)
            if not count:
                return None
            self._end = count
            taken = self._whole_frame(tags, view, check, count)
            self._parse(0 if taken is None else _HEADER_BYTES + len(taken.view))
            self._look_again()
            return taken
        except (EOFError, OSError, TransportError) as error:
            self.fail(error)
            return None

    def fetch(self, receive: Receive, polls: range) -> bool:
        """Read the frame of a receive straight into its view, if it comes next and soon, and fits: see Link.fetch. Any
        other frame that arrives goes the usual way."""
        sock, view, window = self._sock, receive.view, self._window
        if sock is None or not self.is_clear:
            return False
        try:
            self.expect(time.monotonic())
            count = self._poll_read(sock, self._first_read, polls)
            if not count:
                return False
            self._end, end = count, _HEADER_BYTES + len(view)
            fits = count >= _HEADER_BYTES and _unpack_from(window) == (receive.tag, receive.check, DATA, len(view))
            if fits and count < end:
                have, self._end = count - _HEADER_BYTES, 0
                view[:have] = window[_HEADER_BYTES:count]
                self._inbound, self._rest = receive, view[have:]
                self._read_rest(sock, polls)
                return True
            if fits:
                view[:] = window[_HEADER_BYTES:end]
                receive.finish()
            self._parse(end if fits else 0)
            self._look_again()
        except (EOFError, OSError, TransportError) as error:
            self.fail(error)
        return receive.done

    def _read_rest(self, sock: socket.socket, polls: range) -> None:
        """Read more of the arriving frame while its bytes come, until all peers must be served."""
        while count := self._poll_read(sock, self._rest, polls):
            self._rest = self._rest[count:]
            if not self._rest:
                self._finish_inbound()
                break
            if time.monotonic() >= self._loop.due:
                break
        self._look_again()

    def _whole_frame(self, tags: range, view: memoryview | None, check: int | None, count: int) -> Taken | None:
        """The first frame of so many bytes in the buffer, if all of it is there and it fits; its payload is copied."""
        if count < _HEADER_BYTES:
            return None
        tag, found, kind, length = _unpack_from(self._window)
        end = _HEADER_BYTES + length
        if kind != DATA or tag not in tags or end > count:
            return None
        if check is not None and (found != check or view is None or length != len(view)):
            return None
        if view is None:
            view = memoryview(bytearray(length))
        elif length > len(view):
            return None
        view[:length] = self._window[_HEADER_BYTES:end]
        return Taken(self.peer, tag, found, view if length == len(view) else view[:length])

    def _poll_read(self, sock: socket.socket, into: memoryview, polls: range) -> int:
        """Poll the socket a few times; the number of bytes read."""
        for _ in polls:
            try:
                count = sock.recv_into(into)
            except BlockingIOError:
                continue
            if not count:
                raise EOFError(CUT_OFF)
            return count
        return 0

    def pump_pieces(self) -> bool:
        """`pump` for the lanes of pieces."""
        return self._pieces.pump()

    def control(self, kind: int, payload: bytearray) -> None:
        if kind == GOODBYE:
            self._pieces.complete()
        super().control(kind, payload)

    def progress(self) -> str:
        return self._pieces.progress() or super().progress()

    def _announced(self, tag: int, check: int, length: int) -> Target | None:
        place = self._owner.arrive(self.peer, tag, check, length)
        if place is None:
            return None
        self._pieces.expect(place)
        return EMPTY_TARGET
