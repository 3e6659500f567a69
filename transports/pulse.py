"""Drives a transport on behalf of whoever waits for something else."""

from __future__ import annotations

from collections import deque

from transports.base import MAX_TAG, Request, Transport
from transports.errors import DeadlineExceeded


class Pulse:
    """A receive that never completes, from the rank itself with the highest tag, which therefore must not be used.

    The contract of `Request` says that whoever tests or waits moves the whole transport along and hears of its
    failure; this is a request to do just that with.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._idle: deque[Request] = deque()

    def beat(self) -> None:
        """Make what progress is possible without waiting. Raises the transport's first failure."""
        request = self._take()
        request.test()
        self._idle.append(request)

    def rest(self, until: float) -> None:
        """Wait until `until` (absolute monotonic seconds), moving the transport along. Raises its first failure."""
        request = self._take()
        try:
            request.wait(until)
        except DeadlineExceeded:
            if self._transport.failure is not None:  # it may itself have been a deadline
                raise
        self._idle.append(request)

    def _take(self) -> Request:
        """A request of this thread's own."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._transport.irecv(self._transport.rank, MAX_TAG, memoryview(bytearray()))
