"""Little memory that ranks can share: a world goes on with what there is room for."""

from __future__ import annotations

import errno
import logging
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, ConnectError
from tests.worlds import world_of
from transports.errors import RendezvousError
from transports.shm.segments import Segment

BOARD, WINDOW = 4 << 20, 14 << 20
"""Bytes that are enough for the rings of two ranks, and for one staging window as well."""


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A disk of so many bytes."""
    left, create = request.param, Segment.create

    def limited(nbytes: int, directory: str = "") -> Segment:
        nonlocal left
        if nbytes > left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= nbytes
        return create(nbytes, directory)

    monkeypatch.setattr(Segment, "create", limited)


def work(comm: Communicator) -> None:
    for size in (1, 1000, 600_000):
        found = comm.allreduce(np.full(size, comm.rank + 1.0, np.float32))
        assert (found == 3).all()
        named = comm.allreduce_async(np.full(size, comm.rank + 1.0, np.float32), name=f"a{size}")
        gathered = comm.allgather_async(np.full(size, comm.rank), name=f"g{size}")
        assert (named.wait() == 3).all()
        assert (gathered.wait() == np.repeat([0, 1], size)).all()
        for _ in range(3):
            assert (comm.allgather(np.arange(size + comm.rank)) == [*range(size), *range(size + 1)]).all()
    many = comm.grouped_allreduce([np.full(10, comm.rank, np.float64)] * 20)
    assert all((one == 1).all() for one in many)
    try:
        array = comm.empty((600_000,), np.float64)
    except RendezvousError:
        return
    array[:] = 1
    assert (comm.allreduce(array, out=array) == 2).all()


@pytest.mark.long
@pytest.mark.parametrize("little", [1000, BOARD, WINDOW, 1 << 40], indirect=True)
@pytest.mark.parametrize("compiled", ["auto", "off"])
@pytest.mark.usefixtures("little")
def test_l18_auto_goes_on_with_any_memory(compiled: str) -> None:
    with world_of("auto", 2, compiled=[compiled], calibrate=True) as world:
        world.run(work)


@pytest.mark.long
@pytest.mark.parametrize("little", [BOARD, WINDOW], indirect=True)
@pytest.mark.usefixtures("little")
def test_l18_shm_goes_on_without_windows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), world_of("shm", 2) as world:
        world.run(work)
    assert any("as messages" in record.message for record in caplog.records)


@pytest.mark.parametrize("little", [1000], indirect=True)
@pytest.mark.usefixtures("little")
def test_l18_shm_without_room_for_its_rings_is_an_error() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        world_of("shm", 2).__enter__()
    errors: list[Any] = [*caught.value.exceptions]
    assert all(isinstance(error, ConnectError) for error in errors)
