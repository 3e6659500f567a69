"""What has been enqueued on streams and is not known to be done: events, deadlines, and the arrays in use."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from transports.base import Request
from transports.nccl.api import NcclApi


@dataclass(slots=True)
class Flight:
    """One call that has been enqueued.

    event      has happened when the stream has come past it
    keep       what its memory belongs to
    greetings  the frames by which neighbours compare their calls, until they are through
    """

    event: int
    deadline: float
    doing: str
    keep: object
    greetings: list[Request]


class Flights:
    """The calls of one group, in order. Not thread-safe.

    Calls of one group come to their end in order: they use one communicator, whose work NCCL does in the order of the
    calls whatever their streams.
    """

    def __init__(self, api: NcclApi) -> None:
        self._api = api
        self._flying: deque[Flight] = deque()

    def __bool__(self) -> bool:
        return bool(self._flying)

    def add(self, stream: int, deadline: float, doing: str, keep: object, greetings: list[Request]) -> None:
        """Watch what has been enqueued on a stream so far. Raises NcclError."""
        self._flying.append(Flight(self._api.record(stream), deadline, doing, keep, greetings))

    def land(self) -> bool:
        """Let go of what is done; True if anything was. Raises NcclError if the device failed, and what a greeting of
        the oldest call raises: whoever has called something else meets somebody whose oldest call that is."""
        landed = False
        while self._flying:
            oldest = self._flying[0]
            oldest.greetings = [request for request in oldest.greetings if not request.test()]
            if oldest.greetings or not self._api.happened(oldest.event):
                break
            self._flying.popleft()
            self._api.forget(oldest.event)
            landed = True
        return landed

    def late(self) -> Flight | None:
        """The oldest call, if its time is over."""
        oldest = self._flying[0] if self._flying else None
        return oldest if oldest is not None and time.monotonic() >= oldest.deadline else None

    def drop(self) -> None:
        """Forget all. Only after an abort, when nothing is enqueued any more. Raises NcclError."""
        while self._flying:
            self._api.forget(self._flying.popleft().event)
