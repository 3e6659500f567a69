"""The engine's thread: its states, and the two ways to wake it."""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections.abc import Callable

from collectives.negotiation.control_channel import ControlChannel
from collectives.negotiation.in_flight import NEVER
from transports.errors import RondeError


class State(enum.Enum):
    """The activity of the engine's thread.

    BUSY        it executes a decision, or is about to look for the next one
    RECEIVING   it waits for messages or handles them
    SLEEPING    nothing is in flight: it waits on a condition variable
    """

    BUSY = enum.auto()
    RECEIVING = enum.auto()
    SLEEPING = enum.auto()


class Worker:
    """A daemon thread that can sleep and be woken. The engine's lock guards it, except for `join`.

    state   of the thread; it sets BUSY and RECEIVING itself
    due     the moment until which it may wait for messages, because then operations expire or stalls are reported
    """

    def __init__(self, lock: threading.RLock, channel: ControlChannel) -> None:
        self.state = State.BUSY
        self.due = NEVER
        self._condition = threading.Condition(lock)
        self._channel = channel
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        """True once `start` was called."""
        return self._thread is not None

    @property
    def is_current(self) -> bool:
        """True in this thread itself."""
        return self._thread is threading.current_thread()

    def start(self, name: str, serve: Callable[[], None]) -> None:
        """Start the thread, which calls `serve`."""
        thread = threading.Thread(target=serve, name=name, daemon=True)
        thread.start()
        self._thread = thread

    def sleep(self, seconds: float | None) -> None:
        """Called by the thread itself: wait until woken, or for `seconds`."""
        self.state = State.SLEEPING
        self._condition.wait(seconds)
        self.state = State.BUSY

    def wake(self, *, interrupt: bool) -> None:
        """Wake the thread if it sleeps and, with `interrupt`, also if it waits for messages."""
        if self.state is State.SLEEPING:
            self._condition.notify()
        elif self.state is State.RECEIVING and interrupt:
            with contextlib.suppress(RondeError):  # the thread notices the transport's failure itself
                self._channel.wake()

    def join(self, deadline: float) -> bool:
        """Wait for the end of the thread; False at the deadline. True at once if the caller is that thread."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, deadline - time.monotonic()))
        return not thread.is_alive()
