"""Checks of frames: every frame arrives, whole, in order, and independently of other requests."""

from __future__ import annotations

import threading
import time
from typing import Final

from transports.base import MAX_CHECK, MAX_TAG, Request
from transports.errors import DeadlineExceeded, MismatchError
from transports.testing.bench import SOON, Bench, error_of, pattern, require
from transports.testing.kit import Check

SIZES: Final = (1, 2, 3, 7, 63, 64, 65, 1000, 4095, 4096, 4097, 65537, (1 << 20) + 3, (4 << 20) - 5)
"""Bytes; around the sizes of cache lines, pages, and the transports' segments and socket buffers."""


def frames_of_one_tag_keep_their_order(bench: Bench) -> None:
    """Frames between one pair of ranks with one tag are received in the order sent."""
    for nbytes in (5, 20_000):
        coming = [bench.take(bench.left, 7, number, nbytes) for number in range(20)]
        going = [bench.give(bench.right, 7, number, nbytes) for number in range(20)]
        for incoming in reversed(coming):
            incoming.check()
        _finish(bench, going)


def tags_do_not_wait_for_each_other(bench: Bench) -> None:
    """Frames with different tags do not wait for each other."""
    for nbytes in (8, 300_000):
        going = [bench.give(bench.right, tag, 0, nbytes) for tag in range(4)]
        for tag in (3, 1, 2, 0):
            bench.take(bench.left, tag, 0, nbytes).check()
        _finish(bench, going)


def early_frames_are_kept(bench: Bench) -> None:
    """A frame that arrives before its receive is posted is kept."""
    going = [bench.give(bench.right, 1, number, nbytes) for number, nbytes in enumerate((10, 0, 5000, 200_000))]
    bench.sync()
    for number, nbytes in enumerate((10, 0, 5000, 200_000)):
        bench.take(bench.left, 1, number, nbytes).check()
    _finish(bench, going)


def empty_frames_are_frames(bench: Bench) -> None:
    """0 bytes are allowed; such a frame is matched, ordered and awaited like any other."""
    receiving = [bench.irecv(bench.left, 2, bytearray()) for _ in range(3)]
    bench.sync()
    incoming = bench.take(bench.left, 2, 3, 4)
    going = [bench.isend(bench.right, 2, b"") for _ in range(3)]
    going.append(bench.give(bench.right, 2, 3, 4))
    incoming.check()
    _finish(bench, receiving)
    _finish(bench, going)


def a_rank_reaches_itself(bench: Bench) -> None:
    """`peer` may be the rank itself."""
    for nbytes in (0, 1, 100_001):
        sending, incoming = bench.give(bench.rank, 4, 0, nbytes), bench.take(bench.rank, 4, 0, nbytes)
        incoming.check()
        sending.wait(bench.deadline)
        incoming, sending = bench.take(bench.rank, 4, 1, nbytes), bench.give(bench.rank, 4, 1, nbytes)
        sending.wait(bench.deadline)
        incoming.check()


def every_length_arrives_whole(bench: Bench) -> None:
    """The frame has exactly the length of the view, for every length, and the bytes that were sent."""
    coming = [bench.take(bench.left, 100 + number, number, nbytes) for number, nbytes in enumerate(SIZES)]
    going = [bench.give(bench.right, 100 + number, number, nbytes) for number, nbytes in enumerate(SIZES)]
    for incoming in coming:
        incoming.check()
    _finish(bench, going)


def all_ranks_exchange_at_once(bench: Bench) -> None:
    """While a rank waits for one request, every other request of the transport moves along (all to all)."""
    for number, nbytes in enumerate((17, 70_001, (1 << 20) + 1)):
        coming = [bench.take(peer, 5, number, nbytes) for peer in range(bench.size)]
        going = [bench.give((bench.rank + step) % bench.size, 5, number, nbytes) for step in range(bench.size)]
        for incoming in coming:
            incoming.check()
        _finish(bench, going)


def both_directions_flow_at_once(bench: Bench) -> None:
    """Two ranks that send each other large frames do not block each other."""
    nbytes = (8 << 20) + 1
    going, coming = bench.give(bench.right, 6, 0, nbytes), bench.take(bench.left, 6, 0, nbytes)
    going.wait(bench.deadline)
    coming.check()


def many_small_frames_flow(bench: Bench) -> None:
    """Hundreds of requests may be in flight together, and may be waited for in any order."""
    coming = [bench.take(bench.left, number % 3, number, number % 50) for number in range(400)]
    going = [bench.give(bench.right, number % 3, number, number % 50) for number in range(400)]
    _finish(bench, list(reversed(going)))
    for incoming in coming:
        incoming.check()


def waiting_moves_other_requests_along(bench: Bench) -> None:
    """A wait makes progress on every other request of the transport too."""
    nbytes = (3 << 20) + 1
    if bench.rank == 0:
        background = bench.take(1, 8, 0, nbytes)
        bench.take(1, 9, 0, 10).check()
        background.check()
    elif bench.rank == 1:
        bench.give(0, 8, 0, nbytes).wait(bench.deadline)
        bench.give(0, 9, 0, 10).wait(bench.deadline)


def a_completed_send_gives_its_buffer_back(bench: Bench) -> None:
    """A send completes when its buffer may be used again."""
    for number, nbytes in enumerate((10, 100_000)):
        payload = bytearray(pattern(bench.rank, bench.right, 3, number, nbytes))
        incoming = bench.take(bench.left, 3, number, nbytes)
        sending = bench.isend(bench.right, 3, payload)
        sending.wait(bench.deadline)
        payload[:] = bytes(nbytes)
        incoming.check()
        require(sending.test(), "test() of a completed send is False")
        sending.wait(bench.deadline)


def a_send_may_be_forgotten(bench: Bench) -> None:
    """A send may be forgotten: the transport keeps a reference to its buffer and completes it."""
    for number, nbytes in enumerate((10, 300_000)):
        bench.give(bench.right, 19, number, nbytes)
        bytearray(b"x" * nbytes)  # would overwrite memory that was released
    bench.sync()
    for number, nbytes in enumerate((10, 300_000)):
        bench.take(bench.left, 19, number, nbytes).check()


def a_frame_of_another_length_is_refused(bench: Bench) -> None:
    """The frame must have exactly the length of the receive's view, else MismatchError; the transport stays intact."""
    for sent, expected in ((10, 12), (12, 10), (0, 1), (1, 0), (200_000, 200_001), (2_000_000, 5)):
        _refused(bench, sent, expected, 0, 0)


def a_frame_with_another_check_is_refused(bench: Bench) -> None:
    """The frame must have the check of the receive, else MismatchError; the transport stays intact."""
    for nbytes, sent, expected in ((0, 1, 2), (10, 1, 0), (10, 0, MAX_CHECK), (300_000, 0x80000000, 0)):
        _refused(bench, nbytes, nbytes, sent, expected)


def _refused(bench: Bench, sent: int, expected: int, sent_check: int, expected_check: int) -> None:
    for early in (False, True):
        buffer, payload = bytearray(expected), bytes(sent)
        if early:
            sending = bench.isend(bench.right, 11, payload, sent_check)
            bench.sync()
            receiving = bench.irecv(bench.left, 11, buffer, expected_check)
        else:
            receiving = bench.irecv(bench.left, 11, buffer, expected_check)
            bench.sync()
            sending = bench.isend(bench.right, 11, payload, sent_check)
        first = error_of(lambda request=receiving: request.wait(bench.deadline), MismatchError)  # type: ignore[misc]
        again = error_of(receiving.test, MismatchError)
        require(str(first) == str(again), f"a failed request changed its error from {first} to {again}")
        sending.wait(bench.deadline)
        require(bench.transport.failure is None, f"a mismatch made the transport fail: {bench.transport.failure}")
        bench.swap(11)


def tag_and_check_have_their_full_range(bench: Bench) -> None:
    """0 <= tag < 2**64: matched exactly. 0 <= check < 2**32: compared."""
    tags = (0, 1 << 31, 1 << 32, 1 << 63, MAX_TAG - 1, MAX_TAG)
    buffers = [bytearray(8) for _ in tags]
    coming = [bench.irecv(bench.left, tag, buffer, MAX_CHECK) for tag, buffer in zip(tags, buffers, strict=True)]
    going = [bench.isend(bench.right, tag, tag.to_bytes(8), MAX_CHECK) for tag in reversed(tags)]
    _finish(bench, coming + going)
    arrived = tuple(int.from_bytes(buffer) for buffer in buffers)
    require(arrived == tags, f"frames with tags {tags} were matched as {arrived}")


def bad_arguments_are_refused(bench: Bench) -> None:
    """ValueError for a bad peer, tag or check, raised before anything is sent."""
    bad = (
        *((peer, 0, 0) for peer in (-1, bench.size, 1 << 40)),
        *((0, tag, 0) for tag in (-1, MAX_TAG + 1)),
        *((0, 0, check) for check in (-1, MAX_CHECK + 1)),
    )
    for operation in (bench.transport.isend, bench.transport.irecv):
        for peer, tag, check in bad:
            view = memoryview(bytearray(4))
            error_of(lambda: operation(peer, tag, view, check), ValueError)  # noqa: B023 - called at once
    bench.swap(0)


def a_wait_ends_at_its_deadline(bench: Bench) -> None:
    """DeadlineExceeded: the request is still in flight; the transport is intact."""
    incoming = bench.take(bench.left, 12, 0, 50_000)
    for deadline in (time.monotonic() - 1.0, bench.soon()):
        error_of(lambda end=deadline: incoming.request.wait(end), DeadlineExceeded)  # type: ignore[misc]
        require(time.monotonic() >= deadline, "a wait gave up before its deadline")
        require(not incoming.request.test(), "test() of a request that nothing came for is True")
    bench.sync()
    sending = bench.give(bench.right, 12, 0, 50_000)
    incoming.check()
    sending.wait(bench.deadline)
    require(bench.transport.failure is None, f"a deadline made the transport fail: {bench.transport.failure}")


def test_tells_when_a_request_has_completed(bench: Bench) -> None:
    """`test` makes all progress that is possible without waiting; True once completed."""
    incoming = bench.take(bench.left, 13, 0, 3_000_000)
    require(not incoming.request.test(), "test() of a request that nothing came for is True")
    bench.sync()
    requests: list[Request] = [bench.give(bench.right, 13, 0, 3_000_000), incoming.request]
    while not all(request.test() for request in requests):
        require(time.monotonic() < bench.deadline, "requests that are tested repeatedly do not complete")
        time.sleep(0)
    incoming.check()


def a_wait_for_any_ends_with_the_first(bench: Bench) -> None:
    """`wait_any` returns the positions of all requests that have ended; none at the deadline; the others go on."""
    buffers = [bytearray(4) for _ in range(bench.size)]
    coming = [bench.irecv(peer, 14, buffer) for peer, buffer in enumerate(buffers)]
    for deadline in (time.monotonic() - 1.0, bench.soon()):
        require(bench.transport.wait_any(coming, deadline) == [], "a request that nothing came for has ended")
    error_of(lambda: bench.transport.wait_any([], bench.deadline), ValueError)
    bench.sync()
    going = []
    for turn in range(bench.size):  # rank `turn` sends to all, the others wait for the first frame of any rank
        if turn == bench.rank:
            going = [bench.isend(peer, 14, bench.rank.to_bytes(4)) for peer in range(bench.size)]
        awaited = [peer for peer in range(bench.size) if peer >= turn]
        ended = bench.transport.wait_any([coming[peer] for peer in awaited], bench.deadline)
        require([awaited[place] for place in ended] == [turn], f"rank {turn} sent, but {ended} of {awaited} ended")
        require(int.from_bytes(buffers[turn]) == turn, f"the frame of rank {turn} differs from the sent one")
        bench.sync()
    _finish(bench, going)
    ended = bench.transport.wait_any(coming, bench.deadline)
    require(ended == list(range(bench.size)), f"all {bench.size} requests have ended, but wait_any returned {ended}")


def a_request_that_failed_has_ended(bench: Bench) -> None:
    """`wait_any` counts requests that failed alone; their `wait` raises."""
    receiving, idle = bench.irecv(bench.left, 15, bytearray(3)), bench.irecv(bench.rank, 16, bytearray(3))
    sending = bench.isend(bench.right, 15, b"four")
    require(bench.transport.wait_any([idle, receiving], bench.deadline) == [1], "the wrong request has ended")
    error_of(lambda: receiving.wait(bench.deadline), MismatchError)
    sending.wait(bench.deadline)
    bench.isend(bench.rank, 16, b"end").wait(bench.deadline)
    idle.wait(bench.deadline)
    bench.swap(15)


def another_thread_ends_a_wait_for_any(bench: Bench) -> None:
    """A frame that another thread sends to its own rank ends the wait."""
    coming = [bench.irecv(bench.left, 17, bytearray(1)), bench.irecv(bench.rank, 18, bytearray(1))]
    sent: list[Request] = []
    timer = threading.Timer(SOON, lambda: sent.append(bench.isend(bench.rank, 18, b"!")))
    timer.start()
    require(bench.transport.wait_any(coming, bench.deadline) == [1], "the wrong request has ended")
    timer.join()
    bench.sync()
    sent += [bench.isend(bench.right, 17, b"?")]
    _finish(bench, coming + sent)


def threads_wait_side_by_side(bench: Bench) -> None:
    """Threads may call the transport concurrently."""
    errors: list[BaseException] = []

    def exchange(tag: int) -> None:
        try:
            for number in range(10):
                coming = bench.take(bench.left, tag, number, 1000 * tag + number)
                going = bench.give(bench.right, tag, number, 1000 * tag + number)
                coming.check()
                going.wait(bench.deadline)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=exchange, args=(tag,), daemon=True) for tag in range(20, 24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, bench.deadline - time.monotonic()))
    if errors:
        raise errors[0]
    require(not any(thread.is_alive() for thread in threads), "threads that wait side by side do not end")


def _finish(bench: Bench, requests: list[Request]) -> None:
    for request in requests:
        request.wait(bench.deadline)


CHECKS: Final = (
    Check(frames_of_one_tag_keep_their_order),
    Check(tags_do_not_wait_for_each_other),
    Check(early_frames_are_kept),
    Check(empty_frames_are_frames),
    Check(a_rank_reaches_itself),
    Check(every_length_arrives_whole),
    Check(all_ranks_exchange_at_once),
    Check(both_directions_flow_at_once, every_size=False, least=2),
    Check(many_small_frames_flow, every_size=False, least=2),
    Check(waiting_moves_other_requests_along, every_size=False, least=2),
    Check(a_completed_send_gives_its_buffer_back),
    Check(a_send_may_be_forgotten),
    Check(a_frame_of_another_length_is_refused, every_size=False, least=2),
    Check(a_frame_with_another_check_is_refused, every_size=False, least=2),
    Check(tag_and_check_have_their_full_range, every_size=False, least=2),
    Check(bad_arguments_are_refused),
    Check(a_wait_ends_at_its_deadline),
    Check(test_tells_when_a_request_has_completed),
    Check(a_wait_for_any_ends_with_the_first),
    Check(a_request_that_failed_has_ended, every_size=False, least=2),
    Check(another_thread_ends_a_wait_for_any, every_size=False, least=2),
    Check(threads_wait_side_by_side, every_size=False, least=2),
)
