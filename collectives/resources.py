"""The resources of one communicator: whatever has to be released when it is closed, or when nobody refers to it."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence

from collectives.execution import Windows
from collectives.gpu import DeviceCalls
from collectives.metering import Meter, Recorder
from collectives.negotiation import Engine
from collectives.operations import CallQueue, PointToPoint


class Resources:
    """The resources of one communicator. They do not refer to it, so they outlive one that is dropped.

    context   the number of the communicator among its family
    meter     its counts
    """

    def __init__(
        self,
        context: int,
        meter: Meter,
        recorder: Recorder,
        queue: CallQueue,
        engine: Engine,
        messages: PointToPoint,
        windows: Windows,
        operations: Sequence[DeviceCalls],
    ) -> None:
        """`operations` are those in the order of calls, and those by name."""
        self.context = context
        self.meter = meter
        self._recorder = recorder
        self._queue = queue
        self._engine = engine
        self._messages = messages
        self._windows = windows
        self._operations = operations

    @property
    def entered(self) -> bool:
        """True if this thread is in the middle of a call."""
        return self._queue.entered

    def retire(self, state: str) -> None:
        """Refuse further calls; `state` is the text of their errors. Raises ClosedError if it is closed."""
        self._queue.retire(state)
        self._messages.retire(state)

    def leave(self) -> None:
        """Accept no more named operations and messages. Returns at once. Idempotent."""
        self._engine.leave()
        self._messages.retire("closed")

    def release(self, deadline: float) -> None:
        """Finish the operations in flight and release everything. Raises DeadlineExceeded, with everything released."""
        try:
            with contextlib.ExitStack() as both:
                both.callback(self._queue.close, deadline)
                self._engine.close(deadline)
        finally:
            with contextlib.ExitStack() as rest:
                rest.callback(self._recorder.detach, self.meter)
                rest.callback(self._windows.close)
                for operations in reversed(self._operations):
                    rest.callback(operations.close, deadline)

    def release_at_once(self) -> bool:
        """Release everything if nothing is to be waited for: no operation, and no other rank. Else return False."""
        self.leave()
        if any(operations.used for operations in self._operations) or not self._engine.ended:
            return False
        if not self._queue.idle:
            return False
        self.release(time.monotonic() + _SECONDS)
        return True


_SECONDS = 10.0
"""Bound of the end of threads that have nothing to do."""


class Dropped:
    """The resources of communicators that nobody refers to any more.

    A finalizer can run in any thread, in the middle of any call: it only calls `add`. A call of the family releases
    them where it holds nothing. That needs no other rank: one that has dropped its communicator makes no more calls of
    it, and a call that has ended on this rank needs nothing more from it.
    """

    def __init__(self) -> None:
        self._found: deque[Resources] = deque()

    def add(self, resources: Resources) -> None:
        """Note that nobody refers to the communicator."""
        self._found.append(resources)

    def release(self) -> list[Resources]:
        """Release those that nothing is in flight of; returns them. Others are left for the next time. Threads may call
        it at once: each takes others."""
        released: list[Resources] = []
        for _ in range(len(self._found)):
            try:
                resources = self._found.popleft()
            except IndexError:  # another thread has taken it
                break
            if resources.release_at_once():
                released.append(resources)
            else:
                self._found.append(resources)
        return released
