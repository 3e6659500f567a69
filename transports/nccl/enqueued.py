"""Calls that are enqueued on streams and not known to be complete: events, deadlines, and the arrays in use."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from transports.base import Request
from transports.nccl.api import NcclApi


@dataclass(slots=True)
class EnqueuedCall:
    """One call that has been enqueued.

    event         happens when the stream has completed the call
    keep          the owner of the memory that the call uses
    check_frames  the incomplete sends and receives of the frames by which neighbours compare their calls
    """

    event: int
    deadline: float
    doing: str
    keep: object
    check_frames: list[Request]


class EnqueuedCalls:
    """The calls of one group, in order. Not thread-safe.

    Calls of one group complete in order: they use one communicator, and NCCL executes its calls in their order on all
    streams.
    """

    def __init__(self, api: NcclApi) -> None:
        self._api = api
        self._calls: deque[EnqueuedCall] = deque()

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, stream: int, deadline: float, doing: str, keep: object, check_frames: list[Request]) -> None:
        """Add the call that was enqueued on a stream last. Raises NcclError."""
        self._calls.append(EnqueuedCall(self._api.record(stream), deadline, doing, keep, check_frames))

    def release_completed(self) -> bool:
        """Release completed calls; True if there were any. Raises NcclError if the device failed, and the errors of the
        oldest call's check frames: every mismatched call is the oldest one of some rank."""
        released = False
        while self._calls:
            oldest = self._calls[0]
            oldest.check_frames = [request for request in oldest.check_frames if not request.test()]
            if oldest.check_frames or not self._api.happened(oldest.event):
                break
            self._calls.popleft()
            self._api.forget(oldest.event)
            released = True
        return released

    def overdue(self) -> EnqueuedCall | None:
        """The oldest call, if its deadline has passed."""
        oldest = self._calls[0] if self._calls else None
        return oldest if oldest is not None and time.monotonic() >= oldest.deadline else None

    def clear(self) -> None:
        """Forget all calls after an abort, when the streams hold none of them any more. Raises NcclError."""
        while self._calls:
            self._api.forget(self._calls.popleft().event)
