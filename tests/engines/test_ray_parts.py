"""Parts of frontends.ray that need no cluster: room for workers, and groups of `ray.util.collective`."""

from __future__ import annotations

import contextlib
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.launch import GuestJob, Place
from tests.worlds import world_of
from transports.errors import RendezvousError

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ronde[ray]'")

from frontends.ray import groups
from frontends.ray.groups import RondeGroup
from frontends.ray.placement import room_in


@pytest.mark.parametrize(
    ("offered", "wanted", "room"),
    [
        ({"CPU": 1.0}, {"CPU": 0.1}, 10),
        ({"CPU": 0.3}, {"CPU": 0.1}, 3),
        ({"CPU": 0.7, "GPU": 1.0}, {"CPU": 0.1, "GPU": 0.5}, 2),
        ({"CPU": 2.0}, {"CPU": 0.3}, 6),
        ({"CPU": 2.0}, {"GPU": 1.0}, 0),
        ({"CPU": 1.0}, {"CPU": 2.0}, 0),
    ],
)
def test_room_for_workers(offered: dict[str, float], wanted: dict[str, float], room: int) -> None:
    assert room_in(offered, wanted) == room


def group_of(comm: Communicator) -> RondeGroup:
    group = object.__new__(RondeGroup)
    group._world_size, group._rank, group._communicator = comm.size, comm.rank, comm
    return group


def test_a_rank_0_that_was_killed_has_left_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others take the store of the next rank 0, though they read the old key first."""
    table: dict[bytes, bytes] = {}
    monkeypatch.setattr(groups.internal_kv, "_internal_kv_get", table.get)
    place = Place("node", "127.0.0.1")
    with GuestJob() as job:
        table[b"key"] = pickle.dumps(job.seats([place] * 2))  # its store ends
    with GuestJob() as job, ThreadPoolExecutor(1) as pool:
        found = pool.submit(groups.serving_store, b"key", 1, "name", time.monotonic() + 60, None)
        seats = job.seats([place] * 2)
        table[b"key"] = pickle.dumps(seats)
        seat, store = found.result(30)
        with contextlib.closing(store):
            assert seat.job == seats[1].job
            assert store.peek("reach") is None
    with pytest.raises(RendezvousError, match="no connection"):
        groups.serving_store(b"key", 1, "name", time.monotonic() + 0.1, None)


def test_parts_of_a_group_are_alike() -> None:
    def rank(comm: Communicator) -> None:
        group, own = group_of(comm), np.full(2, comm.rank + 1.0)
        for bad, text in (
            (
                [np.zeros(3), np.zeros(1)],
                r"tensor_list\[0\]: .*float64 .*\(3,\), .*float64 .*\(2,\)",
            ),
            ([np.zeros(2), np.zeros((2, 2))], r"tensor_list\[1\]: .*float64 .*\(2, 2\)"),
            ([np.zeros(2), np.zeros(2, np.float32)], r"tensor_list\[1\]: .*float32"),
            ([np.zeros(2)], "1 tensors, .*2"),
        ):
            for call in (lambda bad: group.allgather([bad], [own]), lambda bad: group.reducescatter([own], [bad])):
                with pytest.raises(ValueError, match=text):
                    call(bad)
        parts: list[Any] = [np.zeros(2), np.zeros(2)]
        group.allgather([parts], [own])
        assert [part.tolist() for part in parts] == [[1.0, 1.0], [2.0, 2.0]]
        group.reducescatter([own], [parts])
        assert own.tolist() == [2.0 * (comm.rank + 1)] * 2

    with world_of("local", 2) as world:
        world.run(rank)
