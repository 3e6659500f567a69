"""Checks of receives that are awaited at once, alone (`recv`) or with a send (`sendrecv`)."""

from __future__ import annotations

from typing import Final

from transports.base import MAX_CHECK
from transports.errors import DeadlineExceeded, MismatchError
from transports.testing.bench import Bench, error_of, pattern, require
from transports.testing.kit import Check

SIZES: Final = (0, 1, 100, 16_360, 16_384, 32_768, 40_000, 3_000_001)
"""Bytes; around the sizes that transports read directly."""


def a_receive_may_be_awaited_at_once(bench: Bench) -> None:
    """`recv` receives the next frame with its tag, before or after its arrival, also if other frames arrive first."""
    for number, nbytes in enumerate(SIZES):
        for early in (False, True):
            going = [bench.give(bench.right, tag, number, nbytes) for tag in (20, 21, 20)]
            if early:
                bench.sync()
            for tag in (21, 20, 20):
                _receive(bench, tag, number, nbytes)
            for sending in going:
                sending.wait(bench.deadline)


def two_ranks_exchange_in_one_call(bench: Bench) -> None:
    """`sendrecv` sends to one rank and receives from another, or from the same; it returns the request of the send."""
    for number, nbytes in enumerate(SIZES):
        for step in range(bench.size):
            _exchange(bench, (bench.rank + step) % bench.size, (bench.rank - step) % bench.size, number, nbytes)
        _exchange(bench, bench.size - 1 - bench.rank, bench.size - 1 - bench.rank, number, nbytes)


def exchanges_may_follow_each_other(bench: Bench) -> None:
    """A rank may be one exchange ahead of its peer."""
    for number in range(300):
        _exchange(bench, bench.right, bench.left, number, number % 60)


def what_does_not_fit_is_refused_at_once(bench: Bench) -> None:
    """MismatchError from `recv` and `sendrecv` for a frame of another length or check; the transport stays intact."""
    for sent, expected, check in ((10, 12, 0), (0, 1, 0), (100_000, 10, 0), (10, 100_000, 0), (8, 8, 1)):
        sending = bench.isend(bench.right, 22, bytes(sent), check)
        view = memoryview(bytearray(expected))
        error_of(lambda: bench.transport.recv(bench.left, 22, view, bench.deadline), MismatchError)  # noqa: B023
        sending.wait(bench.deadline)
        data = memoryview(bytes(sent))
        error_of(
            lambda: bench.transport.sendrecv(bench.right, bench.left, 23, data, view, bench.deadline, bench.rank),  # noqa: B023
            MismatchError,
        )
        require(bench.transport.failure is None, f"a mismatch made the transport fail: {bench.transport.failure}")
        bench.swap(22)


def an_awaited_receive_ends_at_its_deadline(bench: Bench) -> None:
    """After DeadlineExceeded from `recv` its frame is still awaited; the transport is intact."""
    late = bytearray(1000)
    view = memoryview(late)
    error_of(lambda: bench.transport.recv(bench.left, 24, view, bench.soon()), DeadlineExceeded)
    bench.sync()
    going = [bench.give(bench.right, 24, number, 1000) for number in range(2)]
    _receive(bench, 24, 1, 1000)
    require(
        late == pattern(bench.left, bench.rank, 24, 0, 1000), "the frame did not arrive in the buffer of the receive"
    )
    for sending in going:
        sending.wait(bench.deadline)


def bad_exchanges_are_refused(bench: Bench) -> None:
    """ValueError for a bad peer, tag or check of `recv` and `sendrecv`, raised before anything is sent."""
    transport, good = bench.transport, bench.rank
    for peer in (-1, bench.size):
        error_of(lambda: transport.recv(peer, 0, _room(), bench.deadline), ValueError)  # noqa: B023 - called at once
        for dest, source in ((peer, good), (good, peer)):
            error_of(
                lambda: transport.sendrecv(dest, source, 0, _room(), _room(), bench.deadline),  # noqa: B023
                ValueError,
            )
    for tag, check in ((-1, 0), (1 << 64, 0), (0, -1), (0, MAX_CHECK + 1)):
        error_of(lambda: transport.recv(good, tag, _room(), bench.deadline, check), ValueError)  # noqa: B023
        error_of(
            lambda: transport.sendrecv(good, good, tag, _room(), _room(), bench.deadline, check),  # noqa: B023
            ValueError,
        )
    read_only = memoryview(bytes(4))
    error_of(lambda: transport.recv(good, 0, read_only, bench.deadline), ValueError)
    bench.swap(0)


def _room() -> memoryview:
    return memoryview(bytearray(4))


def _receive(bench: Bench, tag: int, number: int, nbytes: int) -> None:
    buffer = bytearray(nbytes)
    bench.transport.recv(bench.left, tag, memoryview(buffer), bench.deadline)
    expected = pattern(bench.left, bench.rank, tag, number, nbytes)
    require(buffer == expected, f"frame {number} with tag {tag} of {nbytes} bytes differs from the sent one")


def _exchange(bench: Bench, dest: int, source: int, number: int, nbytes: int) -> None:
    data, buffer = pattern(bench.rank, dest, 25, number, nbytes), bytearray(nbytes)
    sending = bench.transport.sendrecv(
        dest, source, 25, memoryview(data), memoryview(buffer), bench.deadline, MAX_CHECK - number
    )
    require(buffer == pattern(source, bench.rank, 25, number, nbytes), f"{nbytes} bytes from {source} came changed")
    sending.wait(bench.deadline)
    require(sending.test(), "test() of a completed send is False")


CHECKS: Final = (
    Check(a_receive_may_be_awaited_at_once),
    Check(two_ranks_exchange_in_one_call),
    Check(exchanges_may_follow_each_other),
    Check(what_does_not_fit_is_refused_at_once, every_size=False, least=2),
    Check(an_awaited_receive_ends_at_its_deadline, every_size=False, least=2),
    Check(bad_exchanges_are_refused),
)
