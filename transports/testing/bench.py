"""One rank's transport in a check, with short methods for the usual steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from transports.base import Request, Transport
from transports.errors import RondeError

SYNC_TAG: Final = 1 << 40
SOON: Final = 0.05
"""Seconds: the deadline of a wait that cannot succeed, and the time for other ranks to begin their wait."""


def require(holds: object, complaint: str) -> None:
    """Raises AssertionError if `holds` is false (also under `python -O`)."""
    if not holds:
        raise AssertionError(complaint)


def pattern(source: int, target: int, tag: int, number: int, nbytes: int) -> bytes:
    """The bytes of one frame, which differ from those of any other frame."""
    return np.random.default_rng((source, target, tag, number)).bytes(nbytes)


def error_of(action: Callable[[], object], *expected: type[BaseException]) -> BaseException:
    """The error that `action` raises. Raises AssertionError if it raises none; an unexpected error passes through."""
    try:
        action()
    except expected as error:
        return error
    raise AssertionError(f"nothing was raised, expected {' or '.join(kind.__name__ for kind in expected)}")


@dataclass(slots=True)
class Incoming:
    """A posted receive and the bytes that it must receive."""

    bench: Bench
    request: Request
    buffer: bytearray
    expected: bytes
    what: str

    def check(self) -> None:
        """Wait for the frame and compare it."""
        self.request.wait(self.bench.deadline)
        if self.buffer != self.expected:
            pairs = enumerate(zip(self.buffer, self.expected, strict=True))
            first = next(position for position, (came, sent) in pairs if came != sent)
            raise AssertionError(
                f"{self.what}: byte {first} of {len(self.expected)} differs from the one that was sent"
            )


class Bench:
    """One rank in one check. `deadline` is absolute; `name` is the name of the check."""

    def __init__(self, transport: Transport, name: str, deadline: float) -> None:
        self.transport = transport
        self.name = name
        self.rank = transport.rank
        self.size = transport.size
        self.deadline = deadline
        self.right = (self.rank + 1) % self.size
        self.left = (self.rank - 1) % self.size

    def isend(self, peer: int, tag: int, payload: bytes | bytearray, check: int = 0) -> Request:
        """Begin to send `payload`."""
        return self.transport.isend(peer, tag, memoryview(payload), check)

    def irecv(self, peer: int, tag: int, buffer: bytearray, check: int = 0) -> Request:
        """Begin to receive into `buffer`."""
        return self.transport.irecv(peer, tag, memoryview(buffer), check)

    def give(self, peer: int, tag: int, number: int, nbytes: int) -> Request:
        """Begin to send the frame number `number` with `tag`, filled with its pattern."""
        return self.isend(peer, tag, pattern(self.rank, peer, tag, number, nbytes))

    def take(self, peer: int, tag: int, number: int, nbytes: int) -> Incoming:
        """Begin to receive the frame that the peer sends by `give`."""
        buffer = bytearray(nbytes)
        request = self.irecv(peer, tag, buffer)
        expected = pattern(peer, self.rank, tag, number, nbytes)
        return Incoming(self, request, buffer, expected, f"frame {number} with tag {tag} from rank {peer}")

    def swap(self, tag: int) -> None:
        """A small exchange around the ring, which shows that the transport is intact."""
        incoming, sending = self.take(self.left, tag, 0, 100), self.give(self.right, tag, 0, 100)
        incoming.check()
        sending.wait(self.deadline)

    def sync(self) -> None:
        """A barrier of empty frames (dissemination: Hensgen, Finkel, Manber 1988)."""
        distance = 1
        while distance < self.size:
            receiving = self.irecv((self.rank - distance) % self.size, SYNC_TAG + distance, bytearray())
            sending = self.isend((self.rank + distance) % self.size, SYNC_TAG + distance, b"")
            receiving.wait(self.deadline)
            sending.wait(self.deadline)
            distance *= 2

    def soon(self) -> float:
        """A deadline in SOON seconds."""
        return time.monotonic() + SOON

    def failure(self, action: Callable[[], object]) -> RondeError:
        """The RondeError that `action` raises."""
        error = error_of(action, RondeError)
        assert isinstance(error, RondeError)
        return error
