"""Elastic jobs of `ronde run` over real ssh: hosts that are about to go, that come, and that are lost."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.netns.cluster import Cluster

pytestmark = pytest.mark.cluster

TRAIN = str(Path(__file__).resolve().parents[1] / "collectives" / "launch" / "supervision" / "elastic_train.py")


def test_hosts_are_preempted_added_and_lost(ssh_trio: Cluster, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("alpha:1\nbeta:1\n")
    # A lost host rests for longer than the test: the next world has one rank, however late the loss is noticed.
    rest = ["--blacklist-cooldown-range", "90", "90"]
    options = ["--min-np", "1", *rest, "--hostfile", str(hosts), "--no-prefix", "--time-limit", "80"]
    with ssh_trio.running("alpha", *options, sys.executable, TRAIN, "1000000", "0.02") as job:

        def step(word: str, size: int) -> int:
            """The step in the next line of rank 0 with this word and size."""
            assert job.stdout is not None
            for line in job.stdout:
                said, _, rank, its_size, its_step = line.decode().split()
                if (said, rank, its_size) == (word, "0", str(size)):
                    return int(its_step)
            raise AssertionError(f"the job ended before {word!r}: {job.stderr and job.stderr.read().decode()}")

        step("start", 2)
        os.kill(agent_of(ssh_trio, "beta"), signal.SIGTERM)
        preempted = step("world", 1)
        hosts.write_text("alpha:1\ngamma:1\n")
        joined = step("world", 2)
        os.kill(agent_of(ssh_trio, "gamma"), signal.SIGKILL)
        lost = step("world", 1)
        assert preempted <= joined <= lost, "rank 0 went on where it was"
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=80)
    text = err.decode()
    assert "processes 1 are to leave: its agent got SIGTERM" in text
    assert "host beta is not used any more" in text
    assert "ronde: host gamma: its agent has ended" in text


def agent_of(made: Cluster, host: str) -> int:
    """The process of the agent on a host."""
    (found,) = [
        pid
        for pid, process in made.network.processes().items()
        if process.host == host and "collectives.launch.agent" in process.words
    ]
    return found
