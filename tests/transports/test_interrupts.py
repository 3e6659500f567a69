"""An abort is whole: an interrupt at any point of it leaves no rank without news, and no wakeup is lost."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.points import LONG, Points, each_point
from tests.transports.groups import backend_of, groups, on_ranks, recv, send, soon
from tests.worlds import THERE
from transports.base import Transport
from transports.errors import AbortedError, ClosedError
from transports.local.seat import ThreadBell
from transports.loop import READ, Waker
from transports.onesided import OneSided
from transports.testing import Leaks

TIME = 5.0


@pytest.mark.parametrize("transport", THERE)
def test_an_interrupted_abort(transport: str) -> None:
    """Rank 1 sleeps in a call without any other way to hear of the abort than by a message or a ring."""
    for each in each_point("line", 1 if LONG else 3):
        waiting = threading.Event()

        def body(transport: Transport, points: Points = each, waiting: threading.Event = waiting) -> str:
            if transport.rank == 1:
                send(transport, 0, 6, b"here")
                request = transport.irecv(0, 7, memoryview(bytearray(4)))
                recv(transport, 0, 8, 4)
                waiting.set()
                with pytest.raises(AbortedError) as caught:
                    request.wait(soon())
                return str(caught.value)
            recv(transport, 1, 6, 4)
            send(transport, 1, 8, b"here")  # so that both have a connection to the other one
            waiting.wait(TIME)
            cause = AbortedError("an interrupt at any point", rank=0)
            if points.interrupt(lambda: transport.abort(cause)):
                transport.interrupted()  # as every call does that is left by an interrupt
                transport.abort(cause)  # as `with comm` does
            return "an interrupt at any point"

        said = on_ranks(backend_of(transport), body)
        assert all("an interrupt at any point" in text for text in said), (each.place, said)


def test_a_doorbell_that_was_left_by_an_interrupt() -> None:
    for points in each_point("instruction"):
        bell = ThreadBell()
        assert bell.arm(by_descriptor=False)
        points.interrupt(bell.ring)
        bell.ring()  # by another rank
        slept = threading.Thread(target=bell.sleep, args=(600.0,), daemon=True)
        slept.start()
        slept.join(TIME)
        assert not slept.is_alive(), points.place
        bell.disarm()


def test_a_waker_that_was_left_by_an_interrupt() -> None:
    for points in each_point("line"):
        waker = Waker()
        points.interrupt(lambda waker=waker: (waker.wake(), waker.ready(READ)))  # type: ignore[misc]
        waker.wake()
        waker.ready(READ)  # raises BlockingIOError if there was no wakeup
        waker.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops those of finalizers
@pytest.mark.parametrize("transport", THERE)
def test_an_interrupted_close(transport: str) -> None:
    """Nothing is left behind once it is closed again; the fixture of all tests looks."""
    for each in each_point("line", 1 if LONG else 19):
        together = threading.Barrier(2)

        def body(transport: Transport, points: Points = each, together: threading.Barrier = together) -> None:
            request = transport.isend(1 - transport.rank, 6, memoryview(b"here"))
            recv(transport, 1 - transport.rank, 6, 4)
            request.wait(soon())
            windows = transport.ability(OneSided)
            if windows is not None:
                windows.expose("a window", (0, 1), 64, soon())
            together.wait(TIME)
            if transport.rank == 0 and points.interrupt(lambda: transport.close(soon())):
                transport.interrupted()

        with Leaks():
            on_ranks(backend_of(transport), body)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals need the main thread")
@pytest.mark.parametrize("name", sorted({"shm", "tcp"}.intersection(THERE)))
def test_a_signal_handler_may_close_the_transport_that_its_thread_drives(name: str) -> None:
    t = backend_of(name)(groups(1)[0])
    t.open(soon())
    before = signal.signal(signal.SIGUSR2, lambda number, frame: t.close(soon()))
    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR2])
    timer.start()
    try:
        with pytest.raises(ClosedError):
            recv(t, 0, 1, 4)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR2, before)
