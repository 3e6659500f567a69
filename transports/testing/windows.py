"""Checks of one-sided windows. A transport without the ability passes them unchecked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from transports.errors import AbortedError, DeadlineExceeded, MismatchError, PeerLost, RendezvousError, RondeError
from transports.onesided import OneSided, Window
from transports.testing.bench import SOON, Bench, error_of, pattern, require
from transports.testing.kit import Check

NBYTES: Final = 100_003
EXPOSE_SECONDS: Final = 0.3


def _with_window(body: Callable[[Bench, Window], None]) -> Callable[[Bench], None]:
    """The check that runs `body` with a window of all ranks."""

    def run(bench: Bench) -> None:
        onesided = _onesided(bench, tuple(range(bench.size)))
        if onesided is not None:
            window = onesided.expose(bench.name, tuple(range(bench.size)), NBYTES, bench.deadline)
            body(bench, window)
            window.close()
            window.close()

    run.__name__, run.__doc__ = body.__name__, body.__doc__
    return run


def _onesided(bench: Bench, ranks: tuple[int, ...]) -> OneSided | None:
    onesided = bench.transport.ability(OneSided)
    return onesided if onesided is not None and onesided.reaches(ranks) else None


@_with_window
def a_window_has_a_part_per_rank(bench: Bench, window: Window) -> None:
    """One writable part of nbytes per rank, beginning on a 64-byte boundary; index is this rank's position."""
    require(window.ranks == tuple(range(bench.size)), f"ranks is {window.ranks}")
    require(window.index == bench.rank, f"index is {window.index} on rank {bench.rank}")
    for index in range(bench.size):
        view = window.view(index)
        shape = (window.nbytes, view.format, view.ndim, view.nbytes, view.readonly)
        require(shape == (NBYTES, "B", 1, NBYTES, False), f"part {index}: {shape}")
        require(np.frombuffer(view, np.uint8).ctypes.data % 64 == 0, f"part {index} does not begin on 64 bytes")


@_with_window
def what_was_published_is_visible(bench: Bench, window: Window) -> None:
    """All writes of a rank before its publish are visible to a rank that has awaited the epoch."""
    for number in range(12):
        window.view(window.index)[:] = pattern(bench.rank, 0, 0, number, NBYTES)
        window.publish(2 * number + 1)
        for index in range(bench.size):
            window.wait(index, 2 * number + 1, bench.deadline)
            same = window.view(index) == pattern(index, 0, 0, number, NBYTES)
            require(same, f"in round {number} the part of rank {index} differs from the bytes that it wrote")
        window.publish(2 * number + 2)
        for index in range(bench.size):
            window.wait(index, 2 * number + 2, bench.deadline)


@_with_window
def an_epoch_passes_for_all_before_it(bench: Bench, window: Window) -> None:
    """wait returns once the epoch is at least the awaited one; epochs may be skipped."""
    window.publish(1 << 40)
    for index in range(bench.size):
        for epoch in (1, 1 << 20, 1 << 40):
            window.wait(index, epoch, bench.deadline)


@_with_window
def another_check_is_refused(bench: Bench, window: Window) -> None:
    """The value published with exactly the epoch must equal `check`, else MismatchError; the window is intact."""
    for epoch in range(1, 20):
        window.publish(epoch, 0xFFFFFFF0 + epoch % 8)
        for index in range(bench.size):
            window.wait(index, epoch, bench.deadline, 0xFFFFFFF0 + epoch % 8)
            error_of(lambda index=index, epoch=epoch: window.wait(index, epoch, bench.deadline, 3), MismatchError)  # type: ignore[misc]
        bench.sync()
    require(bench.transport.failure is None, f"a mismatch made the transport fail: {bench.transport.failure}")


@_with_window
def a_wait_for_an_epoch_ends_at_its_deadline(bench: Bench, window: Window) -> None:
    """DeadlineExceeded; the window is intact."""
    for deadline in (time.monotonic() - 1.0, bench.soon()):
        error_of(lambda end=deadline: window.wait((window.index + 1) % bench.size, 1, end), DeadlineExceeded)  # type: ignore[misc]
    bench.sync()
    window.publish(1)
    window.wait((window.index + 1) % bench.size, 1, bench.deadline)


@_with_window
def an_abort_ends_a_wait_for_an_epoch(bench: Bench, window: Window) -> None:
    """Every wait, now and later, raises the cause of an abort."""
    last = bench.size - 1
    if bench.rank == last:
        time.sleep(SOON)
        bench.transport.abort(AbortedError("no more epochs", rank=last))
    error = error_of(lambda: window.wait((window.index + 1) % bench.size, 1, bench.deadline), AbortedError)
    require("no more epochs" in str(error), f"the cause of the abort became: {error}")


@_with_window
def what_is_lent_can_be_read_or_nobody_can(bench: Bench, window: Window) -> None:
    """Peers can read two exposed pieces of any memory of a rank; PeerLost where the system does not allow it."""
    able = exposed = True
    for number in range(5):
        pieces = [bytearray(pattern(bench.rank, piece, 0, number, NBYTES)) for piece in range(2)]
        exposed = window.expose_arrays(*map(memoryview, pieces)) and exposed  # type: ignore[arg-type]
        window.publish(2 * number + 1)
        for index in range(bench.size):
            window.wait(index, 2 * number + 1, bench.deadline)
            for piece, offset, length in ((0, 0, NBYTES), (1, 0, 0), (1, 4097, 70_001), (0, NBYTES - 1, 1)):
                found = bytearray(length)
                try:
                    window.read(index, piece, offset, memoryview(found))
                except PeerLost:
                    able = False
                right = pattern(index, piece, 0, number, NBYTES)[offset : offset + length]
                require(not able or found == right, f"piece {piece} of rank {index} differs from the exposed bytes")
        window.publish(2 * number + 2)
        for index in range(bench.size):
            window.wait(index, 2 * number + 2, bench.deadline)
    require(exposed or not able, "expose_arrays returned False, but the peers could read the pieces")
    require(bench.transport.failure is None, f"reading made the transport fail: {bench.transport.failure}")


@_with_window
def a_read_after_an_abort_raises_its_cause(bench: Bench, window: Window) -> None:
    """The exposed memory of a failed rank may be gone."""
    kept = bytearray(1000)
    window.expose_arrays(memoryview(kept))
    window.publish(1)
    for index in range(bench.size):
        window.wait(index, 1, bench.deadline)
    bench.sync()
    if bench.rank == bench.size - 1:
        bench.transport.abort(AbortedError("nothing is exposed any more", rank=bench.rank))
    error_of(lambda: window.wait((window.index + 1) % bench.size, 2, bench.deadline), AbortedError)
    error = error_of(lambda: window.read(0, 0, 0, memoryview(bytearray(1000))), AbortedError)
    require("nothing is exposed" in str(error), f"the cause of the abort became: {error}")


@_with_window
def a_read_from_a_rank_that_has_closed_raises(bench: Bench, window: Window) -> None:
    """Also before any other sign of the close: the exposed memory may have been reused already."""
    kept = bytearray(1000)
    window.expose_arrays(memoryview(kept))
    window.publish(1)
    last = bench.size - 1
    for index in range(bench.size):
        window.wait(index, 1, bench.deadline)
    store, key = bench.transport.group.store, f"{bench.name}/closed"
    if bench.rank == last:
        bench.transport.close(bench.deadline)
        store.set(key, b"")
    else:
        store.get(key, bench.deadline)
        error = error_of(lambda: window.read(last, 0, 0, memoryview(bytearray(1000))), PeerLost)
        lost = getattr(error, "peer", None)
        require(lost == last, f"the error names rank {lost} as lost, not rank {last}")


def some_ranks_may_have_a_window_of_their_own(bench: Bench) -> None:
    """Positions count within `ranks`, which are ranks of the transport's group."""
    for ranks in (tuple(range(0, bench.size, 2)), (bench.size - 1, 0)):
        onesided = _onesided(bench, ranks)
        if bench.rank in ranks and onesided is not None:
            window = onesided.expose(f"{bench.name}/{len(ranks)}/{ranks[0]}", ranks, 8, bench.deadline)
            require(window.ranks == ranks, f"ranks is {window.ranks}, not {ranks}")
            require(window.index == ranks.index(bench.rank), f"index is {window.index} in {ranks}")
            window.view(window.index)[:] = bench.rank.to_bytes(8)
            window.publish(1)
            for index, rank in enumerate(ranks):
                window.wait(index, 1, bench.deadline)
                require(window.view(index) == rank.to_bytes(8), f"position {index} of {ranks} is not rank {rank}")
            window.publish(2)
            for index in range(len(ranks)):
                window.wait(index, 2, bench.deadline)
            window.close()


def a_rank_that_does_not_come_to_a_window_is_named(bench: Bench) -> None:
    """expose raises RendezvousError or DeadlineExceeded, naming the rank that did not come."""
    ranks = tuple(range(bench.size))
    onesided = _onesided(bench, ranks)
    if onesided is not None and bench.rank != 1:
        end = time.monotonic() + EXPOSE_SECONDS
        error = error_of(lambda: onesided.expose(bench.name, ranks, 8, end), RendezvousError, DeadlineExceeded)
        require("rank 1" in str(error), f"the error does not name rank 1: {error}")
    elif onesided is not None:
        time.sleep(EXPOSE_SECONDS + SOON)
    if onesided is not None:  # the ranks disagree about the window, so they cannot close normally
        bench.transport.abort(AbortedError("there was no window", rank=bench.rank))


def closing_the_transport_closes_its_windows(bench: Bench) -> None:
    """close releases every segment; a wait in a window of a closed transport raises."""
    onesided = _onesided(bench, tuple(range(bench.size)))
    if onesided is not None:
        window = onesided.expose(bench.name, tuple(range(bench.size)), 8, bench.deadline)
        bench.transport.close(bench.deadline)
        error_of(lambda: window.wait(window.index, 1, bench.deadline), RondeError)
        window.close()


CHECKS: Final = (
    Check(a_window_has_a_part_per_rank),
    Check(what_was_published_is_visible),
    Check(an_epoch_passes_for_all_before_it),
    Check(another_check_is_refused),
    Check(a_wait_for_an_epoch_ends_at_its_deadline, every_size=False, least=2),
    Check(an_abort_ends_a_wait_for_an_epoch, every_size=False, least=2, ends=True),
    Check(what_is_lent_can_be_read_or_nobody_can),
    Check(a_read_after_an_abort_raises_its_cause, every_size=False, least=2, ends=True),
    Check(a_read_from_a_rank_that_has_closed_raises, every_size=False, least=2, ends=True),
    Check(some_ranks_may_have_a_window_of_their_own, least=2),
    Check(a_rank_that_does_not_come_to_a_window_is_named, every_size=False, least=2, ends=True),
    Check(closing_the_transport_closes_its_windows, every_size=False, ends=True),
)
