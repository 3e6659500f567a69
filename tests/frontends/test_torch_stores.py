"""The way from torch's store to Ronde's."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from frontends.torch.stores import open_store  # noqa: E402
from transports.errors import RendezvousError  # noqa: E402

pytestmark = pytest.mark.frameworks


def test_the_address_of_a_store_that_has_ended_is_not_used() -> None:
    """torchrun starts the ranks again with the same store, and rank 1 is the first to read it."""
    theirs = torch.distributed.HashStore()
    with contextlib.ExitStack() as earlier:
        open_store(theirs, 0, time.monotonic() + 10, earlier, None)
    reading = threading.Event()

    class Noticed:
        """torch's store, which tells when it is read."""

        def wait(self, *arguments: object) -> None:
            theirs.wait(*arguments)

        def get(self, key: str) -> bytes:
            found: bytes = theirs.get(key)
            reading.set()
            return found

    with contextlib.ExitStack() as resources:

        def rank_0() -> None:
            reading.wait(10)
            store, _ = open_store(theirs, 0, time.monotonic() + 10, resources, None)
            store.set("said", b"by rank 0")

        thread = threading.Thread(target=rank_0)
        thread.start()
        store, _ = open_store(Noticed(), 1, time.monotonic() + 10, resources, None)
        assert store.get("said", time.monotonic() + 10) == b"by rank 0"
        thread.join()


def test_a_store_that_never_answers_is_an_error_in_time() -> None:
    theirs = torch.distributed.HashStore()
    with contextlib.ExitStack() as earlier:
        open_store(theirs, 0, time.monotonic() + 10, earlier, None)
    with contextlib.ExitStack() as resources, pytest.raises(RendezvousError, match="store at tcp://"):
        open_store(theirs, 1, time.monotonic() + 0.3, resources, None)
