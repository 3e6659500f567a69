"""A rank as its peers in the process see it: they put frames into its inbox and ring its doorbell.

No rank waits for the lock of another one's engine. A rank that finds it free may take it for a moment.
"""

from __future__ import annotations

import sysconfig
from collections import deque
from contextlib import suppress
from threading import TIMEOUT_MAX, Lock, RLock

from transports.engine import Engine
from transports.requests import Sending


class ThreadBell:
    """The doorbell of a rank whose peers are threads of its process. Each sleep has a lock of its own, which the first
    of those that ring releases. A ring is one call, so that an interrupt leaves the bell rung or as it was.

    It is sure with Python's lock. Without the lock a rank may look at the bell before others see its frame.
    """

    sure = not sysconfig.get_config_var("Py_GIL_DISABLED")

    def __init__(self) -> None:
        self._sleep = Lock()
        self._armed = False

    def arm(self, *, by_descriptor: bool) -> bool:
        """See Bell. There is no descriptor."""
        if by_descriptor:
            return False
        self._sleep = Lock()
        self._sleep.acquire()
        self._armed = True
        return True

    def disarm(self) -> None:
        """See Bell."""
        self._armed = False

    def ring(self) -> None:
        """See Bell."""
        if self._armed:
            with suppress(RuntimeError):  # another rank has rung at the same time
                self._sleep.release()

    def sleep(self, seconds: float) -> None:
        """See Bell."""
        self._sleep.acquire(timeout=min(seconds, TIMEOUT_MAX))


class LocalSending(Sending):
    """A send, which is also its frame in the receiver's inbox, and a Loan.

    view     the payload; None once the buffer was given or taken back
    awaited  the thread that receives the frame must ring
    """

    __slots__ = ("awaited", "check", "lender", "view")

    def __init__(self, lender: Seat, peer: int, tag: int, view: memoryview, check: int, *, done: bool = False) -> None:
        """`lender` is the sender. `done`: `view` is a copy."""
        super().__init__(lender.engine, peer, tag, len(view), done=done)
        self.lender = lender
        self.view: memoryview | None = view
        self.check = check
        self.awaited = False

    def request_wakeup(self) -> None:
        self.awaited = True

    def end(self, target: memoryview | None) -> bool:
        """See Loan. It takes no lock but the lender's, which nobody holds for long."""
        lender = self.lender
        with lender.lock:
            view, self.view = self.view, None
            if view is None:
                return False
            if target is not None:
                target[:] = view
            lender.lent.discard(self)
        self.done = True
        if self.awaited:
            lender.bell.ring()
        return True


class Seat:
    """A rank that has joined a hub.

    bell   wakes it
    inbox  the frames that were sent to it, until its link takes them
    lent   its own frames that nobody has received, with its callers' buffers
    lock   held while one of these buffers is read or taken back
    left   True once it has closed
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.rank = engine.rank
        self.bell = ThreadBell()
        self.inbox: deque[LocalSending] = deque()
        self.lent: set[LocalSending] = set()
        self.lock = RLock()
        self.left = False

    def forget(self, peer: int) -> None:
        """Take the buffers of all frames to a rank back."""
        with self.lock:
            for frame in tuple(self.lent):
                if frame.peer == peer:
                    frame.view = None
                    self.lent.discard(frame)

    def take_back(self, *, copied: bool) -> None:
        """Take all buffers back. The frames have copies of them instead, or cannot be received any more."""
        with self.lock:
            for frame in self.lent:
                frame.view = memoryview(bytes(frame.view)) if copied and frame.view is not None else None
            self.lent.clear()
