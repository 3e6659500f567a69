"""The queue gives every frame to the receive that was posted for it, whichever came first."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports import matching
from transports.anysource import Arrival
from transports.errors import MismatchError
from transports.matching import AnyReceive, InboundMessage, MatchQueue, Receive

PAYLOAD = b"sixteen bytes...."


class Lent:
    """A Loan of some bytes."""

    def __init__(self, payload: bytes | bytearray) -> None:
        self.payload: bytes | bytearray | None = payload

    def end(self, target: memoryview | None) -> bool:
        payload, self.payload = self.payload, None
        if payload is not None and target is not None:
            target[:] = payload
        return payload is not None


def arrive(queue: MatchQueue, payload: bytes, *, peer: int = 1, tag: int = 5, check: int = 0) -> InboundMessage:
    inbound = queue.arrive(peer, tag, check, len(payload))
    inbound.view[:] = payload
    inbound.finish()
    return inbound


def post(queue: MatchQueue, nbytes: int, *, peer: int = 1, tag: int = 5, check: int = 0) -> tuple[Receive, bytearray]:
    buffer = bytearray(nbytes)
    receive = Receive(peer, tag, memoryview(buffer), check)
    queue.add(receive)
    return receive, buffer


def test_an_early_message_is_taken_out_and_put_back() -> None:
    queue = MatchQueue(0)
    assert queue.take_first(1, 5, 100, only=True) is None
    begun = queue.arrive(1, 5, 3, len(PAYLOAD))
    assert queue.take_first(1, 5, 100, only=False) is None, "it is not complete"
    begun.view[:] = PAYLOAD
    begun.finish()
    arrive(queue, b"other", tag=6)
    assert queue.take_first(1, 5, len(PAYLOAD) - 1, only=True) is None, "it is too long"
    more = arrive(queue, b"more")
    assert queue.take_first(1, 5, 100, only=True) is None, "there is another one"
    assert queue.take_first(1, 5, 100, only=False) is begun
    assert queue.unexpected_frames == 2
    queue.put_first(begun)
    assert queue.unexpected_frames == 3
    assert queue.oldest(frozenset({1}), range(5, 7)) == Arrival(1, 5, 3, len(PAYLOAD)), "in the order of arrival"
    receive, buffer = post(queue, len(PAYLOAD), check=3)
    assert receive.done
    assert bytes(buffer) == PAYLOAD
    assert queue.oldest(frozenset({1}), range(5, 7)) == Arrival(1, 6, 0, 5)
    assert queue.take_first(1, 5, 100, only=True) is more
    assert not queue.knows(1, 5)
    assert queue.oldest(frozenset({1}), range(5, 6)) is None
    assert (queue.unexpected_frames, queue.unexpected_bytes) == (1, 5)


@pytest.mark.parametrize("sources", [(1,), (0, 1, 2)])
@pytest.mark.parametrize("tags", [range(5, 6), range(9)])
@pytest.mark.parametrize("nbytes", [None, len(PAYLOAD), 100])
def test_an_early_message_is_taken_at_once(sources: tuple[int, ...], tags: range, nbytes: int | None) -> None:
    queue, view = MatchQueue(0), None if nbytes is None else memoryview(bytearray(nbytes))
    assert queue.take(sources, tags, view, None) is None
    arrive(queue, b"of another tag", tag=10)
    arrive(queue, PAYLOAD, check=3)
    arrive(queue, b"the second")
    taken = queue.take(sources, tags, view, None)
    assert taken is not None
    assert taken[:3] == (1, 5, 3)
    assert bytes(taken.view) == PAYLOAD
    if view is not None:
        assert bytes(view[: len(PAYLOAD)]) == PAYLOAD
    taken = queue.take(sources, tags, None, None)
    assert taken is not None
    assert bytes(taken.view) == b"the second"
    assert queue.take(sources, tags, view, None) is None
    assert (queue.unexpected_frames, queue.unexpected_bytes) == (1, len(b"of another tag"))


def test_messages_of_any_source_are_taken_in_the_order_of_their_arrival() -> None:
    queue = MatchQueue(0)
    for peer, payload in ((2, b"first"), (1, b"second"), (2, b"third")):
        arrive(queue, payload, peer=peer)
    taken = [queue.take((1, 2), range(6), None, None) for _ in range(3)]
    assert [(one.source, bytes(one.view)) for one in taken if one] == [(2, b"first"), (1, b"second"), (2, b"third")]


@pytest.mark.parametrize(("nbytes", "check"), [(3, None), (len(PAYLOAD), 4), (100, 3), (None, 3)])
def test_an_early_message_that_does_not_fit_stays(nbytes: int | None, check: int | None) -> None:
    queue, view = MatchQueue(0), None if nbytes is None else memoryview(bytearray(nbytes))
    arrive(queue, PAYLOAD, check=3)
    assert queue.take((1,), range(5, 6), view, check) is None
    assert queue.knows(1, 5)


def test_an_early_message_stays_that_is_lent_or_noted_or_not_complete() -> None:
    queue, told = MatchQueue(0), list[tuple[int, int]]()
    queue.tell = lambda peer, tag: told.append((peer, tag))
    queue.arrive(1, 5, 0, len(PAYLOAD))
    queue.arrive(1, 6, 0, len(PAYLOAD), Lent(PAYLOAD)).finish()
    queue.note(1, 7)
    arrive(queue, PAYLOAD, tag=7)
    for tag in (5, 6, 7):
        assert queue.take((1,), range(tag, tag + 1), None, None) is None
        assert queue.take_first(1, tag, 100, only=False) is None
    assert not told
    assert queue.unexpected_frames == 3


def test_a_posted_buffer_takes_the_payload_directly() -> None:
    queue = MatchQueue(0)
    receive, buffer = post(queue, len(PAYLOAD))
    inbound = queue.arrive(1, 5, 0, len(PAYLOAD))
    assert inbound.view is receive.view
    inbound.view[:] = PAYLOAD
    assert not receive.done
    inbound.finish()
    assert receive.done
    assert buffer == PAYLOAD
    assert queue.unexpected_bytes == 0


def test_an_unexpected_frame_is_kept_until_claimed() -> None:
    queue = MatchQueue(0)
    arrive(queue, PAYLOAD)
    assert queue.unexpected_bytes == len(PAYLOAD)
    assert queue.oldest(frozenset({1}), range(10)) == Arrival(1, 5, 0, len(PAYLOAD))
    assert queue.unexpected_frames == 1
    assert queue.oldest(frozenset({2}), range(10)) is None
    receive, buffer = post(queue, len(PAYLOAD))
    assert receive.done
    assert buffer == PAYLOAD
    assert queue.unexpected_bytes == 0
    assert queue.unexpected_frames == 0
    assert queue.oldest(frozenset({1}), range(10)) is None


def test_a_frame_may_be_claimed_while_it_arrives() -> None:
    queue = MatchQueue(0)
    inbound = queue.arrive(1, 5, 0, len(PAYLOAD))
    receive, buffer = post(queue, len(PAYLOAD))
    assert not receive.done
    assert queue.unexpected_bytes == 0
    inbound.view[:] = PAYLOAD
    inbound.finish()
    assert receive.done
    assert buffer == PAYLOAD


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("nbytes", "check"), [(len(PAYLOAD) - 1, 9), (len(PAYLOAD) + 1, 9), (len(PAYLOAD), 8)])
def test_a_mismatched_frame_fails_only_its_receive(early: bool, nbytes: int, check: int) -> None:
    queue = MatchQueue(3)
    if early:
        arrive(queue, PAYLOAD, check=9)
        receive, _ = post(queue, nbytes, check=check)
    else:
        receive, _ = post(queue, nbytes, check=check)
        arrive(queue, PAYLOAD, check=9)
    assert receive.done
    assert isinstance(receive.error, MismatchError)
    assert (receive.error.rank, receive.error.peer) == (3, 1)
    came, expected = ("", "") if check == 9 else (", check 0x00000009", f", check 0x{check:08x}")
    assert f": {len(PAYLOAD)} bytes{came} came; {nbytes} bytes{expected} expected" in str(receive.error)
    arrive(queue, PAYLOAD, check=9)
    after, buffer = post(queue, len(PAYLOAD), check=9)
    assert after.error is None
    assert buffer == PAYLOAD


def test_a_borrowed_payload_is_copied_when_it_is_claimed() -> None:
    queue, payload = MatchQueue(0), bytearray(PAYLOAD)
    inbound = queue.arrive(1, 5, 0, len(payload), Lent(payload))
    inbound.finish()
    assert inbound.borrowed
    payload[0] ^= 0xFF
    receive, buffer = post(queue, len(payload))
    assert receive.done
    assert not inbound.borrowed
    assert buffer == payload


def test_a_payload_that_was_taken_back_is_received_by_nobody() -> None:
    queue, loan = MatchQueue(0), Lent(PAYLOAD)
    queue.arrive(1, 5, 0, len(PAYLOAD), loan).finish()
    loan.payload = None
    assert not post(queue, len(PAYLOAD))[0].done


def test_a_borrowed_payload_goes_straight_into_a_posted_buffer() -> None:
    queue = MatchQueue(0)
    receive, buffer = post(queue, len(PAYLOAD))
    inbound = queue.arrive(1, 5, 0, len(PAYLOAD), Lent(PAYLOAD))
    assert inbound.borrowed
    inbound.finish()
    assert receive.done
    assert not inbound.borrowed
    assert buffer == PAYLOAD


def test_a_borrowed_payload_that_does_not_fit_is_given_back() -> None:
    queue = MatchQueue(0)
    receive, buffer = post(queue, 4)
    inbound = queue.arrive(1, 5, 0, len(PAYLOAD), Lent(PAYLOAD))
    inbound.finish()
    assert isinstance(receive.error, MismatchError)
    assert not inbound.borrowed
    assert buffer == bytes(4)


def test_waiting_for_counts_unmatched_receives_by_peer() -> None:
    queue = MatchQueue(0)
    for peer, tag in ((1, 1), (1, 2), (2, 1), (1, 1)):
        post(queue, 4, peer=peer, tag=tag)
    assert queue.waiting_for() == {1: 3, 2: 1}
    arrive(queue, b"1234", peer=1, tag=2)
    assert queue.waiting_for() == {1: 2, 2: 1}


def test_a_frame_is_taken_if_a_receive_is_posted_for_it_or_there_is_room() -> None:
    queue = MatchQueue(0)
    assert queue.takes(1, 5, 0, 10, max_unexpected=10)
    assert not queue.takes(1, 5, 0, 11, max_unexpected=10)
    arrive(queue, b"1234", tag=6)
    assert queue.takes(1, 5, 0, 6, max_unexpected=10)
    assert not queue.takes(1, 5, 0, 7, max_unexpected=10)
    post(queue, 100)
    assert queue.takes(1, 5, 0, 100, max_unexpected=10)
    assert queue.takes(1, 5, 0, 7, max_unexpected=10)  # it does not fit, and is read over
    assert not queue.takes(1, 4, 0, 7, max_unexpected=10)


@pytest.mark.parametrize(("check", "length", "told"), [(0, 2**63, ""), (7, 100, ", check 0x00000007")])
def test_a_frame_that_does_not_fit_and_cannot_be_read_over_is_an_error(check: int, length: int, told: str) -> None:
    queue = MatchQueue(3)
    receive, _ = post(queue, 100)
    with pytest.raises(MismatchError, match=rf"{length} bytes{told} came; 100 bytes") as caught:
        queue.takes(1, 5, check, length, max_unexpected=10)
    assert (caught.value.rank, caught.value.peer) == (3, 1)
    assert not receive.done


def test_the_number_of_unexpected_frames_is_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "MAX_UNEXPECTED_FRAMES", 2)
    queue = MatchQueue(0)
    for tag in (1, 2):
        assert queue.takes(1, tag, 0, 0, max_unexpected=10)
        arrive(queue, b"", tag=tag)
    assert not queue.takes(1, 3, 0, 0, max_unexpected=10)
    post(queue, 0, tag=1)
    assert queue.takes(1, 3, 0, 0, max_unexpected=10)


EVENTS = st.lists(st.tuples(st.sampled_from(["post", "arrive", "borrow"]), st.integers(0, 1), st.integers(0, 2)))


@given(EVENTS)
def test_any_interleaving_is_first_in_first_out_per_peer_and_tag(events: list[tuple[str, int, int]]) -> None:
    queue = MatchQueue(0)
    sent: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
    posted: dict[tuple[int, int], deque[tuple[Receive, bytearray]]] = defaultdict(deque)
    for number, (event, peer, tag) in enumerate(events):
        key, payload = (peer, tag), number.to_bytes(4)
        if event == "post":
            posted[key].append(post(queue, 4, peer=peer, tag=tag))
        else:
            if event == "borrow":
                queue.arrive(peer, tag, 0, 4, Lent(payload)).finish()
            else:
                arrive(queue, payload, peer=peer, tag=tag)
            sent[key].append(payload)
        while posted[key] and sent[key]:
            receive, buffer = posted[key].popleft()
            assert receive.done
            assert receive.error is None
            assert buffer == sent[key].popleft()
        assert not any(receive.done for receive, _ in posted[key])
    assert queue.unexpected_bytes == 4 * sum(map(len, sent.values()))


# ---- receives from any source


def post_any(
    queue: MatchQueue,
    sources: tuple[int, ...] = (0, 1, 2),
    tags: range = range(10),
    *,
    check: int | None = None,
) -> AnyReceive:
    receive = AnyReceive(frozenset(sources), tags, None, check)
    queue.add_any(receive)
    return receive


def test_a_receive_from_any_source_takes_the_oldest_frame_that_it_matches() -> None:
    queue = MatchQueue(0)
    for peer, tag in ((1, 5), (2, 3), (1, 3), (2, 5)):
        arrive(queue, bytes([peer, tag]), peer=peer, tag=tag, check=peer)
    taken = [
        post_any(queue, *wanted)
        for wanted in (((2,), range(10)), ((0, 1, 2), range(5, 6)), ((0, 1, 2), range(10)), ((1, 2), range(10)))
    ]
    assert [receive.arrival for receive in taken] == [
        Arrival(2, 3, 2, 2),
        Arrival(1, 5, 1, 2),
        Arrival(1, 3, 1, 2),
        Arrival(2, 5, 2, 2),
    ]
    assert [bytes(receive.view) for receive in taken] == [b"\x02\x03", b"\x01\x05", b"\x01\x03", b"\x02\x05"]
    assert queue.unexpected_bytes == queue.unexpected_frames == 0


def test_an_arriving_frame_is_received_into_memory_of_its_length() -> None:
    queue = MatchQueue(0)
    receive = post_any(queue)
    inbound = queue.arrive(2, 7, 9, len(PAYLOAD))
    assert receive.arrival == Arrival(2, 7, 9, len(PAYLOAD))
    assert inbound.view is receive.view
    inbound.view[:] = PAYLOAD
    assert not receive.done
    inbound.finish()
    assert receive.done
    early = queue.arrive(1, 7, 9, len(PAYLOAD))
    late = post_any(queue)
    assert late.view is early.view  # a kept frame is not copied
    early.view[:] = PAYLOAD
    early.finish()
    assert bytes(late.view) == PAYLOAD


def test_a_borrowed_payload_is_copied_for_a_receive_from_any_source() -> None:
    queue, payload = MatchQueue(0), bytearray(PAYLOAD)
    inbound = queue.arrive(1, 5, 0, len(payload), Lent(payload))
    inbound.finish()
    receive = post_any(queue)
    payload[:] = bytes(len(payload))
    assert bytes(receive.view) == PAYLOAD
    assert not inbound.borrowed


def test_a_receive_that_was_withdrawn_takes_nothing() -> None:
    queue = MatchQueue(0)
    receive, other = post_any(queue), post_any(queue)
    assert queue.withdraw(receive)
    assert queue.withdraw(receive)
    arrive(queue, PAYLOAD)
    assert other.done
    assert receive.arrival is None


def test_a_frame_that_does_not_fit_a_receive_from_any_source_fails_it_alone() -> None:
    queue = MatchQueue(3)
    for early in (False, True):
        if early:
            arrive(queue, PAYLOAD, check=2)
        receive = post_any(queue, check=1)
        if not early:
            arrive(queue, PAYLOAD, check=2)
        assert isinstance(receive.error, MismatchError)
        assert receive.error.peer == 1
        assert receive.arrival == Arrival(1, 5, 2, len(PAYLOAD))
    assert queue.unexpected_frames == 0


def test_a_probe_finds_held_frames_too() -> None:
    queue, everyone = MatchQueue(0), frozenset(range(3))
    assert queue.oldest(everyone, range(10)) is None
    queue.hold(2, 5, 0, 1 << 40)
    assert queue.oldest(everyone, range(10)) == Arrival(2, 5, 0, 1 << 40)
    arrive(queue, PAYLOAD, tag=6)
    assert queue.oldest(everyone, range(10)) == Arrival(1, 6, 0, len(PAYLOAD))
    assert queue.oldest(frozenset({2}), range(10)) == Arrival(2, 5, 0, 1 << 40)
    assert queue.oldest(everyone, range(7, 10)) is None
    assert not queue.takes(2, 5, 0, 1 << 40, max_unexpected=10)
    post_any(queue, (2,))
    assert queue.takes(2, 5, 0, 1 << 40, max_unexpected=10)
    queue.arrive(2, 5, 0, 4)
    assert queue.oldest(frozenset({2}), range(10)) is None


def test_held_frames_are_served_in_the_order_in_which_they_were_held() -> None:
    queue = MatchQueue(0)
    for peer in (2, 1, 2, 0):
        queue.hold(peer, 5, 0, 10)
    assert list(queue.held) == [2, 1, 0]
    queue.arrive(2, 5, 0, 10)
    queue.hold(2, 5, 0, 10)
    assert list(queue.held) == [1, 0, 2]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["post", "any", "arrive", "borrow", "withdraw"]),
        st.integers(0, 1),
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
    ),
    max_size=40,
)


@given(STEPS)
def test_any_interleaving_is_matched_as_in_mpi(steps: list[tuple[str, int, int, bool, bool]]) -> None:
    """The model: a list of frames and a list of receives, each searched from the beginning."""
    queue = MatchQueue(0)
    frames: list[tuple[int, int, bytes]] = []
    posted: list[tuple[frozenset[int], range, Receive]] = []
    expected: list[tuple[Receive, bytes]] = []

    def fits(sources: frozenset[int], tags: range, peer: int, tag: int) -> bool:
        return peer in sources and tag in tags

    for number, (event, peer, tag, every_peer, every_tag) in enumerate(steps):
        payload = number.to_bytes(4)
        if event == "withdraw":
            pending = [entry for entry in posted if isinstance(entry[2], AnyReceive)]
            if pending:
                assert queue.withdraw(pending[0][2])  # type: ignore[arg-type]
                posted.remove(pending[0])
        elif event in ("post", "any"):
            sources = frozenset((0, 1)) if event == "any" and every_peer else frozenset((peer,))
            tags = range(3) if event == "any" and every_tag else range(tag, tag + 1)
            found = next((frame for frame in frames if fits(sources, tags, *frame[:2])), None)
            receive: Receive
            if event == "any":
                receive = post_any(queue, tuple(sources), tags)
            else:
                receive = post(queue, 4, peer=peer, tag=tag)[0]
            if found is None:
                posted.append((sources, tags, receive))
            else:
                frames.remove(found)
                expected.append((receive, found[2]))
        else:
            if event == "borrow":
                queue.arrive(peer, tag, 0, 4, Lent(payload)).finish()
            else:
                arrive(queue, payload, peer=peer, tag=tag)
            taker = next((entry for entry in posted if fits(*entry[:2], peer, tag)), None)
            if taker is None:
                frames.append((peer, tag, payload))
            else:
                posted.remove(taker)
                expected.append((taker[2], payload))
        assert not any(receive.done for _, _, receive in posted)
        assert queue.unexpected_frames == len(frames)
        for key in product((0, 1), range(3)):
            awaited = any(fits(*entry[:2], *key) for entry in posted)
            assert queue.awaits(*key) == awaited
            assert queue.knows(*key) == (awaited or any(frame[:2] == key for frame in frames))
    for receive, payload in expected:
        assert receive.done
        assert receive.error is None
        assert bytes(receive.view) == payload
