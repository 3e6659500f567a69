"""Checks of how a transport begins and ends: opening, aborting, closing."""

from __future__ import annotations

import threading
import time
from typing import Final

from transports.errors import (
    AbortedError,
    ClosedError,
    ConnectError,
    DeadlineExceeded,
    RendezvousError,
    TransportError,
)
from transports.testing.bench import SOON, Bench, error_of, require
from transports.testing.kit import Check

OPEN_SECONDS: Final = 0.3


def an_abort_reaches_every_rank(bench: Bench) -> None:
    """Every wait, now and later, raises the cause, and so does every other rank."""
    _abort(bench)
    bench.transport.close(bench.deadline)
    bench.transport.close(bench.deadline)


def after_an_abort_everything_raises_its_cause(bench: Bench) -> None:
    """isend and irecv raise the transport's first failure; a failed request stays failed."""
    receiving = bench.irecv(bench.left, 1, bytearray(4))
    reason = _abort(bench)
    failure = bench.transport.failure
    require(failure is not None, "after an abort, failure is None")
    for action in (
        receiving.test,
        lambda: receiving.wait(bench.deadline),
        lambda: bench.isend(bench.right, 2, b"late"),
        lambda: bench.irecv(bench.right, 2, bytearray(4)),
    ):
        error = error_of(action, AbortedError)
        require(reason in str(error), f"the cause of the abort ({reason}) became: {error}")


def the_first_cause_wins(bench: Bench) -> None:
    """The first cause wins; later calls of abort do nothing."""
    reason = _abort(bench)
    bench.transport.abort(AbortedError("a later cause", rank=bench.rank))
    error = bench.failure(lambda: bench.isend(bench.right, 2, b"late"))
    require(reason in str(error), f"a later abort replaced the first: {error}")
    require(reason in str(bench.transport.failure), f"a later abort replaced the first: {bench.transport.failure}")


def a_thread_that_waits_hears_of_an_abort(bench: Bench) -> None:
    """Threads may call concurrently: an abort by one thread wakes the others of its rank."""
    receiving = bench.irecv(bench.rank, 1, bytearray(4))
    timer = threading.Timer(SOON, bench.transport.abort, [AbortedError("by another thread", rank=bench.rank)])
    timer.start()
    error = error_of(lambda: receiving.wait(bench.deadline), AbortedError)
    timer.join()
    require("by another thread" in str(error), f"the cause of the abort became: {error}")


def an_abort_ends_a_wait_for_any(bench: Bench) -> None:
    """`wait_any` notices an abort, and raises its cause at once afterwards."""
    coming = [bench.irecv(peer, 1, bytearray(4)) for peer in range(bench.size)]
    bench.sync()
    if bench.rank == bench.size - 1:
        time.sleep(SOON)
        bench.transport.abort(AbortedError("enough", rank=bench.rank))
    for _ in range(2):
        error = error_of(lambda: bench.transport.wait_any(coming, bench.deadline), AbortedError)
        require("enough" in str(error), f"the cause of the abort became: {error}")


def a_sound_transport_has_no_failure(bench: Bench) -> None:
    """`failure` is None while the transport is sound."""
    bench.swap(1)
    require(bench.transport.failure is None, f"a sound transport has failed: {bench.transport.failure}")


def a_closed_transport_refuses_calls(bench: Bench) -> None:
    """close is idempotent; after it isend and irecv raise ClosedError."""
    bench.swap(1)
    bench.transport.close(bench.deadline)
    bench.transport.close(bench.deadline)
    error_of(lambda: bench.isend(bench.right, 1, b"late"), ClosedError)
    error_of(lambda: bench.irecv(bench.right, 1, bytearray(4)), ClosedError)


def closing_without_opening_is_harmless(bench: Bench) -> None:
    """A constructor does no I/O, so there is nothing to release; isend and irecv raise."""
    bench.failure(lambda: bench.isend(bench.right, 1, b"early"))
    bench.transport.close(bench.deadline)
    bench.transport.close(bench.deadline)


def close_flushes_what_was_sent(bench: Bench) -> None:
    """close flushes all sent frames: the peer receives them after the sender has closed."""
    if bench.rank == 0:
        for number in range(3):
            bench.give(1, 1, number, 100_000)
        bench.transport.close(bench.deadline)
    elif bench.rank == 1:
        time.sleep(SOON)
        for number in range(3):
            bench.take(0, 1, number, 100_000).check()


def a_peer_that_closes_is_missed(bench: Bench) -> None:
    """A wait for a rank that closes raises an error that names it, long before the deadline."""
    bench.sync()
    if bench.rank == 0:
        receiving = bench.irecv(1, 1, bytearray(4))
        error = error_of(lambda: receiving.wait(bench.deadline), TransportError)
        require(not isinstance(error, DeadlineExceeded), f"the wait went on to its deadline: {error}")
        require("rank 1" in str(error), f"the error does not name rank 1: {error}")
        again = error_of(lambda: receiving.wait(bench.deadline), TransportError)
        require(str(again) == str(error), f"a failed request changed its error from {error} to {again}")
    elif bench.rank == 1:
        time.sleep(SOON)


def a_forgotten_send_to_a_peer_that_has_closed_harms_nobody(bench: Bench) -> None:
    """A send may be forgotten; a closed peer is no error then."""
    bench.sync()
    if bench.rank == 1:
        bench.transport.close(bench.deadline)
    elif bench.rank == 0:
        for _ in range(5):
            bench.give(1, 1, 0, 10)
            time.sleep(SOON / 5)
        sending, receiving = bench.give(0, 2, 0, 10), bench.take(0, 2, 0, 10)
        receiving.check()
        sending.wait(bench.deadline)
        require(bench.transport.failure is None, f"the transport has failed: {bench.transport.failure}")


def a_rank_that_does_not_open_is_named(bench: Bench) -> None:
    """open raises ConnectError, RendezvousError or DeadlineExceeded naming the rank that is missing."""
    absent = bench.size - 1
    if bench.rank != absent:
        error = error_of(
            lambda: bench.transport.open(time.monotonic() + OPEN_SECONDS),
            ConnectError,
            RendezvousError,
            DeadlineExceeded,
        )
        require(f"rank {absent}" in str(error), f"the error does not name rank {absent}: {error}")
        bench.failure(lambda: bench.isend(0, 1, b"late"))


def _abort(bench: Bench) -> str:
    """All ranks wait for each other until the last one aborts. Returns its reason."""
    last = bench.size - 1
    reason = f"rank {last} has had enough"
    bench.sync()
    if bench.rank == last:
        time.sleep(SOON)
        bench.transport.abort(AbortedError(reason, rank=last))
    error = error_of(lambda: bench.irecv(bench.right, 3, bytearray(8)).wait(bench.deadline), AbortedError)
    require(reason in str(error), f"the cause of the abort ({reason}) became: {error}")
    return reason


CHECKS: Final = (
    Check(an_abort_reaches_every_rank, ends=True),
    Check(after_an_abort_everything_raises_its_cause, ends=True, every_size=False, least=2),
    Check(the_first_cause_wins, ends=True, every_size=False, least=2),
    Check(a_thread_that_waits_hears_of_an_abort, ends=True, every_size=False),
    Check(an_abort_ends_a_wait_for_any, ends=True, every_size=False, least=2),
    Check(a_sound_transport_has_no_failure),
    Check(a_closed_transport_refuses_calls, ends=True),
    Check(closing_without_opening_is_harmless, ends=True, opens=False, every_size=False),
    Check(close_flushes_what_was_sent, ends=True, every_size=False, least=2),
    Check(a_peer_that_closes_is_missed, ends=True, every_size=False, least=2),
    Check(a_forgotten_send_to_a_peer_that_has_closed_harms_nobody, ends=True, every_size=False, least=2),
    Check(a_rank_that_does_not_open_is_named, ends=True, opens=False, every_size=False, least=3),
)
