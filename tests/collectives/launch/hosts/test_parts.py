"""More ranks on a host than one process has descriptors for: they are divided among agents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.launch.hosts import parts
from tests.collectives.launch.fake_ssh import install
from tests.collectives.launch.launcher import BOUND, RONDE, environment
from transports.errors import ConfigError

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes are watched by pidfds, as Linux has")

ROOT = Path(__file__).resolve().parents[4]
LIMIT = 72
RANKS = 20


def few_descriptors(*arguments: str, limit: int = LIMIT) -> list[str]:
    """The command line of `ronde` with a limit of descriptors."""
    return ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", *RONDE, *arguments]


def ronde(
    *arguments: str, limit: int = LIMIT, given: bytes = b"", extra: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `ronde` to its end with few descriptors."""
    command = few_descriptors(*arguments, limit=limit)
    return subprocess.run(command, input=given, capture_output=True, timeout=BOUND, env=environment(extra), check=False)


@pytest.mark.parametrize(("ranks", "limit"), [(40, 256), (200, 256), (10_000, 256), (10_000, 4096), (64, 64)])
def test_a_tree_has_room_for_all_ranks(monkeypatch: pytest.MonkeyPatch, ranks: int, limit: int) -> None:
    monkeypatch.setattr(parts, "allow_many", lambda: limit)
    monkeypatch.setattr(parts, "_open_now", lambda: 12)
    levels, nodes = 0, [ranks]
    while nodes:
        below = [parts.divided(node) for node in nodes]
        for node, sizes in zip(nodes, below, strict=True):
            assert not sizes or (sum(sizes) == node and max(sizes) - min(sizes) <= 1)
            used = len(sizes) * parts.PER_PART if sizes else node * parts.PER_RANK
            assert used + 12 + parts.SPARE <= limit
        nodes = [size for sizes in below for size in sizes]
        levels += bool(nodes)
    assert levels == {(40, 256): 1, (200, 256): 1, (10_000, 256): 2, (10_000, 4096): 1, (64, 64): 2}[ranks, limit]


def test_no_agents_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "allow_many", lambda: float("inf"))
    assert parts.divided(100_000) == []


def test_a_limit_that_is_too_low_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "allow_many", lambda: 40)
    monkeypatch.setattr(parts, "_open_now", lambda: 12)
    with pytest.raises(ConfigError, match=r"descriptors .* 40 .*20 ranks .*46"):
        parts.divided(20)


@pytest.mark.processes
@pytest.mark.parametrize("host", ["localhost", "h1"])
def test_ranks_in_parts_are_as_others(tmp_path: Path, host: str) -> None:
    script = "echo $RONDE_RANK $RONDE_LOCAL_RANK $RONDE_LOCAL_SIZE $(wc -c); [ $RONDE_RANK != 13 ] || exit 7"
    extra = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    given = b"x" * 100_000
    done = ronde("run", "-H", f"{host}:{RANKS}", "--no-prefix", "sh", "-c", script, given=given, extra=extra)
    expected = {f"{rank} {rank} {RANKS} {len(given) if rank == 0 else 0}" for rank in range(RANKS)}
    assert set(done.stdout.decode().splitlines()) == expected, done.stderr.decode()
    assert done.returncode == 7
    assert "rank 13" in done.stderr.decode()


@pytest.mark.processes
def test_newcomers_find_room_in_parts(tmp_path: Path) -> None:
    """The newcomer replaces a rank that was killed."""
    go = tmp_path / "go"
    script = f"""
        if [ $RONDE_JOIN ]; then echo $RONDE_JOIN $RONDE_LOCAL_SIZE; touch {go}; exit 0; fi
        [ $RONDE_RANK != 13 ] || kill -9 $$
        n=0; while [ ! -e {go} ] && [ $n -lt 600 ]; do sleep 0.2; n=$((n+1)); done
        """
    extra = install(tmp_path) | {"PYTHONPATH": str(ROOT)}
    elastic = ["--min-np", "1", "-np", str(RANKS), "--max-np", str(RANKS), "--network-interface", "lo"]
    done = ronde("run", "-H", f"h1:{RANKS + 1}", "--no-prefix", *elastic, "sh", "-c", script, extra=extra)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == [str(RANKS), str(RANKS + 1)]
    assert "process 13 failed: killed by SIGKILL" in done.stderr.decode()


@pytest.mark.processes
def test_a_limit_that_is_too_low_ends_an_elastic_job() -> None:
    done = ronde("run", "--min-np", str(RANKS), "true", limit=40)
    assert done.returncode == 2
    assert b"ronde run: the limit of open descriptors is 40 (ulimit -Hn): too low for 20 ranks" in done.stderr


@pytest.mark.processes
def test_a_program_that_cannot_be_started_is_one_error() -> None:
    done = ronde("run", "-np", str(RANKS), "/nowhere/program")
    assert (done.returncode, done.stderr.decode().strip()) == (
        127,
        "ronde run: cannot start '/nowhere/program': No such file or directory",
    )


@pytest.mark.processes
def test_the_loss_of_an_agent_ends_its_ranks_and_the_job() -> None:
    script = "echo $$; [ $RONDE_RANK = 0 ] || exec sleep 100; read -r line; kill -9 $PPID; exec sleep 100"
    command = few_descriptors("run", "-np", str(RANKS), "--no-prefix", "sh", "-c", script)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), **pipes) as job:
        assert job.stdout is not None
        pids = [int(job.stdout.readline()) for _ in range(RANKS)]  # all run
        _, err = job.communicate(b"now\n", timeout=BOUND)
    assert job.returncode == 128 + signal.SIGKILL, err.decode()
    assert b"its agent has ended" in err
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


CHANGING = """
import os, signal, sys, time
import numpy, ronde
ranks = int(sys.argv[1])
comm = ronde.init()
total = lambda: comm.allreduce(numpy.ones(1000))[0]
if "RONDE_JOIN" not in os.environ:
    assert total() == ranks
    if comm.rank == ranks // 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            total()
    except ronde.RondeError:
        comm = ronde.regroup()
    while comm.size < ranks:
        comm = ronde.regroup() if comm.changes_pending() else comm
        time.sleep(0.05)
print(total(), len(os.listdir("/proc/self/fd")) <= 128)
ronde.shutdown()
"""


@pytest.mark.cluster
@pytest.mark.crowd
@pytest.mark.processes
@pytest.mark.parametrize("ranks", [60, pytest.param(200, marks=pytest.mark.nightly)])
def test_ranks_with_256_descriptors_lose_one_and_gain_one(ranks: int) -> None:
    elastic = ["--min-np", str(ranks - 50), "--max-np", str(ranks), "-H", f"localhost:{ranks + 1}"]
    options = ["-np", str(ranks), *elastic, "--no-prefix", "--set", "timeout=150", "--set", "connect_timeout=150"]
    done = ronde("run", *options, sys.executable, "-c", CHANGING, str(ranks), limit=256)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert done.stdout.decode().splitlines() == [f"{float(ranks)} True"] * ranks
    assert f"process {ranks // 2} failed: killed by SIGKILL" in done.stderr.decode()
