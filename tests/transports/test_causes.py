"""The first cause of a job's end reaches those whom the transport could not tell."""

from __future__ import annotations

import threading

from transports.errors import MismatchError, PeerLost
from transports.rendezvous.causes import Causes
from transports.rendezvous.memory import MemoryStore


def test_the_first_cause_stays_and_keeps_its_kind() -> None:
    store = MemoryStore()
    assert Causes(store).fetch(0.01) is None
    Causes(store).publish(MismatchError("ranks disagree", rank=1, peer=2))
    Causes(store).publish(PeerLost("a consequence", rank=2, peer=1))
    cause = Causes(store).fetch(0.01)
    assert isinstance(cause, MismatchError)
    assert (cause.message, cause.rank, cause.peer) == ("ranks disagree", 1, 2)


def test_an_early_fetch_returns_the_cause_once_published() -> None:
    store = MemoryStore()
    heard = []
    asker = threading.Thread(target=lambda: heard.append(Causes(store).fetch(20)))
    asker.start()
    Causes(store).publish(PeerLost("rank 3 died"))
    asker.join(20)
    assert [str(cause) for cause in heard] == ["rank 3 died"]


def test_a_store_that_is_gone_is_no_new_error() -> None:
    store = MemoryStore()
    store.close()
    Causes(store).publish(PeerLost("rank 3 died"))
    assert Causes(store).fetch(0.01) is None
