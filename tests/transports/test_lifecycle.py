"""The state machine of a transport: order of states, first failure, refusals, and what a forked child keeps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from transports.base import Group, Member
from transports.errors import AbortedError, ClosedError, PeerLost, RondeError
from transports.lifecycle import Lifecycle, State
from transports.rendezvous.memory import MemoryStore

FORKED = "this process was forked by rank 0 (node0, pid 42) and is not a rank: only that process may call collectives"


def lifecycle(abandon: Callable[[], None] = lambda: None) -> Lifecycle:
    group = Group(0, (Member("host", "node0", 42),), MemoryStore())
    return Lifecycle(group, "test transport", threading.RLock(), abandon)


def test_states_in_order() -> None:
    life = lifecycle()
    assert (life.state, str(life.obstacle)) == (State.NEW, "the test transport of rank 0 is not open")
    life.begin_open()
    assert (life.state, str(life.obstacle)) == (State.OPENING, "the test transport of rank 0 is not open")
    life.opened()
    assert (life.state, life.obstacle, life.closing) == (State.OPEN, None, False)
    assert life.begin_close()
    assert (life.state, str(life.obstacle)) == (State.CLOSING, "the test transport of rank 0 was closed")
    life.raise_failure()  # what is being flushed may still be waited for
    assert life.closing
    assert not life.closed
    assert life.close()
    assert life.closed
    with pytest.raises(ClosedError, match=r"test transport of rank 0 .*closed"):
        life.raise_failure()


def test_opened_once() -> None:
    life = lifecycle()
    life.begin_open()
    with pytest.raises(ClosedError, match=r"test transport of rank 0 .*opened"):
        life.begin_open()


def test_not_opened_after_a_close() -> None:
    life = lifecycle()
    life.close()
    with pytest.raises(ClosedError, match=r"test transport of rank 0 .*opened"):
        life.begin_open()


def test_closed_once() -> None:
    life = lifecycle()
    assert life.begin_close()
    assert not life.begin_close()
    assert life.close()
    assert not life.close()
    assert not life.begin_close()


def test_the_first_failure_stays() -> None:
    life, first = lifecycle(), PeerLost("gone", rank=0, peer=1)
    assert life.fail(first)
    assert not life.fail(AbortedError("later"))
    assert life.failure is first
    for act in (life.begin_open, life.raise_failure):
        with pytest.raises(PeerLost, match="gone") as caught:
            act()
        assert caught.value is not first  # each raise has a traceback of its own
        assert (caught.value.rank, caught.value.peer) == (0, 1)
    life.close()
    assert isinstance(life.error(), PeerLost)


def test_a_closed_transport_does_not_fail() -> None:
    life = lifecycle()
    life.close()
    assert not life.fail(AbortedError("too late"))
    assert life.failure is None
    assert isinstance(life.error(), ClosedError)


def test_a_failure_while_opening_or_closing() -> None:
    life = lifecycle()
    life.begin_open()
    life.fail(AbortedError("now"))
    with pytest.raises(AbortedError):
        life.opened()
    life = lifecycle()
    life.begin_close()
    assert life.fail(AbortedError("now"))
    assert isinstance(life.error(), AbortedError)


def test_cause() -> None:
    life, lost = lifecycle(), PeerLost("gone")
    assert life.cause(lost, "gave up") is lost
    cause = life.cause(KeyboardInterrupt(), "gave up")
    assert isinstance(cause, AbortedError)
    assert str(cause) == "rank 0 (node0, pid 42) gave up: KeyboardInterrupt"


@pytest.mark.processes
@pytest.mark.parametrize("locked", [False, True])
def test_after_a_fork_nothing_is_done(locked: bool) -> None:
    """Also while another thread, which the child does not have, holds the lock."""
    abandoned: list[bool] = []
    life = lifecycle(lambda: abandoned.append(True))
    life.begin_open()
    life.opened()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with life.lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    if locked:
        thread.start()
        assert held.wait(10)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            life.after_fork()
            with life.lock:
                quiet = not life.fail(AbortedError("no")) and not life.begin_close() and not life.close()
            raised: RondeError | None = None
            try:
                life.raise_failure()
            except RondeError as error:
                raised = error
            code = 0 if quiet and abandoned == [True] and str(raised) == FORKED == str(life.error()) else 2
        finally:
            os._exit(code)
    done.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    if locked:
        thread.join()
    assert life.state is State.OPEN
    assert not abandoned
