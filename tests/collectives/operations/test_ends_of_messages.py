"""Every form of a message ends and tells, with its callbacks: by an abort, by a close here or there, by its timeout."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives import AbortedError, ClosedError, Communicator, DeadlineExceeded, PeerLost, TransportError, Work
from tests.worlds import BOUND, World, world_of

KINDS = [("local", ()), ("tcp", ()), ("shm", ()), ("auto", ()), ("auto", ("a", "b"))]
LARGE = np.zeros(4 << 20)
"""More than any transport takes before a receive."""

FORMS: dict[str, Callable[[Communicator], Work[Any]]] = {
    "recv": lambda comm: comm.recv_async(np.zeros(4), 1, timeout=BOUND),
    "recv from any": lambda comm: comm.recv_async(np.zeros(4), None, timeout=BOUND),
    "recv a new array": lambda comm: comm.recv_async(src=1, timeout=BOUND),
    "recv_object": lambda comm: comm.recv_object_async(1, timeout=BOUND),
    "sendrecv": lambda comm: comm.sendrecv_async(np.zeros(4), 1, timeout=BOUND),
    "send": lambda comm: comm.send_async(LARGE, 1, timeout=BOUND),
}


def id_of(kind: tuple[str, tuple[str, ...]]) -> str:
    return kind[0] + "".join(kind[1])


@pytest.fixture(params=KINDS, ids=id_of)
def two(request: pytest.FixtureRequest) -> Any:
    transport, hosts = request.param
    with world_of(transport, 2, hosts=hosts) as world:
        yield world


def begin(world: World, form: str) -> tuple[Work[Any], threading.Event, threading.Event]:
    """A message of rank 0 that does not end: it with events for its callback, and for the end of a wait."""
    work = FORMS[form](world.communicators[0])
    told, waited = threading.Event(), threading.Event()
    work.add_done_callback(lambda _: told.set())

    def wait() -> None:
        with contextlib.suppress(TransportError):
            work.wait()
        waited.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not waited.wait(0.05)
    return work, told, waited


def check_end(message: tuple[Work[Any], threading.Event, threading.Event], kind: type[TransportError]) -> None:
    work, told, waited = message
    assert told.wait(BOUND), "the callback was not called"
    assert waited.wait(BOUND), "the wait did not end"
    assert work.test()
    for _ in range(2):
        with pytest.raises(kind):
            work.wait()


@pytest.mark.parametrize("form", FORMS)
def test_an_abort_by_another_rank_ends_a_message_t1_abort_recv(two: World, form: str) -> None:
    message = begin(two, form)
    two.communicators[1].abort("because")
    check_end(message, AbortedError)


@pytest.mark.parametrize("form", FORMS)
def test_an_abort_of_this_rank_ends_a_message(two: World, form: str) -> None:
    message = begin(two, form)
    two.communicators[0].abort("because")
    check_end(message, AbortedError)


@pytest.mark.parametrize("form", FORMS)
def test_a_close_in_another_thread_ends_a_message(two: World, form: str) -> None:
    work, told, waited = begin(two, form)
    if form.startswith("recv"):
        two.communicators[0].close(5.0)
        check_end((work, told, waited), ClosedError)
    else:  # the other rank takes nothing. The memory is the caller's again: the transport `local` has kept a copy
        with pytest.raises(DeadlineExceeded) if form == "send" else contextlib.suppress(DeadlineExceeded):
            two.communicators[0].close(0.3)
        assert told.wait(BOUND)
        assert waited.wait(BOUND)
    assert two.communicators[1].failure is None


@pytest.mark.parametrize("form", [form for form in FORMS if form.startswith("recv")])
def test_a_message_that_is_awaited_after_the_close_has_ended(two: World, form: str) -> None:
    work = FORMS[form](two.communicators[0])
    two.communicators[0].close(5.0)
    with pytest.raises(ClosedError):
        work.wait()
    assert work.test()
    told = threading.Event()
    work.add_done_callback(lambda _: told.set())
    assert told.is_set()


@pytest.mark.parametrize("form", FORMS)
def test_the_end_of_the_other_rank_ends_a_message(two: World, form: str) -> None:
    message = begin(two, form)
    two.communicators[1].close(5.0)
    check_end(message, PeerLost)


def test_the_timeout_of_a_message_holds_for_its_callback_too(two: World) -> None:
    told = threading.Event()
    work = two.communicators[0].recv_async(np.zeros(4), 1, timeout=0.2)
    work.add_done_callback(lambda _: told.set())
    assert told.wait(BOUND)
    with pytest.raises(DeadlineExceeded):
        work.wait()


def test_a_wait_that_gives_up_first_leaves_the_message(two: World) -> None:
    zero, one = two.communicators
    work = zero.recv_async(np.zeros(4), 1, timeout=BOUND)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        work.wait(0.1)
    assert time.monotonic() - begun < BOUND / 2
    told: list[Any] = []
    done = threading.Event()
    work.add_done_callback(lambda ended: (told.append(ended.wait()), done.set()))
    one.send(np.arange(4.0), 0)
    assert done.wait(BOUND)
    np.testing.assert_array_equal(told[0], np.arange(4.0))
    assert zero.failure is None
