"""Rings: how frames go from one rank to another one, through a buffer with one writer and one reader.

    control   words of the sender: bytes ever written, and whether it requests a wakeup when there is room;
              on another cache line the word of the receiver: bytes ever read
    data      a power of two of bytes; a frame is a header of 32 bytes and its payload, padded to a multiple of 32

Both counters only grow. The sender writes a large payload in pieces, so that the receiver copies one out while the next
is copied in; pieces begin and end on multiples of 32 too. Neither end ever waits: `push` and `drain` make the progress
that is possible now. They are called with the transport's lock held, and hold it for a few rings' worth of bytes.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from transports.anysource import Taken
from transports.compiled import (
    BELL,
    BUFFER,
    EARLY,
    IN,
    IN_DATA,
    MASK,
    OUT,
    OUT_DATA,
    OWN_BELL,
    READ,
    RING_HEAD_BYTES,
    WANTED,
    WRITTEN,
    Words,
)
from transports.copying import fetch_bytes, write_bytes
from transports.errors import TransportError
from transports.matching import Target
from transports.requests import Sending
from transports.shm.doorbell import Doorbell
from transports.shm.fence import WEAKLY_ORDERED, barrier

CONTROL_BYTES: Final = 256

MESSAGE: Final = 0
"""The kind of a frame that is a message of the transport."""
_UNIT: Final = RING_HEAD_BYTES
_MAX_PIECE: Final = 1 << 17
_SMALL: Final = 1 << 11
"""Bytes of a copy that is memcpy's in any case."""


@dataclass(frozen=True, slots=True)
class RingMemory:
    """The memory of a ring: its control as 64-bit words, and its data."""

    control: memoryview
    data: memoryview


Arrive = Callable[[int, int, int, int], Target | None]
"""Called with kind, tag, check and length of a frame. None: leave it in the ring, and ask again at the next `drain`."""


class _Outbound:
    """A frame on its way into the ring."""

    __slots__ = ("check", "kind", "length", "offset", "sending", "tag", "view")

    def __init__(self, kind: int, tag: int, check: int, view: memoryview, sending: Sending) -> None:
        self.kind = kind
        self.tag = tag
        self.check = check
        self.view = view
        self.sending = sending
        self.length = len(view)
        self.offset = -1


class _End:
    """The common part of both ends.

    piece  bytes of the largest payload that is written, and can be read, at once
    """

    in_memory = True

    def __init__(self, memory: RingMemory, bell: Doorbell) -> None:
        self._control = memory.control
        self._data = memory.data
        self._words = memory.data.cast("Q")
        self._capacity = len(memory.data)
        self._mask = self._capacity - 1
        self.piece = min(_MAX_PIECE, self._capacity // 4)
        self._bell = bell
        self._asleep = bell.word

    def _tell(self, words: Words, control: int, data: int) -> bool:
        """Write the addresses of the ring to two words, and those that both ends share."""
        words[control], words[data] = _address(self._control), _address(self._data)
        words[MASK], words[BELL] = self._mask, self._bell.address
        return True


class Outgoing(_End):
    """The sender's end. `bell` is the receiver's."""

    def __init__(self, memory: RingMemory, bell: Doorbell) -> None:
        super().__init__(memory, bell)
        self._written = 0
        self._limit = self._capacity  # bytes that may have been written, by the receiver's last known position
        self._queue: deque[_Outbound] = deque()

    @property
    def queued(self) -> int:
        """The number of frames that are not completely in the ring."""
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Bytes of their payloads that are not in the ring yet."""
        return sum(frame.length - max(frame.offset, 0) for frame in self._queue)

    # For compiled code; see transports.compiled.LaneTo.

    @property
    def is_clear(self) -> bool:
        return not self._queue

    def tell(self, words: Words) -> bool:
        return self._tell(words, OUT, OUT_DATA)

    def catch_up(self) -> None:
        self._written = self._control[WRITTEN]

    def send(self, kind: int, tag: int, check: int, view: memoryview) -> bool:
        """Send a frame if it is short and there is room for it now. False, with nothing done, if not: then `queue`."""
        length = len(view)
        if length <= self.piece and not self._queue:
            needed = _UNIT + (length + _UNIT - 1 & -_UNIT)
            if self._written + needed <= self._limit or self._room() >= needed:
                at = self._write_header(kind, tag, check, length)
                if length:
                    if length <= _SMALL and at + length <= self._capacity:
                        self._data[at : at + length] = view
                    else:
                        self._write(at, view)
                self._written += needed
                self._publish()
                return True
        return False

    def queue(self, kind: int, tag: int, check: int, view: memoryview, sending: Sending) -> None:
        """Send a frame: as much as there is room for now, the rest by `push`. `sending.done` is set at the end."""
        self._queue.append(_Outbound(kind, tag, check, view, sending))
        self.push()

    def push(self) -> bool:
        """Write as much as there is room for; True if anything was written."""
        moved = False
        while self._queue:
            frame = self._queue[0]
            room = self._room()
            if room < 2 * _UNIT and (room := self._request_room()) < 2 * _UNIT:
                break
            if frame.offset < 0:
                self._write_header(frame.kind, frame.tag, frame.check, frame.length)
                self._written += _UNIT
                frame.offset = 0
                room -= _UNIT
            count = min(frame.length - frame.offset, room, self.piece)
            if count:
                self._write(self._written & self._mask, frame.view[frame.offset : frame.offset + count])
                frame.offset += count
                self._written += count
            if frame.offset == frame.length:
                self._written += -self._written % _UNIT
                self._queue.popleft()
                frame.sending.done = True
            self._publish()
            moved = True
        self._control[WANTED] = bool(self._queue)
        return moved

    def forget(self) -> None:
        """Release all buffers; queued frames are not sent."""
        self._queue.clear()

    def _write_header(self, kind: int, tag: int, check: int, length: int) -> int:
        """Write a header, for which there is room; the position of the payload."""
        words, position = self._words, self._written & self._mask
        first = position >> 3
        words[first] = tag
        words[first + 1] = length
        words[first + 2] = check
        words[first + 3] = kind
        return position + _UNIT & self._mask

    def _write(self, at: int, payload: memoryview) -> None:
        stop = at + len(payload)
        over = stop - self._capacity
        if over <= 0:
            write_bytes(self._data[at:stop], payload)
        else:
            write_bytes(self._data[at:], payload[:-over])
            write_bytes(self._data[:over], payload[-over:])

    def _room(self) -> int:
        self._limit = self._control[READ] + self._capacity
        if WEAKLY_ORDERED:
            barrier()
        return self._limit - self._written

    def _request_room(self) -> int:
        """Request a wakeup when there is room; the room that there is by now."""
        self._control[WANTED] = 1
        barrier()
        return self._room()

    def _publish(self) -> None:
        """Publish the written bytes to the receiver."""
        if WEAKLY_ORDERED:
            barrier()
        self._control[WRITTEN] = self._written
        if self._asleep[0]:
            self._bell.ring()


class Incoming(_End):
    """The receiver's end. `bell` is the sender's."""

    def __init__(self, peer: int, memory: RingMemory, bell: Doorbell, own: Doorbell, arrive: Arrive) -> None:
        super().__init__(memory, bell)
        self._own = own
        self.peer = peer
        self._arrive = arrive
        self._inbound: Target | None = None
        self._offset = 0
        self._length = 0
        self._read = 0
        self._early = bytearray()
        """A message that compiled code is to take before those in the ring."""

    # For compiled code; see transports.compiled.LaneFrom.

    @property
    def is_clear(self) -> bool:
        return self._inbound is None

    def tell(self, words: Words) -> bool:
        words[OWN_BELL] = self._own.address
        return self._tell(words, IN, IN_DATA)

    def expect(self, now: float) -> None:
        """Nothing to do."""

    def catch_up(self) -> None:
        self._read = self._control[READ]

    def put_back(self, words: Words, header: bytes, payload: memoryview) -> None:
        self._early = bytearray(header + payload)
        words[BUFFER], words[EARLY] = _address(memoryview(self._early)), len(self._early)

    def adopt(self, count: int) -> None:
        raise AssertionError("compiled code takes the frames of a ring whole")

    @property
    def empty(self) -> bool:
        """True if there is nothing to drain."""
        return self._control[WRITTEN] == self._read

    def drain(self) -> bool:
        """Read all written bytes; True if there were any. Raises TransportError for an impossible counter or frame."""
        written, before = self._control[WRITTEN], self._read
        if not 0 <= written - before <= self._capacity:  # so that corrupt memory is never read
            raise TransportError(f"it counts {written} bytes as written, but {before} were read")
        shown = before
        if WEAKLY_ORDERED:
            barrier()
        while self._read < written:
            inbound = self._inbound
            if inbound is None:
                words, first = self._words, (self._read & self._mask) >> 3
                length = words[first + 1]
                inbound = self._arrive(words[first + 3], words[first], words[first + 2], length)
                if inbound is None:
                    break
                self._read += _UNIT
                if not length:
                    inbound.finish()
                    continue
                self._inbound, self._offset, self._length = inbound, 0, length
            count = min(self._length - self._offset, written - self._read, self.piece)
            if count:
                self._copy_out(inbound.view[self._offset : self._offset + count])
                self._offset += count
                self._read += count
            if self._offset == self._length:
                self._read += -self._read % _UNIT
                self._inbound = None
                inbound.finish()
            if self._read - shown >= self.piece:  # the sender may go on meanwhile
                shown = self._read
                self._release_room()
        if self._read != shown:
            self._release_room()
        return self._read != before

    def take(self, tags: range, view: memoryview | None, check: int | None, polls: range) -> Taken | None:
        """Read the next frame without asking for a target: see AnySource.take. None in the middle of a frame.

        polls  looks at the ring
        """
        control, read = self._control, self._read
        if self._inbound is not None:
            return None
        for _ in polls:
            if control[WRITTEN] != read:
                break
        else:
            return None
        if WEAKLY_ORDERED:
            barrier()
        words, first = self._words, (read & self._mask) >> 3
        tag, length, found = words[first], words[first + 1], words[first + 2]
        if tag not in tags or words[first + 3] != MESSAGE or length > self.piece:
            return None
        if check is not None and (found != check or view is None or length != len(view)):
            return None
        needed = _UNIT + (length + _UNIT - 1 & -_UNIT)
        if not needed <= control[WRITTEN] - read <= self._capacity:
            return None
        if view is None:
            view = memoryview(bytearray(length))
        elif length < len(view):
            view = view[:length]
        elif length > len(view):
            return None
        if length:
            at = read + _UNIT & self._mask
            if length <= _SMALL and at + length <= self._capacity:
                view[:] = self._data[at : at + length]
            else:
                self._read = read + _UNIT
                self._copy_out(view)
        self._read = read + needed
        self._release_room()
        return Taken(self.peer, tag, found, view)

    def progress(self) -> str:
        """Progress of the frame that is arriving, for diagnosis."""
        if self._inbound is None:
            return "nothing is arriving from it"
        return f"{self._offset} of {self._length} bytes of a frame have arrived"

    def forget(self) -> None:
        """Release the buffer of the arriving frame. `drain` must not be called after it."""
        self._inbound = None

    def _copy_out(self, target: memoryview) -> None:
        at = self._read & self._mask
        stop = at + len(target)
        over = stop - self._capacity
        if over <= 0:
            fetch_bytes(target, self._data[at:stop])
        else:
            fetch_bytes(target[:-over], self._data[at:])
            fetch_bytes(target[-over:], self._data[:over])

    def _release_room(self) -> None:
        """Publish the read bytes to the sender, which may overwrite them."""
        if WEAKLY_ORDERED:
            barrier()
        self._control[READ] = self._read
        if self._control[WANTED] and self._asleep[0]:
            self._bell.ring()


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
