"""The commands of `python -m mpi4py.bench`."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from frontends.mpi import bench
from tests.frontends.mpi.conftest import Run

ROOT = Path(__file__).resolve().parents[3]
HEADER = "# Size [B]  Bandwidth [MB/s] | Time Mean [s] ± StdDev [s]  Samples"
FIGURES = r" +{size} +[0-9.]+ \| [0-9.]+e[+-]\d\d ± [0-9.]+e[+-]\d\d +{loop}"


@pytest.mark.processes
def test_helloworld_prints_the_ranks_in_their_order() -> None:
    program = [sys.executable, "-m", "mpi4py.bench", "helloworld"]
    command = [sys.executable, "-m", "ronde", "run", "--no-prefix", "-np", "2", "--mpi4py", *program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    lines = [f"Hello, World! I am process {rank} of 2 on {socket.gethostname()}." for rank in range(2)]
    assert done.stdout.splitlines() == lines, done.stdout + done.stderr


@pytest.mark.parametrize("size", [1, 3])
def test_ringtest_prints_its_time_on_the_first_rank(ranks: Run, capsys: Any, size: int) -> None:
    times = ranks(size, lambda comm: bench.ringtest(comm, ["-l", "2", "-s", "1", "-n", "9"]))
    assert min(times) > 0
    pattern = rf"time for 2 loops = [0-9.e+-]+ seconds \({size} processes, 9 bytes\)\n"
    assert re.fullmatch(pattern, capsys.readouterr().out)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("words", [(), ("-a", "none"), ("-p", "--protocol", "5"), ("-o", "--threshold", "8")])
def test_pingpong_prints_a_row_for_each_size(
    ranks: Run, capsys: Any, monkeypatch: pytest.MonkeyPatch, size: int, words: tuple[str, ...]
) -> None:
    from frontends.mpi.pickles import pickle
    from frontends.mpi.util import pkl5

    monkeypatch.setattr(pickle, "PROTOCOL", pickle.PROTOCOL)
    monkeypatch.setattr(pkl5.pickle, "THRESHOLD", pkl5.pickle.THRESHOLD)
    few = ["-m", "8", "-n", "32", "-s", "1", "-l", "5", "--large-size", "16", "--loop-large", "2"]
    rows = ranks(size, lambda comm: bench.pingpong(comm, [*few, *words]))[0]
    assert [nbytes for nbytes, *_ in rows] == [8, 16, 32]
    title, header, *lines = capsys.readouterr().out.splitlines()
    assert (title, header) == ("# MPI PingPong Test", HEADER)
    for line, nbytes, loop in zip(lines, (8, 16, 32), (5, 5, 2), strict=True):
        assert re.fullmatch(FIGURES.format(size=nbytes, loop=loop), line)


@pytest.mark.parametrize(("kind", "name"), [("mpi", "MPIPoolExecutor"), ("thread", "ThreadPoolExecutor")])
def test_futures_prints_the_tasks_of_a_second(ranks: Run, capsys: Any, kind: str, name: str) -> None:
    words = ["-e", kind, "-w", "2", "-t", "3", "-m", "4", "-n", "4", "-l", "2", "--no-stats", "-a", "bytes"]
    ranks(1, lambda comm: bench.futures(comm, words))
    title, header, line = capsys.readouterr().out.splitlines()
    assert (title, header) == (f"# {name} - 2 workers, 3 tasks/worker", "# Size [B]  Tasks/s")
    assert re.fullmatch(r" +4 +\d+", line)


def test_quiet_commands_print_nothing(ranks: Run, capsys: Any) -> None:
    assert ranks(1, lambda comm: bench.helloworld(comm, ["-q"]))[0].startswith("Hello, World! I am process 0 of 1 on ")
    ranks(1, lambda comm: bench.pingpong(comm, ["-q", "-n", "1", "-s", "0", "-l", "1"]))
    assert not capsys.readouterr().out


def test_an_unknown_command_is_an_error_with_the_known_ones(ranks: Run, capsys: Any) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(SystemExit) as ended:
            bench.main(["--thread-level", "multiple", "allreduce"])
        assert ended.value.code == 2

    ranks(1, body)
    assert "'allreduce': must be one of helloworld, ringtest" in capsys.readouterr().err
