"""The queue gives every frame to the receive that was posted for it, whichever came first."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports import matching
from transports.errors import MismatchError
from transports.matching import InboundMessage, MatchQueue, Receive

PAYLOAD = b"sixteen bytes...."


def arrive(queue: MatchQueue, payload: bytes, *, peer: int = 1, tag: int = 5, check: int = 0) -> InboundMessage:
    inbound = queue.arrive(peer, tag, check, len(payload))
    inbound.view[:] = payload
    inbound.finish()
    return inbound


def post(queue: MatchQueue, nbytes: int, *, peer: int = 1, tag: int = 5, check: int = 0) -> tuple[Receive, bytearray]:
    buffer = bytearray(nbytes)
    return queue.post(peer, tag, memoryview(buffer), check), buffer


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
    assert [inbound.tag for inbound in queue.unexpected_from(1)] == [5]
    assert queue.unexpected_from(2) == []
    receive, buffer = post(queue, len(PAYLOAD))
    assert receive.done
    assert buffer == PAYLOAD
    assert queue.unexpected_bytes == 0
    assert queue.unexpected_from(1) == []


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
    for part in (f"{len(PAYLOAD)} bytes, check 0x00000009 came", f"{nbytes} bytes, check 0x{check:08x} expected"):
        assert part in str(receive.error)
    arrive(queue, PAYLOAD, check=9)
    after, buffer = post(queue, len(PAYLOAD), check=9)
    assert after.error is None
    assert buffer == PAYLOAD


def test_a_borrowed_payload_is_copied_when_it_is_claimed() -> None:
    queue, payload = MatchQueue(0), bytearray(PAYLOAD)
    inbound = queue.arrive(1, 5, 0, len(payload), memoryview(payload))
    inbound.finish()
    assert inbound.borrowed
    payload[0] ^= 0xFF
    receive, buffer = post(queue, len(payload))
    assert receive.done
    assert not inbound.borrowed
    assert buffer == payload


def test_a_kept_payload_is_the_senders_no_more() -> None:
    queue, payload = MatchQueue(0), bytearray(PAYLOAD)
    inbound = queue.arrive(1, 5, 0, len(payload), memoryview(payload))
    inbound.finish()
    inbound.keep()
    assert not inbound.borrowed
    payload[:] = bytes(len(payload))
    assert post(queue, len(payload))[1] == PAYLOAD


def test_a_borrowed_payload_goes_straight_into_a_posted_buffer() -> None:
    queue = MatchQueue(0)
    receive, buffer = post(queue, len(PAYLOAD))
    inbound = queue.arrive(1, 5, 0, len(PAYLOAD), memoryview(PAYLOAD))
    assert inbound.borrowed
    inbound.finish()
    assert receive.done
    assert not inbound.borrowed
    assert buffer == PAYLOAD


def test_a_borrowed_payload_that_does_not_fit_is_given_back() -> None:
    queue = MatchQueue(0)
    receive, buffer = post(queue, 4)
    inbound = queue.arrive(1, 5, 0, len(PAYLOAD), memoryview(PAYLOAD))
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


@pytest.mark.parametrize(("check", "length"), [(0, 2**63), (7, 100)])
def test_a_frame_that_does_not_fit_and_cannot_be_read_over_is_an_error(check: int, length: int) -> None:
    queue = MatchQueue(3)
    receive, _ = post(queue, 100)
    with pytest.raises(MismatchError, match=f"{length} bytes, check {check:#010x} came; 100 bytes") as caught:
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
                queue.arrive(peer, tag, 0, 4, memoryview(payload)).finish()
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
