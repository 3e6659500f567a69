"""Calls to newcomers: each that answers in time is heard, however many there are and however busy the caller is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from collectives.membership import calls
from collectives.membership.calls import ask
from collectives.membership.registry import newcomer_path
from collectives.membership.roster import Newcomer
from tests.counting import CountingStore
from transports.base import Member
from transports.packed import unpack
from transports.rendezvous.bootstrap import pack_member
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.tcp import TcpStore
from transports.store import MOST_AWAITED, Store

SECRET = b"a secret for tests only"
NEWCOMERS = [
    Newcomer(f"ticket-{number}", None, pack_member(Member(f"host {number}", "node", 1)), "terms")
    for number in range(MOST_AWAITED)
]


class Answering(CountingStore):
    """A store in which newcomers answer each call at once, but for the first one."""

    def set_default(self, key: str, value: bytes) -> bytes:
        _, _, ticket, *_ = key.split("/")
        name, *_ = unpack(value)
        if ticket != NEWCOMERS[0].ticket:
            self.inner.set(newcomer_path(ticket, f"here/{name}"), b"")
        return super().set_default(key, value)


@pytest.fixture(params=["memory", "tcp"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with (
        TcpStoreServer("127.0.0.1", secret=SECRET) as server,
        contextlib.closing(TcpStore(*server.address, SECRET)) as client,
    ):
        yield client


def test_many_newcomers_answer_and_a_caller_is_late(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ANSWER_SECONDS", 0.0)
    signs = []
    answered = ask(Answering(store), NEWCOMERS, "ready", meanwhile=lambda: signs.append(1))
    assert answered == {newcomer.ticket for newcomer in NEWCOMERS[1:]}
    assert len(signs) > len(NEWCOMERS), "the caller keeps its duties meanwhile"
