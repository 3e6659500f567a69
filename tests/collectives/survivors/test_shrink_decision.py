"""The decision on the survivors, and the choice of one proposal."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import DeadlineExceeded, RendezvousError
from collectives.survivors.decision import Blame, Knowledge, decide_survivors
from tests.collectives.ranks import SECONDS, SECRET
from tests.collectives.survivors.shrinks import soon
from transports.rendezvous.bootstrap import open_store
from transports.rendezvous.file import FileStore
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.once import decide, decided
from transports.rendezvous.server import TcpStoreServer
from transports.store import Store

# ---- the decision


@st.composite
def knowledge(draw: st.DrawFn) -> Knowledge:
    size = draw(st.integers(1, 8))
    ranks = st.integers(0, size - 1)
    blames = st.builds(Blame, st.just("blamed"), st.floats(0, 10))
    return Knowledge(
        size,
        frozenset(draw(st.sets(ranks))),
        draw(st.dictionaries(ranks, st.just("lost"))),
        draw(st.dictionaries(ranks, blames)),
    )


@given(knowledge(), st.floats(0, 20), st.floats(0, 20))
def test_decision_follows_from_the_knowledge(known: Knowledge, waited: float, timeout: float) -> None:
    decision, awaited = decide_survivors(known, waited, timeout)
    everyone = set(range(known.size))
    assert (decision is None) == bool(awaited)
    for rank in awaited:
        assert rank not in known.here
        assert rank not in known.lost
        assert waited < timeout
        assert rank not in known.blamed or waited < known.blamed[rank].patience
    if decision is None:
        later, _ = decide_survivors(known, timeout, timeout)
        assert later is not None
        return
    assert list(decision.survivors) == sorted(decision.survivors)
    assert set(decision.survivors) == known.here - set(known.lost)
    assert set(decision.survivors) | set(decision.left_out) == everyone
    assert not set(decision.survivors) & set(decision.left_out)
    for rank, why in decision.left_out.items():
        if rank in known.lost:
            assert why == "lost"
        elif rank in known.blamed and waited >= known.blamed[rank].patience:
            assert why == "blamed"
        elif waited >= timeout:
            assert rank in known.blamed or why == f"it did not come within {timeout:g} s"
    assert decide_survivors(known, waited + 1, timeout)[0] is not None
    more = dataclasses.replace(known, here=known.here | {0})
    assert decide_survivors(more, waited, timeout)[0] is not None


# ---- one decision of all ranks


@pytest.fixture(params=["memory", "file", "tcp"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "file":
        with contextlib.closing(FileStore(tmp_path / "store")) as opened:
            yield opened
    else:
        with (
            TcpStoreServer("127.0.0.1", secret=SECRET) as server,
            contextlib.closing(open_store(server.url, SECRET, soon())) as opened,
        ):
            yield opened


def test_many_proposals_give_one_decision(store: Store) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = {
            key: [pool.submit(decide, store, key, b"%d" % rank, soon()) for rank in range(6)] for key in ("a", "b", "c")
        }
        for key, futures in answers.items():
            (answer,) = {future.result(SECONDS) for future in futures}
            assert answer in [b"%d" % rank for rank in range(6)]
            assert decide(store, key, b"late", soon()) == decided(store, key, soon()) == answer
    with pytest.raises(DeadlineExceeded):
        decided(store, "d", soon(0.01))


def test_rank_that_dies_while_it_proposes_does_not_block_the_others() -> None:
    class Dying(MemoryStore):
        calls = 0

        def set(self, key: str, value: bytes) -> None:
            self.mortal()
            super().set(key, value)

        def add(self, key: str, amount: int) -> int:
            self.mortal()
            return super().add(key, amount)

        def mortal(self) -> None:
            self.calls -= 1
            if self.calls == 0:
                raise KeyboardInterrupt

    for calls in (1, 2, 3):
        store = Dying()
        store.calls = calls
        with pytest.raises(KeyboardInterrupt):
            decide(store, "key", b"mine", soon())
        assert decide(store, "key", b"yours", soon()) == b"yours"


def test_value_that_is_not_a_decision_is_refused(store: Store) -> None:
    store.set("key/chosen", b"junk")
    with pytest.raises(RendezvousError, match="something else where the number of a decision should be"):
        decided(store, "key", soon())
