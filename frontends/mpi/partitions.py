"""Partitioned messages: the sender tells of each part that it is ready, and the message leaves with the last of them.

The receiver gets all parts at once. Both sides may have different numbers of parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from frontends.mpi.blocks import Blocks
from frontends.mpi.errors import error
from frontends.mpi.operations import Envelope, Operation, Prompted, Receiving, Sending
from frontends.mpi.peers import Peers

TAG_LIMIT: Final = (1 << 22) - 1
"""The highest tag of a partitioned message."""
_FIRST: Final = 3 << 28
"""The first of the tags of these messages, which no others have."""
_SLOTS: Final = 64
"""Requests of one rank and tag that have messages of their own. Those of the first and of the 65th are taken in the
order in which they start."""


def slot_tag(peers: Peers, direction: str, rank: int, tag: int) -> int:
    """The tag of the messages of a new request. The first request that sends to a rank with a tag belongs to the first
    one there that receives, and so on."""
    made = peers.partitioned[direction, rank, tag]
    peers.partitioned[direction, rank, tag] += 1
    return _FIRST + tag * _SLOTS + made % _SLOTS


class PartitionedSending(Prompted):
    """A message whose parts become ready one by one, in any thread."""

    def __init__(self, peers: Peers, blocks: Blocks, dest: int, tag: int) -> None:
        super().__init__(peers.process)
        self._begin: Callable[[], Operation] = lambda: Sending(peers, blocks.read(), dest, tag)
        self._missing = set(range(len(blocks.blocks)))
        self._lock = threading.Lock()
        self._sending: Operation | None = None

    def ready(self, partitions: Iterable[int]) -> None:
        """Parts are ready. Raises Exception for one that does not exist, or was ready before."""
        with self._lock:
            for partition in partitions:
                if partition not in self._missing:
                    raise error("ERR_ARG", f"partition={partition}: must be one that is not ready yet")
                self._missing.remove(partition)
            if not self._missing and self._sending is None:
                self._sending = self._begin()
                self._prompt.set()

    def test(self) -> bool:
        return super().test() and self.sending.test()

    def wait(self) -> None:
        super().wait()
        self.sending.wait()

    def wait_briefly(self, seconds: float) -> None:
        super().wait_briefly(seconds)
        if self._prompt.is_set():
            self.sending.wait_briefly(seconds)

    def result(self) -> None:
        self.sending.result()

    @property
    def sending(self) -> Operation:
        """The message, once all parts are ready."""
        assert self._sending is not None
        return self._sending


class PartitionedReceiving(Receiving):
    """The receive of such a message."""

    def __init__(self, peers: Peers, blocks: Blocks, source: int, slot: int, tag: int) -> None:
        target, scatter = blocks.target()
        super().__init__(peers, target, scatter, source, slot)
        self._tag = tag

    def envelope(self) -> Envelope:
        source, _, nbytes, cancelled = super().envelope()
        return source, self._tag, nbytes, cancelled
