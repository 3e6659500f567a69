"""Progress of a transport during waits for other events."""

from __future__ import annotations

from collections import deque

from transports.base import MAX_TAG, Request, Transport
from transports.errors import DeadlineExceeded


class ProgressRequest:
    """A receive that never completes: from the rank itself, with the highest tag, which no other code may use.

    By the contract of `Request`, testing it makes progress on the whole transport and raises the transport's failure.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._idle: deque[Request] = deque()

    def poll(self) -> None:
        """Make progress without waiting. Raises the transport's first failure."""
        request = self._take()
        request.test()
        self._idle.append(request)

    def wait_until(self, until: float) -> None:
        """Make progress until `until` (absolute monotonic seconds). Raises the transport's first failure."""
        request = self._take()
        try:
            request.wait(until)
        except DeadlineExceeded:
            if self._transport.failure is not None:  # the failure may itself be a deadline
                raise
        self._idle.append(request)

    def _take(self) -> Request:
        """A request that no other thread uses at the same time."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._transport.irecv(self._transport.rank, MAX_TAG, memoryview(bytearray()))
