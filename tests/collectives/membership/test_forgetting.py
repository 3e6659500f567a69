"""The store forgets generations of long ago."""

from __future__ import annotations

import numpy as np
import pytest

from collectives import Communicator
from tests.collectives.membership.changes import SECONDS, job
from transports.rendezvous import MemoryStore


class Recording(MemoryStore):
    """Remembers the keys that were ever written."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()

    def set(self, key: str, value: bytes) -> None:
        self.keys.add(key)
        super().set(key, value)

    def set_default(self, key: str, value: bytes) -> bytes:
        self.keys.add(key)
        return super().set_default(key, value)

    def add(self, key: str, amount: int) -> int:
        self.keys.add(key)
        return super().add(key, amount)

    def held(self) -> int:
        """The bytes of the generations' keys and values."""
        keys = sorted(key for key in tuple(self.keys) if key.startswith("generation-"))  # the other rank adds keys
        values = self.peek_all(keys)
        return sum(len(key) + len(value) for key, value in zip(keys, values, strict=True) if value is not None)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_l15_the_store_does_not_grow_by_a_generation_with_each_regroup(transport: str) -> None:
    store = Recording()
    sizes: list[int] = []

    def body(comm: Communicator) -> Communicator:
        for _ in range(30):
            comm = comm.regroup()
            assert comm.allreduce(np.ones(3)).tolist() == [comm.size] * 3
            if comm.rank == 0:
                sizes.append(store.held())
        return comm

    with job(transport) as made:
        made.store.close()
        made.store = store
        for future in made.start(2, body):
            future.result(4 * SECONDS)
    assert min(sizes) > 0
    assert (sizes[29] - sizes[9]) / 20 < 400, sizes  # one by one they also fall: the other rank may be ahead
