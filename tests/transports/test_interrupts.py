"""An abort is whole: an interrupt at any point of it leaves no rank without news, and no wakeup is lost."""

from __future__ import annotations

import threading

import pytest

from tests.points import LONG, Interrupt, Points
from tests.transports.groups import backend_of, on_ranks, recv, send, soon
from tests.worlds import THERE
from transports.base import Transport
from transports.errors import AbortedError
from transports.local.seat import ThreadBell
from transports.loop import READ, Waker
from transports.onesided import OneSided
from transports.testing import Leaks

TIME = 5.0


@pytest.mark.parametrize("transport", THERE)
def test_an_interrupted_abort(transport: str) -> None:
    """Rank 1 sleeps in a call without any other way to hear of the abort than by a message or a ring."""
    number, fired = 0, True
    while fired:
        points, waiting = Points("line", number), threading.Event()

        def body(transport: Transport, points: Points = points, waiting: threading.Event = waiting) -> str:
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
            try:
                points.start()
                transport.abort(cause)
            except Interrupt:
                points.stop()
                transport.interrupted()  # as every call does that is left by an interrupt
                transport.abort(cause)  # as `with comm` does
            finally:
                points.stop()
            return "an interrupt at any point"

        said = on_ranks(backend_of(transport), body)
        assert all("an interrupt at any point" in text for text in said), (points.place, said)
        fired = points.fired
        number += 1 if LONG else 3
    assert number > 5


def test_a_doorbell_that_was_left_by_an_interrupt() -> None:
    number, fired = 0, True
    while fired:
        bell, points = ThreadBell(), Points("instruction", number)
        assert bell.arm(by_descriptor=False)
        try:
            points.start()
            bell.ring()
        except Interrupt:
            points.stop()
            bell.ring()
        finally:
            points.stop()
        bell.ring()  # by another rank
        slept = threading.Thread(target=bell.sleep, args=(600.0,), daemon=True)
        slept.start()
        slept.join(TIME)
        assert not slept.is_alive(), points.place
        bell.disarm()
        fired = points.fired
        number += 1
    assert number > 5


def test_a_waker_that_was_left_by_an_interrupt() -> None:
    number, fired = 0, True
    while fired:
        waker, points = Waker(), Points("line", number)
        try:
            points.start()
            waker.wake()
            waker.ready(READ)
        except Interrupt:
            points.stop()
        finally:
            points.stop()
        waker.wake()
        waker.ready(READ)  # raises BlockingIOError if there was no wakeup
        waker.close()
        fired = points.fired
        number += 1
    assert number > 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops those of finalizers
@pytest.mark.parametrize("transport", THERE)
def test_an_interrupted_close(transport: str) -> None:
    """Nothing is left behind once it is closed again; the fixture of all tests looks."""
    number, fired = 0, True
    while fired:
        points, together = Points("line", number), threading.Barrier(2)

        def body(transport: Transport, points: Points = points, together: threading.Barrier = together) -> None:
            request = transport.isend(1 - transport.rank, 6, memoryview(b"here"))
            recv(transport, 1 - transport.rank, 6, 4)
            request.wait(soon())
            windows = transport.ability(OneSided)
            if windows is not None:
                windows.expose("a window", (0, 1), 64, soon())
            together.wait(TIME)
            if transport.rank == 0:
                try:
                    points.start()
                    transport.close(soon())
                except Interrupt:
                    points.stop()
                    transport.interrupted()
                finally:
                    points.stop()

        with Leaks():
            on_ranks(backend_of(transport), body)
        fired = points.fired
        number += 1 if LONG else 19
    assert number > 5
