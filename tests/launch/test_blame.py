"""Who failed first."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from collectives.launch.blame import culprit, is_consequence, say_why
from transports import errors
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.tcp import TcpStore


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore()
    yield store
    store.close()


def test_without_words_the_first_to_end_is_it(store: MemoryStore) -> None:
    assert culprit(store, [2, 0, 1]) == 2


def test_the_first_to_say_so_is_the_culprit(store: MemoryStore) -> None:
    say_why(store, 0, errors.AbortedError("rank 2 aborted"))
    say_why(store, 2, ValueError("the cause"))
    say_why(store, 1, KeyError("another one, later"))
    assert culprit(store, [0, 1, 2]) == 2


def test_who_says_nothing_is_the_culprit_if_all_others_say_it_was_another(store: MemoryStore) -> None:
    say_why(store, 0, errors.PeerLost("rank 1 died"))
    say_why(store, 2, errors.PeerLost("rank 1 died"))
    assert culprit(store, [0, 2, 1]) == 1


def test_if_all_say_it_was_another_the_first_to_end_is_it(store: MemoryStore) -> None:
    for rank in (0, 1):
        say_why(store, rank, errors.DeadlineExceeded("late"))
    assert culprit(store, [1, 0]) == 1


def test_a_store_that_is_gone_hurts_nobody(store: MemoryStore) -> None:
    store.close()
    say_why(store, 1, ValueError("the cause"))
    assert culprit(store, [0, 1]) == 0


@pytest.mark.parametrize("kind", errors.WIRE_NAMES.values())
def test_consequences(kind: type[errors.RondeError]) -> None:
    tells_of_others = (errors.AbortedError, errors.ClosedError, errors.DeadlineExceeded, errors.PeerLost)
    assert is_consequence(kind("text")) == (kind in tells_of_others)


def test_what_is_raised_while_handling_a_consequence_is_one() -> None:
    def handle() -> None:
        try:
            raise errors.PeerLost("rank 1 died")
        except errors.PeerLost:
            raise ValueError("cannot go on")  # noqa: B904  as users write it

    with pytest.raises(ValueError, match="cannot go on") as caught:
        handle()
    assert is_consequence(caught.value)


def test_a_store_out_of_reach_keeps_nobody_from_ending() -> None:
    """Its server takes connections and never says a word; other calls would wait for 10 s and more."""
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = TcpStore(*listener.getsockname(), b"a secret for tests only", connect_deadline=begun + 60)
        say_why(store, 0, ValueError("the cause"))
        say_why(store, 0, errors.PeerLost("a consequence"))
        store.close()
    assert time.monotonic() - begun < 8
