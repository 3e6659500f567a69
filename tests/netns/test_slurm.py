"""`ronde run` in allocations of a real Slurm."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.collectives.launch.launcher import RONDE
from tests.netns import slurm
from tests.netns.slurm import BOUND, Slurm, salloc

pytestmark = pytest.mark.long

RUN = [*RONDE, "run"]
SLEEP = "98766"
SUM = """
import collectives as ronde, numpy as np, socket
world = ronde.init()
print(world.rank, world.local_rank, socket.gethostname(), world.allreduce(np.ones(9))[0], flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    reason = slurm.obstacle()
    if reason is not None:
        pytest.skip(reason)
    with Slurm() as made:
        yield made


def test_ranks_fill_the_allocation(cluster: Slurm) -> None:
    code, out, err = cluster.run(*salloc(2, 2, [*RUN, "--no-prefix", sys.executable, "-c", SUM]))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["0 0 alpha 4.0", "1 1 alpha 4.0", "2 0 beta 4.0", "3 1 beta 4.0"]


def test_output_and_input_pass_unchanged(cluster: Slurm) -> None:
    script = r"printf '\000\377 no newline at the end of rank %s' $RONDE_RANK; echo problem >&2"
    code, out, err = cluster.run(*salloc(2, 1, [*RUN, "--no-prefix", "sh", "-c", script]))
    assert code == 0, err
    assert err.splitlines() == ["problem", "problem"]
    for rank in (0, 1):
        assert f"no newline at the end of rank {rank}" in out


def test_a_failing_rank(cluster: Slurm) -> None:
    script = f"[ $RONDE_RANK = 1 ] && {{ echo the reason >&2; exit 9; }}; exec sleep {SLEEP}"
    code, _, err = cluster.run(*salloc(2, 1, [*RUN, "sh", "-c", script]))
    assert code == 9
    assert "ronde: rank 1 failed: exited with 9 (host beta" in err
    assert not cluster.processes("sleep", SLEEP)


def test_nothing_is_left_after_the_launcher_was_killed(cluster: Slurm) -> None:
    script = f"echo ready; exec sleep {SLEEP}"
    with cluster.running(*salloc(2, 1, [*RUN, "sh", "-c", script])) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert b"ready" in process.stdout.readline()
        assert len(cluster.processes("sleep", SLEEP)) == 2
        launchers = [pid for pid in cluster.processes("run", "sh", "-c", script) if "salloc" not in name_of(pid)]
        for pid in launchers:
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 30.0
        while cluster.processes("sleep", SLEEP):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.communicate(timeout=BOUND)


def test_an_elastic_job_ends_with_its_allocation(cluster: Slurm) -> None:
    """scancel ends the steps, but not the launcher in salloc, nor the ranks beside it."""
    script = f"echo ready; exec sleep {SLEEP}"
    with cluster.running(*salloc(2, 1, [*RUN, "--min-np", "1", "sh", "-c", script])) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert b"ready" in process.stdout.readline()
        code, _, err = cluster.run("scancel", "--user=root")
        assert code == 0, err
        _, errors = process.communicate(timeout=BOUND)
    assert "ronde: the allocation has ended: scontrol show job " in errors.decode()
    assert not cluster.processes("sleep", SLEEP)


def name_of(pid: int) -> str:
    """The name of a process's program."""
    with open(f"/proc/{pid}/comm") as file:
        return file.read()


def test_several_launchers_are_refused(cluster: Slurm) -> None:
    code, _, err = cluster.run("srun", "-n", "2", *RUN, "true")
    assert code == 2
    assert "srun" in err
    assert "has started several copies of this launcher, `ronde run`" in err
