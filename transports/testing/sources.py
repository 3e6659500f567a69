"""Checks of receives from any source, and of probes. A transport without the ability passes them unchecked."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

from transports.anysource import AnyRequest, AnySource, Arrival
from transports.base import MAX_CHECK, MAX_TAG
from transports.errors import AbortedError, DeadlineExceeded, MismatchError, PeerLost
from transports.testing.bench import SOON, Bench, error_of, pattern, require
from transports.testing.kit import Check

_TAGS: Final = range(1000, 1016)
_NUMBERED: Final = range(5000, 6000)
_TOKEN: Final = 2000
_STOP: Final = 2**32 - 1
_MANY: Final = 200
_KEPT: Final = 3
"""Frames of each rank that wait while another rank sends more."""
_MAX_TURNS: Final = 4
"""A frame must be taken before this many times as many receives as frames had arrived with it. A transport that is made
of others may let these take turns."""


class _Receiver:
    """Receives from any source of one rank, with the steps that the checks have in common."""

    def __init__(self, bench: Bench, ability: AnySource) -> None:
        self.bench = bench
        self.ability = ability
        self.everyone = frozenset(range(bench.size))

    def post(self, sources: frozenset[int] | None = None, tags: range = _TAGS) -> AnyRequest:
        """Post a receive of any length and check."""
        return self.ability.irecv_any(sources or self.everyone, tags, None)

    def first(self, sources: frozenset[int], tags: range) -> Arrival:
        """The first match, which is taken at once if the transport can do that now."""
        taken = self.ability.take(tuple(sources), tags, None)
        if taken is None:
            return self.take(self.post(sources, tags))
        return self._compared(Arrival(taken.source, taken.tag, taken.check, len(taken.view)), bytes(taken.view))

    def take(self, request: AnyRequest) -> Arrival:
        """Wait for a receive, and compare its payload, which begins with the frame's number."""
        request.wait(self.bench.deadline)
        arrival = request.arrival
        require(arrival is not None, "a completed receive has no arrival")
        assert arrival is not None
        return self._compared(arrival, bytes(request.view))

    def _compared(self, arrival: Arrival, data: bytes) -> Arrival:
        bench = self.bench
        require(len(data) == arrival.nbytes, f"{arrival} has a view of {len(data)} bytes")
        number = int.from_bytes(data[:4])
        sent = _payload(arrival.source, bench.rank, arrival.tag, number, arrival.nbytes)
        require(data == sent, f"{arrival}, frame {number}: its bytes are not those that were sent")
        return arrival._replace(check=number)


def _payload(source: int, target: int, tag: int, number: int, nbytes: int) -> bytes:
    """A frame that begins with its number."""
    return number.to_bytes(4) + pattern(source, target, tag, number, nbytes - 4)


def _give(bench: Bench, peer: int, tag: int, number: int, nbytes: int = 8) -> None:
    """Send a frame, and forget it."""
    bench.isend(peer, tag, _payload(bench.rank, peer, tag, number, nbytes), number)


def _check(body: Callable[[Bench, _Receiver], None]) -> Callable[[Bench], None]:
    """Run a check on a transport that has the ability."""

    def run(bench: Bench) -> None:
        ability = bench.transport.ability(AnySource)
        if ability is not None:
            body(bench, _Receiver(bench, ability))

    run.__name__ = body.__name__
    run.__doc__ = body.__doc__
    return run


@_check
def a_receive_from_any_source_takes_the_first_match(bench: Bench, receiver: _Receiver) -> None:
    """A receive takes the first frame of a peer that it matches, by source, by tag, by both or by neither; also
    one that takes it at once."""
    chosen = random.Random(bench.rank)
    numbers = random.Random(7)
    plan: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for source in range(bench.size):
        for target in range(bench.size):
            sizes = [numbers.choice((4, 5, 100, 5000, 70_000)) for _ in range(_MANY // bench.size)]
            plan[source, target] = [(numbers.choice(_TAGS), nbytes) for nbytes in sizes]
    going = []
    for step in range(_MANY // bench.size):
        for target in range(bench.size):
            tag, nbytes = plan[bench.rank, target][step]
            going.append(bench.isend(target, tag, _payload(bench.rank, target, tag, step, nbytes), step))
    left = {source: list(enumerate(plan[source, bench.rank])) for source in range(bench.size)}
    while any(left.values()):
        source = chosen.choice([source for source, frames in left.items() if frames])
        tag = chosen.choice(left[source])[1][0]
        sources = chosen.choice((frozenset({source}), receiver.everyone))
        tags = chosen.choice((range(tag, tag + 1), _TAGS))
        arrival = receiver.first(sources, tags)
        require(arrival.source in sources and arrival.tag in tags, f"{arrival} does not match {sources}, {tags}")
        first = next(number for number, (sent, _) in left[arrival.source] if sent in tags)
        require(arrival.check == first, f"{arrival} came before frame {first}, which matches too and was sent before")
        left[arrival.source] = [frame for frame in left[arrival.source] if frame[0] != first]
    for sending in going:
        sending.wait(bench.deadline)


@_check
def the_receive_that_was_posted_first_takes_the_frame(bench: Bench, receiver: _Receiver) -> None:
    """The receive that was posted first takes a frame that several match, from any source or not."""
    one, two = bytearray(8), bytearray(8)
    left, tag = bench.left, _TAGS[0]
    first = bench.irecv(left, tag, one, 0)
    second, third = receiver.post(), receiver.post(frozenset({left}), range(tag, tag + 1))
    fourth = bench.irecv(left, tag, two, 3)
    fifth = receiver.post()
    bench.sync()
    for number in range(5):
        _give(bench, bench.right, tag, number)
    require(
        [receiver.take(request).check for request in (fifth, third, second)] == [4, 2, 1], "wrong receives took them"
    )
    first.wait(bench.deadline)
    fourth.wait(bench.deadline)
    require([int.from_bytes(buffer[:4]) for buffer in (one, two)] == [0, 3], "wrong receives took the frames")


@_check
def other_tags_and_sources_are_left_alone(bench: Bench, receiver: _Receiver) -> None:
    """A receive from any source takes no frame of another rank or with another tag."""
    request = receiver.post(frozenset({bench.left}), range(5000, 5001))
    for tag in (4999, 5001):
        _give(bench, bench.right, tag, tag)
    _give(bench, bench.left, 5000, 1)
    _give(bench, bench.right, 5000, 2)
    require(receiver.take(request).check == 2, "a frame of another rank was taken")
    rest = [receiver.take(receiver.post(tags=range(4999, 5002))) for _ in range(3)]
    require({arrival.tag for arrival in rest} == {4999, 5000, 5001}, f"the frames that were left are {rest}")


@_check
def no_peer_is_starved(bench: Bench, receiver: _Receiver) -> None:
    """A frame that has arrived is taken after a number of receives that does not depend on later frames."""
    for flooding in sorted({1, bench.size - 1}):
        if not bench.rank:
            _flooded(receiver, flooding)
            continue
        token = bytearray(4)
        bench.irecv(0, _TOKEN, token).wait(bench.deadline)
        while (number := int.from_bytes(token)) != _STOP:
            _give(bench, 0, _NUMBERED[number], number)
            bench.irecv(0, _TOKEN, token).wait(bench.deadline)


@_check
def a_probe_tells_of_a_frame_and_leaves_it(bench: Bench, receiver: _Receiver) -> None:
    """A probe returns the envelope of the frame that a receive would take now; None at its deadline."""
    require(receiver.ability.probe(receiver.everyone, _TAGS, time.monotonic()) is None, "there is no frame yet")
    late = receiver.ability.probe(receiver.everyone, _TAGS, bench.soon())
    require(late is None, f"there is no frame yet, but {late} was found")
    bench.sync()
    for number, nbytes in enumerate((4, 200_000, (3 << 20) + 1)):
        tag = _TAGS[number]
        sending = bench.isend(bench.right, tag, _payload(bench.rank, bench.right, tag, number, nbytes), number)
        for sources, tags in ((receiver.everyone, _TAGS), (frozenset({bench.left}), range(tag, tag + 1))):
            found = receiver.ability.probe(sources, tags, bench.deadline)
            require(found == Arrival(bench.left, tag, number, nbytes), f"the probe found {found}")
        require(receiver.take(receiver.post()).tag == tag, "another frame than the probed one was received")
        sending.wait(bench.deadline)


@_check
def a_frame_for_any_source_must_fit(bench: Bench, receiver: _Receiver) -> None:
    """A frame of another length or check than a receive from any source asks for is a MismatchError; the transport
    stays intact. A receive that takes every check takes shorter frames, and refuses longer ones."""
    for early in (False, True):
        for sent, nbytes, check in ((8, 9, 5), (8, 8, 6), (300_000, 8, 5), (9, 8, None), (300_000, 8, None)):
            bench.sync()
            sending = bench.isend(bench.right, _TAGS[0], bytes(sent), 5) if early else None
            if early:
                receiver.ability.probe(receiver.everyone, _TAGS, bench.deadline)
            view = memoryview(bytearray(nbytes))
            request = receiver.ability.irecv_any(receiver.everyone, _TAGS, view, check)
            if sending is None:
                bench.sync()
                sending = bench.isend(bench.right, _TAGS[0], bytes(sent), 5)
            error_of(lambda: request.wait(bench.deadline), MismatchError)  # noqa: B023 - called at once
            found = request.arrival
            require(found == Arrival(bench.left, _TAGS[0], 5, sent), f"the frame that came is {found}")
            require(bench.transport.failure is None, f"a mismatch made the transport fail: {bench.transport.failure}")
            sending.wait(bench.deadline)
    for early in (False, True):
        for sent in (0, 5, 200_000):
            bench.sync()
            sending = bench.isend(bench.right, _TAGS[0], bytes([7] * sent), 5) if early else None
            if early:
                receiver.ability.probe(receiver.everyone, _TAGS, bench.deadline)
            longer = memoryview(bytearray(sent + 3))
            request = receiver.ability.irecv_any(receiver.everyone, _TAGS, longer, None)
            if sending is None:
                bench.sync()
                sending = bench.isend(bench.right, _TAGS[0], bytes([7] * sent), 5)
            request.wait(bench.deadline)
            require(request.arrival == Arrival(bench.left, _TAGS[0], 5, sent), "a shorter frame has another envelope")
            require(len(request.view) == sent, f"the view of a frame of {sent} bytes has {len(request.view)}")
            require(
                bytes(longer) == bytes([7] * sent + [0] * 3), "a shorter frame is not in the first bytes of the view"
            )
            sending.wait(bench.deadline)
    view = memoryview(bytearray(8))
    request = receiver.ability.irecv_any(receiver.everyone, _TAGS, view, 5)
    bench.isend(bench.right, _TAGS[0], b"12345678", 5).wait(bench.deadline)
    request.wait(bench.deadline)
    require(bytes(view) == b"12345678" and request.test(), "the frame did not arrive in the view that was given")


@_check
def a_receive_from_any_source_ends_at_its_deadline(bench: Bench, receiver: _Receiver) -> None:
    """After DeadlineExceeded the receive is still posted; `withdraw` takes it back unless it has matched a frame."""
    request, other = receiver.post(), receiver.post()
    error_of(lambda: request.wait(bench.soon()), DeadlineExceeded)
    require(not request.test() and request.arrival is None, "a receive without a frame has completed")
    require(other.withdraw(), "a receive without a frame could not be withdrawn")
    bench.sync()
    _give(bench, bench.right, _TAGS[0], 1)
    _give(bench, bench.right, _TAGS[0], 2)
    require(receiver.take(request).check == 1, "the receive that was posted first did not take the first frame")
    require(not request.withdraw(), "a receive with a frame was withdrawn")
    require(receiver.take(receiver.post()).check == 2, "a receive that was withdrawn has taken a frame")


@_check
def a_frame_is_taken_at_once_or_left(bench: Bench, receiver: _Receiver) -> None:
    """A frame that fits is taken at once, or as well by a receive; one that does not fit, or that a receive is posted
    for, is left to that."""
    left, tag = frozenset({bench.left}), _TAGS[0]
    for nbytes in (4, 2000, 9000):
        for check, room in ((None, nbytes), (None, nbytes + 9), (0, nbytes), (1, nbytes), (0, nbytes + 1), (None, 3)):
            bench.sync()
            _give(bench, bench.right, tag, 0, nbytes)
            bench.sync()
            view = memoryview(bytearray(room))
            fits = (room == nbytes and check == 0) or (room >= nbytes and check is None)
            taken = receiver.ability.take(tuple(left), range(tag, tag + 1), view, check)
            require(taken is None or fits, f"{nbytes} bytes were taken into {room}, check {check}")
            if taken is not None:
                require(len(taken.view) == nbytes, f"the view of a frame of {nbytes} bytes has {len(taken.view)}")
                require(bytes(view[:nbytes]) == _payload(bench.left, bench.rank, tag, 0, nbytes), "it has other bytes")
                require(not any(view[nbytes:]), "bytes behind the frame were written")
            else:
                require(receiver.take(receiver.post()).check == 0, "a frame that was not taken is not there")
    posted = bench.irecv(bench.left, tag, bytearray(8), 1)
    bench.sync()
    _give(bench, bench.right, tag, 1)
    bench.sync()
    taken = receiver.ability.take(tuple(left), range(tag, tag + 1), None)
    require(taken is None, "a frame was taken that a receive is posted for")
    posted.wait(bench.deadline)
    bench.swap(5)


@_check
def a_synchronous_send_ends_at_its_match(bench: Bench, receiver: _Receiver) -> None:
    """A synchronous send is not done before its frame is matched: by a receive that is posted later, or before, and
    whose rank waits in another call. Frames of both kinds with one tag stay in order."""
    to, tag = bench.right, _TAGS[0]
    for nbytes in (4, 70_000, (3 << 20) + 1):
        for early in (False, True):
            bench.sync()
            posted = receiver.post() if early else None
            bench.sync()
            data = [memoryview(_payload(bench.rank, to, tag, number, nbytes)) for number in range(3)]
            one = receiver.ability.issend(to, tag, data[0], 0)
            two = bench.transport.isend(to, tag, data[1], 1)
            three = receiver.ability.issend(to, tag, data[2], 2)
            if posted is not None:
                one.wait(bench.deadline)  # no rank waits for its own receive
                require(not three.test(), "a synchronous send has ended without a receive")
                bench.sync()
            else:
                receiver.ability.probe(frozenset({bench.left}), _TAGS, bench.deadline)
                require(not one.test() and not three.test(), "a synchronous send has ended without a receive")
                error_of(lambda: one.wait(bench.soon()), DeadlineExceeded)  # noqa: B023 - called at once
                bench.sync()
                posted = receiver.post()
            require(receiver.take(posted).check == 0, "another frame than the first was received")
            one.wait(bench.deadline)
            view = bytearray(nbytes)
            bench.irecv(bench.left, tag, view, 1).wait(bench.deadline)
            two.wait(bench.deadline)
            require(bytes(view) == _payload(bench.left, bench.rank, tag, 1, nbytes), "a frame has other bytes")
            require(receiver.take(receiver.post()).check == 2, "a synchronous frame was overtaken")
            three.wait(bench.deadline)


@_check
def a_synchronous_send_fails_without_its_receiver(bench: Bench, receiver: _Receiver) -> None:
    """A synchronous send fails with PeerLost, which names the peer, if that closes without a match."""
    if bench.rank == bench.size - 1:
        receiver.ability.probe(frozenset({0}), _TAGS, bench.deadline)
        bench.transport.close(bench.deadline)
    elif not bench.rank:
        sending = receiver.ability.issend(bench.size - 1, _TAGS[0], memoryview(b"1234"))
        error = error_of(lambda: sending.wait(bench.deadline), PeerLost)
        require(f"rank {bench.size - 1}" in str(error), f"the error does not name the peer: {error}")


@_check
def a_receive_is_taken_back(bench: Bench, receiver: _Receiver) -> None:
    """A receive of one rank with one tag that is taken back matches nothing; one that has matched is not taken back."""
    tag = _TAGS[0]
    views = [bytearray(8) for _ in range(3)]
    first, second, third = (
        bench.irecv(bench.left, tag, view, number) for view, number in zip(views, (0, 9, 1), strict=True)
    )
    require(second.withdraw(), "a receive without a frame could not be taken back")
    bench.sync()
    for number in range(2):
        _give(bench, bench.right, tag, number)
    first.wait(bench.deadline)
    third.wait(bench.deadline)
    require([int.from_bytes(view[:4]) for view in views] == [0, 0, 1], "a receive that was taken back got a frame")
    require(not first.withdraw() and not third.withdraw(), "a receive with a frame was taken back")


@_check
def bad_sources_are_refused(bench: Bench, receiver: _Receiver) -> None:
    """ValueError for bad sources, tags or checks."""
    everyone, ability = receiver.everyone, receiver.ability
    for sources in (frozenset[int](), frozenset({-1}), frozenset({bench.size})):
        error_of(lambda: ability.irecv_any(sources, _TAGS, None), ValueError)  # noqa: B023 - called at once
        error_of(lambda: ability.probe(sources, _TAGS, bench.deadline), ValueError)  # noqa: B023
    for tags in (range(0), range(-1, 5), range(0, 9, 2), range(MAX_TAG, MAX_TAG + 2)):
        error_of(lambda: ability.irecv_any(everyone, tags, None), ValueError)  # noqa: B023
        error_of(lambda: ability.probe(everyone, tags, bench.deadline), ValueError)  # noqa: B023
    error_of(lambda: ability.irecv_any(everyone, _TAGS, None, MAX_CHECK + 1), ValueError)
    error_of(lambda: ability.irecv_any(everyone, _TAGS, memoryview(bytes(4))), ValueError)
    bench.swap(0)


@_check
def an_abort_reaches_receives_from_any_source(bench: Bench, receiver: _Receiver) -> None:
    """A receive from any source and a probe raise the cause of an abort, now and later; also of one by another thread
    of the rank."""
    last = bench.size - 1
    bench.sync()
    request = receiver.post()
    timer = threading.Timer(SOON, bench.transport.abort, [AbortedError("no more", rank=last)])
    if bench.rank == last:
        timer.start()
    waits: list[Callable[[], object]] = [
        lambda: receiver.ability.probe(receiver.everyone, _TAGS, bench.deadline),
        lambda: request.wait(bench.deadline),
        request.test,
        receiver.post,
    ]
    for wait in waits[bench.rank % 2 :] + waits:
        error = error_of(wait, AbortedError)
        require("no more" in str(error), f"the cause of the abort became: {error}")
    if bench.rank == last:
        timer.join()


@_check
def a_receive_fails_when_nobody_is_left(bench: Bench, receiver: _Receiver) -> None:
    """A receive from any source goes on while one of the sources is left, and fails with PeerLost, which names them,
    when all have closed."""
    if bench.rank:
        _give(bench, 0, _TAGS[1], 0)
        if bench.rank == bench.size - 1:
            time.sleep(SOON)  # the others close meanwhile
            _give(bench, 0, _TAGS[0], 0)
        bench.transport.close(bench.deadline)
        return
    for peer in range(1, bench.size):
        receiver.take(receiver.post(frozenset({peer}), _TAGS[1:]))
    receiver.take(receiver.post())
    require(receiver.ability.probe(frozenset({0}), _TAGS, bench.soon()) is None, "there is no frame")
    request = receiver.post()
    require(receiver.ability.probe(receiver.everyone, _TAGS, bench.deadline) is None, "there is no frame")
    require(bench.transport.failure is None, f"a probe made the transport fail: {bench.transport.failure}")
    error = error_of(lambda: request.wait(bench.deadline), PeerLost)
    missing = [peer for peer in range(1, bench.size) if f"rank {peer}" not in str(error)]
    require(not missing, f"the error does not name {missing}: {error}")


def _flooded(receiver: _Receiver, flooding: int) -> None:
    """Rank 0: frames of all peers arrive, then one more of `flooding` after each receive, until those are taken."""
    bench = receiver.bench
    waiting = [(peer, number) for number in range(_KEPT) for peer in range(1, bench.size)]
    for peer, number in waiting:
        _ask(receiver, peer, number)
    arrived, received = waiting.copy(), list[tuple[int, int]]()
    for number in range(_KEPT, _KEPT + _MAX_TURNS * len(waiting)):
        arrival = receiver.take(receiver.post(tags=_NUMBERED))
        received.append((arrival.source, arrival.check))
        if set(waiting) <= set(received):
            break
        _ask(receiver, flooding, number)
        arrived.append((flooding, number))
    late = [frame for frame in waiting if frame not in received]
    require(not late, f"while rank {flooding} sent {len(received)} more, frames (rank, number) waited: {late}")
    for _ in range(len(arrived) - len(received)):
        receiver.take(receiver.post(tags=_NUMBERED))
    for peer in range(1, bench.size):
        bench.isend(peer, _TOKEN, _STOP.to_bytes(4))


def _ask(receiver: _Receiver, peer: int, number: int) -> None:
    """Let a peer send a frame, and wait until it has arrived."""
    bench, tag = receiver.bench, _NUMBERED[number]
    bench.isend(peer, _TOKEN, number.to_bytes(4))
    found = receiver.ability.probe(frozenset({peer}), range(tag, tag + 1), bench.deadline)
    require(found is not None, f"the frame {number} of rank {peer} did not arrive")


CHECKS: Final = (
    Check(a_receive_from_any_source_takes_the_first_match),
    Check(the_receive_that_was_posted_first_takes_the_frame, every_size=False, least=2),
    Check(other_tags_and_sources_are_left_alone, every_size=False, least=3),
    Check(no_peer_is_starved, least=2),
    Check(a_probe_tells_of_a_frame_and_leaves_it),
    Check(a_frame_for_any_source_must_fit, every_size=False, least=2),
    Check(a_receive_from_any_source_ends_at_its_deadline, every_size=False, least=2),
    Check(a_frame_is_taken_at_once_or_left),
    Check(a_synchronous_send_ends_at_its_match),
    Check(a_synchronous_send_fails_without_its_receiver, ends=True, every_size=False, least=2),
    Check(a_receive_is_taken_back, every_size=False, least=2),
    Check(bad_sources_are_refused),
    Check(an_abort_reaches_receives_from_any_source, ends=True, every_size=False, least=2),
    Check(a_receive_fails_when_nobody_is_left, ends=True, least=2),
)
