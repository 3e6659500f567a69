"""`ronde run --min-np`: ranks and hosts come and go while the smallest training loop goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from frontends.command_line import cli
from tests.collectives.launch import fake_ssh
from tests.collectives.launch.launcher import Running, ronde, running

pytestmark = [pytest.mark.processes, pytest.mark.long]

TRAIN = str(Path(__file__).with_name("elastic_train.py"))
START = str(Path(__file__).with_name("elastic_start.py"))
ROOT = Path(__file__).resolve().parents[4]


class Job:
    """A running elastic job, and what its ranks have printed."""

    def __init__(self, job: Running) -> None:
        self._job = job
        self.lines: list[list[str]] = []

    def read(self, word: str, *more: str) -> list[str]:
        """The words after `word` in the next line of a rank that has `more` among them."""
        assert self._job.process.stdout is not None
        for line in self._job.process.stdout:
            words = line.decode().split()
            self.lines.append(words)
            if word in words and set(more) <= set(words):
                return words[words.index(word) + 1 :]
        raise AssertionError(f"the job ended before {word!r}: {self.lines}, {self._job.finish()}")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._job.process.send_signal(signal.SIGINT)

    def finish(self) -> tuple[int, str]:
        """Wait for its end: exit code and stderr."""
        code, out, err = self._job.finish()
        self.lines += [line.split() for line in out.decode().splitlines()]
        return code, err.decode()

    def words(self, word: str) -> list[list[str]]:
        """The lines that were printed with this word."""
        return [line[line.index(word) + 1 :] for line in self.lines if word in line]


@contextlib.contextmanager
def elastic(*arguments: str, extra: Mapping[str, str] | None = None) -> Iterator[Job]:
    with running("run", "--time-limit", "200", *arguments, extra=extra) as job:
        yield Job(job)


def test_a_killed_rank_is_replaced_by_a_spare() -> None:
    with elastic("-np", "3", "--min-np", "2", "--max-np", "3", "--spares", "1", TRAIN, "150", "0.03") as job:
        first = [job.read("start") for _ in range(3)]
        os.kill(int(next(pid for pid, rank, *_ in first if rank == "1")), signal.SIGKILL)
        code, err = job.finish()
    assert code == 0, err
    done = job.words("done")
    assert sorted(rank for _, rank, *_ in done) == ["0", "1", "2"]
    assert job.words("start")[3][1:3] == ["2", "3"], "the newcomer has the last rank"
    assert all(step == "150" for *_, step in done)
    assert "process 1 failed: killed by SIGKILL" in err
    assert "came: 3" in err


@pytest.mark.parametrize("moment", ["start", "met"])
@pytest.mark.parametrize("minimum", ["2", "3"])
def test_a_rank_is_killed_before_the_first_world_has_begun(moment: str, minimum: str) -> None:
    """The others begin without it, or with the newcomer that replaces it if there would be too few."""
    with elastic("-np", "3", "--min-np", minimum, "--max-np", "3", START, moment, "100", "0.03") as job:
        code, err = job.finish()
    assert code == 0, err
    done = job.words("done")
    assert sorted(rank for _, rank, *_ in done) == ["0", "1", "2"]
    assert all(step == "100" for *_, step in done)
    assert "process 1 failed: killed by SIGKILL" in err
    assert "came: 3" in err
    if minimum == "3":
        assert {size for _, _, size, _ in job.words("start")} == {"3"}


def test_a_program_that_fails_at_once_ends_the_job() -> None:
    with elastic("-np", "2", "--min-np", "1", "--max-np", "2", sys.executable, "-c", "raise SystemExit(7)") as job:
        code, err = job.finish()
    assert code == 7, err


def test_all_ranks_leave() -> None:
    with elastic("-np", "2", "--min-np", "1", TRAIN, "1000000", "0.02") as job:
        for pid, *_ in [job.read("start") for _ in range(2)]:
            os.kill(int(pid), signal.SIGTERM)
        code, err = job.finish()
    assert code == 1, err
    assert err.endswith("ronde: all ranks have left\n")
    assert "Traceback" not in err


def test_a_time_limit_lets_the_ranks_leave() -> None:
    with elastic("--time-limit", "8", "-np", "2", "--min-np", "1", TRAIN, "1000000", "0.02") as job:
        code, err = job.finish()
    assert code == 124, err
    assert "ronde: timed out after 8 s" in err
    assert "Traceback" not in err


def test_hosts_come_and_go(tmp_path: Path) -> None:
    """A script names another host, which joins; then the host is drained, and leaves without the loss of a step."""
    hosts = tmp_path / "hosts"
    hosts.write_text("h1:1\n")
    script = tmp_path / "discover.sh"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    runtime = tmp_path / "run"
    extra = {**fake_ssh.install(tmp_path), "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(runtime)}
    options = ["--min-np", "1", "--host-discovery-script", str(script), "--network-interface", "lo"]
    with elastic(*options, TRAIN, "1000000", "0.02", extra=extra) as job:
        pid, rank, size, _ = job.read("start")
        assert (rank, size) == ("0", "1")
        hosts.write_text("h1:1\nh2:1\n")
        at = int(job.read("world", pid, "2")[3])
        here_alone = {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(tmp_path)}  # other tests have elastic jobs too
        drained = ronde("drain", "h2", extra=here_alone)
        assert drained.stdout.decode() == "host h2: processes 1 are to leave\n", drained.stderr
        *_, step = job.read("world", pid, "1")
        assert int(step) >= at, "rank 0 went on where it was"
        os.kill(int(pid), signal.SIGKILL)
        code, err = job.finish()
    assert code == 128 + signal.SIGKILL
    assert "host h2 is not used any more" in err
    assert "left: 1 (" in err


def test_a_host_that_is_missing_in_one_look_alone_comes_back(tmp_path: Path) -> None:
    """The next look names it while its processes or its agent may still be ending."""
    missing, script = tmp_path / "missing", tmp_path / "discover.sh"
    script.write_text(f"#!/bin/sh\necho h1:1\nif [ -e {missing} ]; then rm {missing}; else echo h2:1; fi\n")
    script.chmod(0o755)
    options = ["--min-np", "1", "--host-discovery-script", str(script), "--network-interface", "lo"]
    extra = {**fake_ssh.install(tmp_path), "PYTHONPATH": str(ROOT)}
    with elastic(*options, TRAIN, "1000000", "0.02", extra=extra) as job:
        first = [job.read("start") for _ in range(2)]
        pid = next(pid for pid, rank, *_ in first if rank == "0")
        missing.touch()
        job.read("world", pid, "1")
        job.read("world", pid, "2")
        job.interrupt()
        code, err = job.finish()
    assert code == 128 + signal.SIGINT
    assert "ronde: hosts: h1:1\n" in err


def test_a_job_begins_without_a_host_whose_name_leads_nowhere(tmp_path: Path) -> None:
    """Its name may be known later, as that of a pod is. ssh says why it is not reached."""
    extra = {**fake_ssh.install(tmp_path, before="echo $host: no such name >&2; exit 255")}
    program = "import collectives; collectives.init(); print('world', collectives.size())"
    options = ("--min-np", "1", "--time-limit", "200", "-H", "no-such-host.invalid:1,localhost:1")
    done = ronde("run", *options, sys.executable, "-c", program, extra=extra)
    assert done.returncode == 0, done.stderr
    assert b"world 1" in done.stdout
    assert b"no-such-host.invalid: no such name" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--spares", "1"], "--spares: is for elastic jobs; give --min-np, --max-np, --host-discovery-script"),
        (["--reset-limit", "0"], "--reset-limit: is for elastic jobs"),
        (["-np", "2", "--min-np", "3"], "-np 2: must be at least --min-np 3"),
        (["--min-np", "3", "--max-np", "2"], "--max-np 2: must be at least --min-np 3"),
        (["-np", "4", "--min-np", "2", "--max-np", "3"], "--max-np 3: must be at least -np 4"),
        (["--min-np", "1", "--spares", "1"], "--spares 1: needs --max-np"),
        (["--min-np", "x"], "--min-np/--min-num-proc: 'x': must be an integer, 1 to 65536"),
        (["--min-np", "1", "--elastic-timeout", "0"], "--elastic-timeout: '0': must be a number of seconds, more than"),
        (["--min-np", "1", "--reset-limit", "-1"], "--reset-limit: '-1': must be an integer, 0 or more"),
        (["--min-np", "1", "--blacklist-cooldown-range", "9", "3"], "--blacklist-cooldown-range 9 3: the first number"),
        (["--min-np", "1", "--keep-going"], "--keep-going: an elastic job cannot have it"),
        (["--host-discovery-script", "/no/such"], "--host-discovery-script '/no/such': must be the path of an exec"),
        (["--discover-dns", "x", "-H", "a"], "--discover-dns: not allowed with --hosts"),
    ],
)
def test_bad_options(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(["run", *arguments, "program"])
    except SystemExit as end:
        code = int(str(end.code))
    assert code in (1, 2)
    assert complaint in capsys.readouterr().err


def test_a_program_that_cannot_be_started() -> None:
    done = ronde("run", "--min-np", "1", "-np", "1", "/no/such/program")
    assert done.returncode == 127
    assert b"cannot start '/no/such/program'" in done.stderr


def test_a_program_that_fails_on_all_ranks() -> None:
    done = ronde("run", "--min-np", "1", "-np", "2", "--max-np", "2", sys.executable, "-c", "import sys; sys.exit(7)")
    assert done.returncode == 7, done.stderr
    assert b"failed: exited with 7" in done.stderr


def test_too_few_slots(tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\necho no hosts yet >&2; exit 3\n")
    script.chmod(0o755)
    command = ("run", "--min-np", "2", "--host-discovery-script", str(script), "--elastic-timeout", "1.5", "true")
    done = ronde(*command)
    assert done.returncode == 1
    assert b"only 0 of at least 2 ranks could be run for 1.5 s (--elastic-timeout)" in done.stderr
    assert b"exited with 3: no hosts yet" in done.stderr


def test_a_script_that_names_no_hosts_is_named(tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\necho h1:0\n")
    script.chmod(0o755)
    command = ("run", "--min-np", "2", "--host-discovery-script", str(script), "--elastic-timeout", "1.5", "true")
    done = ronde(*command)
    assert done.returncode == 1
    assert b"ronde: hosts: (none)\n" in done.stderr
    assert f"(--elastic-timeout); --host-discovery-script {script}: names no host with slots\n" in done.stderr.decode()


def test_e7_a_script_that_never_ends_is_named(tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\nsleep 600\n")
    script.chmod(0o755)
    command = ("run", "--min-np", "2", "--host-discovery-script", str(script), "--elastic-timeout", "3", "true")
    done = ronde(*command)
    assert done.returncode == 1
    assert b"only 0 of at least 2 ranks" in done.stderr
    assert str(script).encode() in done.stderr


@pytest.mark.parametrize("moment", ["exit", "exit later"])
@pytest.mark.parametrize("minimum", ["1", "3"])
def test_e5_e6_a_rank_that_exits_with_0_ends_the_program(moment: str, minimum: str) -> None:
    """The others go on without it and without newcomers, though fewer than the minimum, also if it never called
    init."""
    with elastic("-np", "3", "--min-np", minimum, "--max-np", "3", START, moment, "150", "0.03") as job:
        code, err = job.finish()
    assert code == 0, err
    done = job.words("done")
    assert sorted((rank, size, step) for _, rank, size, step in done) == [("0", "2", "150"), ("1", "2", "150")]
    assert "came:" not in err
    assert "process 3" not in err


@pytest.mark.long
def test_e8_a_rank_that_never_comes_is_started_a_bounded_number_of_times() -> None:
    """Its imports take longer than the longest rest."""
    options = ["-np", "2", "--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0.2", "0.4"]
    with elastic(*options, START, "fail slowly", "400", "0.03") as job:
        code, err = job.finish()
    assert code == 0, err
    assert len(job.words("failing")) == 3, "at first, after the shortest rest, and after the longest"


def test_a_newcomer_that_is_withdrawn_has_not_failed(tmp_path: Path) -> None:
    hosts, script = tmp_path / "hosts", tmp_path / "discover"
    hosts.write_text("localhost:2\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    options = ["--min-np", "1", "--max-np", "1", "--spares", "1", "--host-discovery-script", str(script)]
    with elastic(*options, START, "say", "1000000", "0.02") as job:
        first = job.read("start")[0]
        while len(job.words("begun")) < 2:
            job.read("begun")
        (spare,) = {pid for (pid,) in job.words("begun")} - {first}
        hosts.write_text("localhost:1\n")
        until = time.monotonic() + 60
        while Path(f"/proc/{spare}").exists():
            assert time.monotonic() < until, "the spare was not withdrawn"
            time.sleep(0.05)
        job.interrupt()
        code, err = job.finish()
    assert code == 128 + signal.SIGINT, err
    assert "failed" not in err
