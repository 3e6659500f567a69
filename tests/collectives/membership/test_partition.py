"""A partition of the ranks: at most the side that reaches the store goes on, if it has enough ranks."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from collectives import Communicator, Config, RendezvousError, RondeError, connect
from collectives.membership import set_bounds
from tests.collectives.membership.changes import SECONDS
from tests.collectives.membership.shrinks import compute
from tests.worlds import COMPILED, SECRET
from transports.errors import DeadlineExceeded
from transports.rendezvous import MemoryStore, join
from transports.store import Store

SIZE = 5


class FarStore(Store):
    """A store as one side of a partition sees it: out of reach once `cut` is set."""

    def __init__(self, inner: Store, cut: threading.Event) -> None:
        self._inner = inner
        self._cut = cut

    def set(self, key: str, value: bytes) -> None:
        self._reached().set(key, value)

    def get(self, key: str, deadline: float) -> bytes:
        while not self._cut.is_set():
            try:
                return self._reached().get(key, min(deadline, time.monotonic() + 0.02))
            except DeadlineExceeded:
                if time.monotonic() >= deadline:
                    raise
        raise RendezvousError("no way to the store")

    def set_default(self, key: str, value: bytes) -> bytes:
        return self._reached().set_default(key, value)

    def add(self, key: str, amount: int) -> int:
        return self._reached().add(key, amount)

    def delete(self, key: str) -> bool:
        return self._reached().delete(key)

    def close(self) -> None:
        """The other store belongs to the test."""

    def _reached(self) -> Store:
        if self._cut.is_set():
            raise RendezvousError("no way to the store")
        return self._inner


@pytest.mark.long
@pytest.mark.parametrize(
    ("far", "minimum", "goes_on"),
    [
        pytest.param({3, 4}, 2, [0, 1, 2], id="majority with the store"),
        pytest.param({1, 2, 3, 4}, 1, [0], id="one rank with the store, a majority without"),
        pytest.param({0, 1, 2}, 2, [3, 4], id="as many with the store as there must be, without rank 0"),
        pytest.param({0, 1, 2}, 3, [], id="too few with the store, a majority without"),
    ],
)
def test_at_most_the_side_with_the_store_goes_on(far: set[int], minimum: int, goes_on: list[int]) -> None:
    """The first rank of the far side regroups while it is cut off, the others when they reach the store again."""
    cut, store, decided = threading.Event(), MemoryStore(), threading.Barrier(SIZE)
    config = Config.load(
        {"transport": "local", "timeout": SECONDS, "calibrate": False, "compiled": COMPILED}, environment={}
    )

    def rank(number: int) -> str:
        deadline = time.monotonic() + SECONDS
        own = FarStore(store, cut) if number in far else store
        comm = connect(join(number, SIZE, own, secret=SECRET, deadline=deadline), config, deadline)
        with comm:
            compute(comm, list(range(SIZE)))
            decided.wait(SECONDS)
            if number in far:
                cut.set()
            else:  # the messages of the other side do not come
                with pytest.raises(RondeError):
                    comm.allreduce(np.ones(3), timeout=0.3)
            late = number in far - {min(far)}
            outcome, new = ("", None) if late else regroup(comm)
            decided.wait(SECONDS)
            cut.clear()
            if late:
                outcome, new = regroup(comm)
            if new is not None:
                with new:
                    compute(new, goes_on)
            return outcome

    set_bounds(store, minimum, None)
    with ThreadPoolExecutor(SIZE) as pool:
        outcomes = list(pool.map(rank, range(SIZE)))
    store.close()
    assert [number for number, outcome in enumerate(outcomes) if outcome == "goes on"] == goes_on
    for number in set(range(SIZE)) - set(goes_on):
        if number == min(far):
            assert "no way to the store" in outcomes[number]
        elif number in far:
            assert "the other ranks continued without rank" in outcomes[number]
        else:
            assert f"{SIZE - len(far)} ranks are left, {minimum} are needed" in outcomes[number]


def regroup(comm: Communicator) -> tuple[str, Communicator | None]:
    """Regroup: why it failed, or the new communicator."""
    try:
        new = comm.regroup(timeout=0.5)
    except RendezvousError as error:
        return error.message, None
    assert new is not None
    return "goes on", new
