"""An optional ability: compiled code sends and receives small messages itself, by system calls on the sockets.

Most of the time of a small message is Python's, not the system's. A channel gives compiled code the lanes of some peers
while nothing else uses them: no bytes wait to be sent on them, no frame is read in part, and no receive is posted for
their messages. A message that came before the call is given to the code in the buffer of its lane. Whatever the code
cannot end at once, it hands back:

    Channel.run(run, source, target)
        |  lanes in use: BUSY, nothing was done
        v
    run(source, target)        compiled: send(2) and recv(2) on the lanes, without Python
        |  a message does not come soon, or is another one; or the system takes a part of one only
        v
    the transport gets the bytes that were read, and the rest of the message

A frame, here and on the wire, is a head of three words of 64 bits, little-endian, and the payload: the tag, the check
in the lower half of a word, the length of the payload.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from transports.base import Request

HEAD_BYTES: Final = 24

# Words of the lanes from and to a peer; see Channel.words.
OUT: Final = 0
"""Descriptor of the lane to the peer."""
IN: Final = 1
"""Descriptor of the lane from the peer."""
BUFFER: Final = 2
"""Address of memory with room for the largest frame."""
END: Final = 3
"""Bytes of frames there that were received and not taken. When `run` begins: those of the frame that came before the
call, and is to be taken first; 0 if none did."""
LANE_WORDS: Final = 4

Run = Callable[[Any, Any], int | None]
"""Compiled code, called with source and target. None if it has ended."""


class DirectMessages(ABC):
    """The ability.

    largest  bytes of the payload of a message that compiled code may send or receive
    polls    attempts to receive that are worthwhile before a message is left to the transport
    yields   yields of the core that are worthwhile after these, each before an attempt; not 0 only where ranks share
             cores. Then a table should let other threads run Python meanwhile: a yield may take milliseconds
    """

    largest: int
    polls: int
    yields: int

    @abstractmethod
    def channel(self, dests: Sequence[int], sources: Sequence[int], tag: int, busy: int) -> Channel | None:
        """The channel for messages with this tag to `dests` and from `sources`; None if the messages of one of them do
        not pass sockets. `busy`: the answer of `Channel.run` if the lanes cannot be used."""


class Channel(ABC):
    """The lanes between this rank and some peers, for the messages of one tag."""

    @abstractmethod
    def words(self, peer: int) -> int:
        """The address of the words of the lanes from and to a peer, valid as long as the channel."""

    @abstractmethod
    def run(self, run: Run, source: Any, target: Any, left: Callable[[int, Any, Any], None]) -> int | None:
        """Return run(source, target), called while this thread alone uses the lanes; `busy`, without the call, if they
        are in use, not connected or failed.

        left  called with an answer that is not None, and with the arrays, while the lanes are still this thread's: the
              rest of a message that was sent in part must be handed back there, by `send_rest`
        """

    @abstractmethod
    def send_rest(self, peer: int, view: memoryview, check: int, sent: int) -> Request:
        """The request for a message of which `sent` bytes were sent, the head included."""
