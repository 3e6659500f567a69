"""An optional ability: compiled code sends and receives small messages itself, on the sockets and rings of the links.

Most of the time of a small message is Python's, not the system's. A channel gives compiled code the lanes of some peers
while nothing else uses them: no bytes wait to be sent on them, no frame is read in part, and no receive is posted for
their messages. A message that came before the call is given to the code in a buffer. Whatever the code cannot end at
once, it hands back:

    Channel.run(run, source, target)
        |  lanes in use: BUSY, nothing was done
        v
    run(source, target)        compiled: send(2) and recv(2) on sockets, copies from and to rings, without Python
        |  a message does not come soon, or is another one; there is no room for the whole of one; a rank sleeps on a
        v  descriptor
    the transport gets the bytes that were read and the rest of the message, and wakes the rank

A frame in a buffer and on a socket is a head of three words of 64 bits, little-endian, and the payload: the tag, the
check in the lower half of a word, the length of the payload. A frame in a ring is that of transports.shm.ring.
"""

from __future__ import annotations

import ctypes
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from transports.base import Request

HEAD: Final = struct.Struct("<3Q")
HEAD_BYTES: Final = HEAD.size

# Words of the lanes from and to a peer; see Channel.words.
OUT: Final = 0
"""The lane to the peer: the descriptor of a socket, or the address of the control words of a ring."""
IN: Final = 1
"""The lane from the peer, likewise."""
BUFFER: Final = 2
"""Address of memory for a frame: of a socket lane, with room for the largest one."""
END: Final = 3
"""Bytes there that were received by a socket lane and not taken; 0 when `run` begins."""
OUT_DATA: Final = 4
"""Address of the data of the ring to the peer; 0 for a socket."""
IN_DATA: Final = 5
"""Address of the data of the ring from the peer; 0 for a socket."""
MASK: Final = 6
"""The bytes of each of these rings, less 1."""
BELL: Final = 7
"""Address of the doorbell of the peer, for rings: a word of 32 bits, BY_FUTEX while the peer sleeps by futex(2),
greater while it sleeps otherwise, else 0. To wake one that sleeps by futex(2): store 0, and wake one sleeper."""
BY_FUTEX: Final = 1
OWN_BELL: Final = 8
"""Address of the doorbell of this rank, for rings."""
EARLY: Final = 9
"""Bytes of the frame in the buffer that came before the call, and is to be taken first; 0 without one, and once it was
taken."""
LANE_WORDS: Final = 10

# Words of the control of a ring, and the bytes of its frames; see transports.shm.ring.
WRITTEN: Final = 0
"""Bytes ever written."""
WANTED: Final = 1
"""1 while the sender waits for room."""
READ: Final = 16
"""Bytes ever read."""
RING_HEAD_BYTES: Final = 32
"""Bytes of a frame's head: the words tag, length, check and kind, which is 0 for a message. A payload is padded to a
multiple of it."""


Words: TypeAlias = "ctypes.Array[ctypes.c_int64]"
"""The words of the lanes from and to a peer."""
Run = Callable[[Any, Any], int | None]
"""Compiled code, called with source and target. None if it has ended."""
Left = Callable[[int, Any, Any], int | None]
"""(answer, source, target) -> answer: see Channel.run."""


class LaneTo(Protocol):
    """A lane to a peer, as a channel uses it. `in_memory`: it is a ring."""

    @property
    def in_memory(self) -> bool: ...

    @property
    def is_clear(self) -> bool:
        """True if the next byte that is written begins a frame, and may be written."""

    def tell(self, words: Words) -> bool:
        """Write the words OUT, OUT_DATA, MASK and BELL of the lane; False if it is not connected."""

    def catch_up(self) -> None:
        """Compiled code may have sent frames by the ring: learn how far."""


class LaneFrom(Protocol):
    """A lane from a peer, as a channel uses it. `in_memory`: it is a ring."""

    @property
    def in_memory(self) -> bool: ...

    peer: int

    @property
    def is_clear(self) -> bool:
        """True if the next byte that is read begins a frame, and may be read."""

    def tell(self, words: Words) -> bool:
        """Write the words IN, IN_DATA, MASK, BELL and OWN_BELL of the lane, and BUFFER if it has one; False if it is
        not connected."""

    def expect(self, now: float) -> None:
        """Messages are about to be received."""

    def catch_up(self) -> None:
        """Compiled code may have received frames from the ring: learn how far."""

    def put_back(self, words: Words, header: bytes, payload: memoryview) -> None:
        """Put a frame that was received before into the buffer, and write BUFFER and EARLY."""

    def adopt(self, count: int) -> None:
        """Receive `count` bytes before all others that compiled code has read from a socket into the buffer, and not
        taken."""


class CompiledMessages(ABC):
    """The ability.

    polls    attempts to receive from a socket that are worthwhile before a yield; 0 where ranks share cores. Then a
             table should let other threads run Python meanwhile, since each yield may take milliseconds
    yields   yields of the core that are worthwhile after these, each before an attempt
    sleeps   sleeps of a millisecond at most that are worthwhile after these, before a message is left to the transport
    """

    polls: int
    yields: int
    sleeps: int

    @abstractmethod
    def channel(self, dests: Sequence[int], sources: Sequence[int], tag: int, busy: int) -> Channel | None:
        """The channel for messages with this tag to `dests` and from `sources`, with one entry for each message; None
        if compiled code cannot use the lanes of one of them. `busy`: the answer of `Channel.run` if the lanes cannot be
        used now."""


class Channel(ABC):
    """The lanes between this rank and some peers, for the messages of one tag.

    largest  bytes of the payload of a message that compiled code may send or receive
    """

    largest: int

    @abstractmethod
    def words(self, peer: int) -> int:
        """The address of the words of the lanes from and to a peer, valid as long as the channel."""

    @abstractmethod
    def run(self, run: Run, source: Any, target: Any, left: Left) -> int | None:
        """Return run(source, target), called while this thread alone uses the lanes; `busy`, without the call, if they
        are in use, not connected or failed.

        left  called with an answer that is not None, and with the arrays, while the lanes are still this thread's: it
              has to hand the rest of a message back that was sent in part, by `send_rest`, and to `wake` a peer that
              sleeps. It returns the answer, another one if it has gone on with compiled code
        """

    @abstractmethod
    def send_rest(self, peer: int, view: memoryview, check: int, sent: int) -> Request:
        """The request for a message of which `sent` bytes were sent, the head included."""

    @abstractmethod
    def wake(self, peer: int) -> None:
        """Wake a peer that sleeps and has been sent a message, or room for one."""
