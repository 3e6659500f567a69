"""The mailbox gives every frame to the receive that was posted for it, whichever came first."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports import matching
from transports.errors import MismatchError
from transports.matching import Landing, Mailbox, Receive

PAYLOAD = b"sixteen bytes...."


def arrive(mailbox: Mailbox, payload: bytes, *, peer: int = 1, tag: int = 5, check: int = 0) -> Landing:
    landing = mailbox.arrive(peer, tag, check, len(payload))
    landing.view[:] = payload
    landing.finish()
    return landing


def post(mailbox: Mailbox, nbytes: int, *, peer: int = 1, tag: int = 5, check: int = 0) -> tuple[Receive, bytearray]:
    buffer = bytearray(nbytes)
    return mailbox.post(peer, tag, memoryview(buffer), check), buffer


def test_a_posted_buffer_takes_the_payload_directly() -> None:
    mailbox = Mailbox(0)
    receive, buffer = post(mailbox, len(PAYLOAD))
    landing = mailbox.arrive(1, 5, 0, len(PAYLOAD))
    assert landing.view is receive.view
    landing.view[:] = PAYLOAD
    assert not receive.done
    landing.finish()
    assert receive.done
    assert buffer == PAYLOAD
    assert mailbox.parked_bytes == 0


def test_a_frame_is_parked_until_claimed() -> None:
    mailbox = Mailbox(0)
    arrive(mailbox, PAYLOAD)
    assert mailbox.parked_bytes == len(PAYLOAD)
    assert [landing.tag for landing in mailbox.parked_from(1)] == [5]
    assert mailbox.parked_from(2) == []
    receive, buffer = post(mailbox, len(PAYLOAD))
    assert receive.done
    assert buffer == PAYLOAD
    assert mailbox.parked_bytes == 0
    assert mailbox.parked_from(1) == []


def test_a_frame_may_be_claimed_while_it_arrives() -> None:
    mailbox = Mailbox(0)
    landing = mailbox.arrive(1, 5, 0, len(PAYLOAD))
    receive, buffer = post(mailbox, len(PAYLOAD))
    assert not receive.done
    assert mailbox.parked_bytes == 0
    landing.view[:] = PAYLOAD
    landing.finish()
    assert receive.done
    assert buffer == PAYLOAD


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("nbytes", "check"), [(len(PAYLOAD) - 1, 9), (len(PAYLOAD) + 1, 9), (len(PAYLOAD), 8)])
def test_what_does_not_fit_is_an_error_of_that_receive_alone(early: bool, nbytes: int, check: int) -> None:
    mailbox = Mailbox(3)
    if early:
        arrive(mailbox, PAYLOAD, check=9)
        receive, _ = post(mailbox, nbytes, check=check)
    else:
        receive, _ = post(mailbox, nbytes, check=check)
        arrive(mailbox, PAYLOAD, check=9)
    assert receive.done
    assert isinstance(receive.error, MismatchError)
    assert (receive.error.rank, receive.error.peer) == (3, 1)
    for part in (f"{len(PAYLOAD)} bytes, check 0x00000009 came", f"{nbytes} bytes, check 0x{check:08x} expected"):
        assert part in str(receive.error)
    arrive(mailbox, PAYLOAD, check=9)
    after, buffer = post(mailbox, len(PAYLOAD), check=9)
    assert after.error is None
    assert buffer == PAYLOAD


def test_a_borrowed_payload_is_copied_when_it_is_claimed() -> None:
    mailbox, payload = Mailbox(0), bytearray(PAYLOAD)
    landing = mailbox.arrive(1, 5, 0, len(payload), memoryview(payload))
    landing.finish()
    assert landing.borrowed
    payload[0] ^= 0xFF
    receive, buffer = post(mailbox, len(payload))
    assert receive.done
    assert not landing.borrowed
    assert buffer == payload


def test_a_kept_payload_is_the_senders_no_more() -> None:
    mailbox, payload = Mailbox(0), bytearray(PAYLOAD)
    landing = mailbox.arrive(1, 5, 0, len(payload), memoryview(payload))
    landing.finish()
    landing.keep()
    assert not landing.borrowed
    payload[:] = bytes(len(payload))
    assert post(mailbox, len(payload))[1] == PAYLOAD


def test_a_borrowed_payload_goes_straight_into_a_posted_buffer() -> None:
    mailbox = Mailbox(0)
    receive, buffer = post(mailbox, len(PAYLOAD))
    landing = mailbox.arrive(1, 5, 0, len(PAYLOAD), memoryview(PAYLOAD))
    assert landing.borrowed
    landing.finish()
    assert receive.done
    assert not landing.borrowed
    assert buffer == PAYLOAD


def test_a_borrowed_payload_that_does_not_fit_is_given_back() -> None:
    mailbox = Mailbox(0)
    receive, buffer = post(mailbox, 4)
    landing = mailbox.arrive(1, 5, 0, len(PAYLOAD), memoryview(PAYLOAD))
    landing.finish()
    assert isinstance(receive.error, MismatchError)
    assert not landing.borrowed
    assert buffer == bytes(4)


def test_waiting_for_counts_unmatched_receives_by_peer() -> None:
    mailbox = Mailbox(0)
    for peer, tag in ((1, 1), (1, 2), (2, 1), (1, 1)):
        post(mailbox, 4, peer=peer, tag=tag)
    assert mailbox.waiting_for() == {1: 3, 2: 1}
    arrive(mailbox, b"1234", peer=1, tag=2)
    assert mailbox.waiting_for() == {1: 2, 2: 1}


def test_a_frame_is_taken_if_a_receive_is_posted_for_it_or_there_is_room() -> None:
    mailbox = Mailbox(0)
    assert mailbox.takes(1, 5, 0, 10, max_parked=10)
    assert not mailbox.takes(1, 5, 0, 11, max_parked=10)
    arrive(mailbox, b"1234", tag=6)
    assert mailbox.takes(1, 5, 0, 6, max_parked=10)
    assert not mailbox.takes(1, 5, 0, 7, max_parked=10)
    post(mailbox, 100)
    assert mailbox.takes(1, 5, 0, 100, max_parked=10)
    assert mailbox.takes(1, 5, 0, 7, max_parked=10)  # it does not fit, and is read over
    assert not mailbox.takes(1, 4, 0, 7, max_parked=10)


@pytest.mark.parametrize(("check", "length"), [(0, 2**63), (7, 100)])
def test_a_frame_that_does_not_fit_and_cannot_be_read_over_is_an_error(check: int, length: int) -> None:
    mailbox = Mailbox(3)
    receive, _ = post(mailbox, 100)
    with pytest.raises(MismatchError, match=f"{length} bytes, check {check:#010x} came; 100 bytes") as caught:
        mailbox.takes(1, 5, check, length, max_parked=10)
    assert (caught.value.rank, caught.value.peer) == (3, 1)
    assert not receive.done


def test_the_number_of_parked_frames_is_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "MAX_PARKED_FRAMES", 2)
    mailbox = Mailbox(0)
    for tag in (1, 2):
        assert mailbox.takes(1, tag, 0, 0, max_parked=10)
        arrive(mailbox, b"", tag=tag)
    assert not mailbox.takes(1, 3, 0, 0, max_parked=10)
    post(mailbox, 0, tag=1)
    assert mailbox.takes(1, 3, 0, 0, max_parked=10)


EVENTS = st.lists(st.tuples(st.sampled_from(["post", "arrive", "borrow"]), st.integers(0, 1), st.integers(0, 2)))


@given(EVENTS)
def test_any_interleaving_is_first_in_first_out_per_peer_and_tag(events: list[tuple[str, int, int]]) -> None:
    mailbox = Mailbox(0)
    sent: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
    posted: dict[tuple[int, int], deque[tuple[Receive, bytearray]]] = defaultdict(deque)
    for number, (event, peer, tag) in enumerate(events):
        key, payload = (peer, tag), number.to_bytes(4)
        if event == "post":
            posted[key].append(post(mailbox, 4, peer=peer, tag=tag))
        else:
            if event == "borrow":
                mailbox.arrive(peer, tag, 0, 4, memoryview(payload)).finish()
            else:
                arrive(mailbox, payload, peer=peer, tag=tag)
            sent[key].append(payload)
        while posted[key] and sent[key]:
            receive, buffer = posted[key].popleft()
            assert receive.done
            assert receive.error is None
            assert buffer == sent[key].popleft()
        assert not any(receive.done for receive, _ in posted[key])
    assert mailbox.parked_bytes == 4 * sum(map(len, sent.values()))
