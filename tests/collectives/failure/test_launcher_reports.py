"""The rank that failed first, from the reports of the ranks."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from collectives.failure.launcher_reports import culprit, is_consequence, report_exit
from transports import errors
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.tcp import TcpStore


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore()
    yield store
    store.close()


def test_culprit_without_reports_is_the_first_to_end(store: MemoryStore) -> None:
    assert culprit(store, [2, 0, 1]) == 2


def test_culprit_is_the_first_to_report_a_cause(store: MemoryStore) -> None:
    report_exit(store, 0, errors.AbortedError("rank 2 aborted"))
    report_exit(store, 2, ValueError("the cause"))
    report_exit(store, 1, KeyError("another one, later"))
    assert culprit(store, [0, 1, 2]) == 2


def test_culprit_is_the_silent_rank_if_all_others_report_consequences(store: MemoryStore) -> None:
    report_exit(store, 0, errors.PeerLost("rank 1 died"))
    report_exit(store, 2, errors.PeerLost("rank 1 died"))
    assert culprit(store, [0, 2, 1]) == 1


def test_culprit_is_the_first_to_end_if_all_report_consequences(store: MemoryStore) -> None:
    for rank in (0, 1):
        report_exit(store, rank, errors.DeadlineExceeded("late"))
    assert culprit(store, [1, 0]) == 1


def test_reports_without_a_store_are_dropped(store: MemoryStore) -> None:
    store.close()
    report_exit(store, 1, ValueError("the cause"))
    assert culprit(store, [0, 1]) == 0


@pytest.mark.parametrize("kind", errors.WIRE_NAMES.values())
def test_errors_that_are_consequences(kind: type[errors.RondeError]) -> None:
    tells_of_others = (errors.AbortedError, errors.ClosedError, errors.DeadlineExceeded, errors.PeerLost)
    assert is_consequence(kind("text")) == (kind in tells_of_others)


def test_error_raised_while_handling_a_consequence_is_one() -> None:
    def handle() -> None:
        try:
            raise errors.PeerLost("rank 1 died")
        except errors.PeerLost:
            raise ValueError("cannot go on")  # noqa: B904  as users write it

    with pytest.raises(ValueError, match="cannot go on") as caught:
        handle()
    assert is_consequence(caught.value)


@pytest.mark.parametrize("first", [ValueError("a"), errors.PeerLost("rank 1 died")])
def test_causes_of_an_error_may_come_back_to_it(first: Exception) -> None:
    """An error that is kept, raised again, and handled by code that raises from it has such causes."""
    second, third = TypeError("b"), KeyError("c")
    third.__cause__, second.__context__, first.__cause__ = second, first, second
    assert is_consequence(third) == isinstance(first, errors.PeerLost)


@pytest.mark.long
def test_report_to_a_store_out_of_reach_ends_soon() -> None:
    """Its server accepts connections and never answers; other calls would wait for 10 s and more."""
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = TcpStore(*listener.getsockname(), b"a secret for tests only", connect_deadline=begun + 60)
        report_exit(store, 0, ValueError("the cause"))
        report_exit(store, 0, errors.PeerLost("a consequence"))
        store.close()
    assert time.monotonic() - begun < 8
