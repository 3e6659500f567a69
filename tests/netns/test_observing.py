"""A slow link between hosts, found in the flight records of the ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collectives.flight import read, records
from collectives.observing import Charges, Comparison, Kind, judge
from tests.netns import jobs
from tests.netns.cases import FAR
from tests.netns.jobs import World
from tests.netns.site import Site, check_sound
from tests.netns.worker import Link

PAIRS = ((0, 1), (1, 2), (2, 0))
COUNT, STEPS = 1 << 15, 6


def in_pairs(link: Link, rank: int, world: World, folder: str) -> jobs.Story:
    """Allreduces of each pair of ranks in turn."""
    with jobs.told(rank) as story:
        comm = jobs.join(rank, world)
        pairs = [comm.split(0 if rank in pair else None) for pair in PAIRS]
        x = np.ones(COUNT, np.float32)
        for _ in range(STEPS):
            for pair in pairs:
                comm.barrier()
                if pair is not None:
                    pair.allreduce(x)
        comm.barrier()
        comm.save_flight_record(folder)
    return story


def test_a_host_with_a_slow_line_is_named(trio: Site, tmp_path: Path) -> None:
    trio.network.slow(FAR, "10mbit", "400ms")
    with trio.running(in_pairs, str(tmp_path), config={"transport": "tcp"}) as run:
        check_sound(run.results())
    charges = Charges.of(Comparison(read(path, 0) for path in records(tmp_path)))
    (culprit,) = judge(charges)
    assert culprit.kind == Kind.SLOW_LINK
    assert set(culprit.ranks) == trio.ranks_on(FAR)
