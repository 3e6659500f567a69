"""`ronde run` with real processes: mostly shells, which start quickly."""

from __future__ import annotations

import os
import re
import signal
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.collectives.launch.launcher import BOUND, Watch, ronde, running
from transports.shm.segments import SHARED_DIRECTORY, is_segment

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes are watched by pidfds, as Linux has")

WITH_CHILD = "sleep 1000 & echo ready $$ $!; wait"
"""A rank with a child in the background, which ignores SIGINT as such children of a shell do."""


def run(np: int, script: str, *options: str, given: bytes = b"") -> tuple[int, list[str], str]:
    """Run a shell script on every rank: exit code, lines of stdout, stderr."""
    done = ronde("run", "-np", str(np), *options, "sh", "-c", script, given=given)
    return done.returncode, done.stdout.decode().splitlines(), done.stderr.decode()


# Input and output of ranks


@pytest.mark.processes
def test_every_rank_runs_and_its_lines_have_its_prefix() -> None:
    code, out, err = run(3, "echo out $RONDE_RANK; echo err $RONDE_RANK >&2")
    assert code == 0
    assert sorted(out) == ["[rank 0] out 0", "[rank 1] out 1", "[rank 2] out 2"]
    assert sorted(err.splitlines()) == ["[rank 0] err 0", "[rank 1] err 1", "[rank 2] err 2"]


@pytest.mark.processes
def test_prefixes_are_aligned() -> None:
    code, out, _ = run(11, "echo x")
    assert code == 0
    assert sorted(out) == sorted(f"[rank {rank:2}] x" for rank in range(11))


@pytest.mark.processes
@pytest.mark.parametrize(("options", "prefix"), [([], r"\[rank 0\] "), (["--no-prefix"], "")])
def test_lines_with_the_time_in_front(options: list[str], prefix: str) -> None:
    before = datetime.now().replace(microsecond=0)
    code, out, err = run(1, "echo one; echo two; echo three >&2", "--prefix-output-with-timestamp", *options)
    assert code == 0
    stamps = []
    for line, word in zip([*out, *err.splitlines()], ["one", "two", "three"], strict=True):
        match = re.fullmatch(rf"([-\d]+ [:\d]+\.\d\d\d) {prefix}{word}", line)
        assert match, line
        stamps.append(datetime.fromisoformat(match[1]))
    assert before <= min(stamps) <= max(stamps) <= datetime.now()


@pytest.mark.processes
def test_output_bytes_pass_unchanged() -> None:
    done = ronde("run", "-np", "1", "--no-prefix", "printf", r"\377\376\n\n50%%\r100%%\r\nno end")
    assert done.returncode == 0
    assert done.stdout == b"\xff\xfe\n\n50%\r100%\r\nno end"
    assert done.stderr == b""


@pytest.mark.processes
def test_environment_of_ranks() -> None:
    code, out, _ = run(2, "env", "--set", "timeout=30", "--set", "tcp.interface=lo", "--transport", "tcp")
    assert code == 0
    told = [dict(line[9:].split("=", 1) for line in out if line.startswith(f"[rank {rank}] ")) for rank in (0, 1)]
    for rank, values in enumerate(told):
        assert (values["RONDE_RANK"], values["RONDE_SIZE"]) == (str(rank), "2")
        assert (values["RONDE_LOCAL_RANK"], values["RONDE_LOCAL_SIZE"]) == (str(rank), "2")
        assert values["RONDE_TRANSPORT"] == "tcp"
        assert values["RONDE_TIMEOUT"] == "30"
        assert values["RONDE_TCP_INTERFACE"] == "lo"
        assert values["PYTHONUNBUFFERED"] == "1"
        assert int(values["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert told[0]["RONDE_STORE"] == told[1]["RONDE_STORE"]
    assert told[0]["RONDE_STORE"].startswith("tcp://127.0.0.1:")
    assert told[0]["RONDE_SECRET"] == told[1]["RONDE_SECRET"]
    assert re.fullmatch("[0-9a-f]{64}", told[0]["RONDE_SECRET"])


@pytest.mark.processes
@pytest.mark.parametrize("setting", ["rules=/none.toml", "tcp.interface=none"])
def test_settings_that_no_rank_here_can_follow_start_none(setting: str) -> None:
    code, out, err = run(2, "echo started", "--set", setting)
    assert (code, out, err.count("\n")) == (2, [], 1)
    assert setting.partition("=")[0].removeprefix("tcp.") in err


@pytest.mark.processes
def test_a_stopped_rank_ends_with_the_others() -> None:
    code, _, err = run(2, "[ $RONDE_RANK = 0 ] && exit 3; kill -STOP $$; sleep 100", "--grace", "200")
    assert code == 3
    assert "ended by the launcher (SIGTERM)" in err


@pytest.mark.processes
def test_variables_set_by_the_user_stay() -> None:
    done = ronde("run", "-np", "1", "sh", "-c", "echo $OMP_NUM_THREADS $RONDE_TIMEOUT",
                 extra={"OMP_NUM_THREADS": "7", "RONDE_TIMEOUT": "11"})  # fmt: skip
    assert done.stdout == b"[rank 0] 7 11\n"


@pytest.mark.processes
def test_secret_is_on_no_command_line() -> None:
    with running("run", "-np", "1", "sh", "-c", "echo ready $$ $PPID $RONDE_SECRET; exec sleep 1000") as launcher:
        ((rank, parent, secret),) = launcher.read_words("ready", 1)
        for pid in (rank, parent):
            assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert secret.encode() not in Path(f"/proc/{parent}/environ").read_bytes()
        launcher.process.terminate()
        launcher.finish()


@pytest.mark.processes
def test_a_python_file_runs_in_this_python(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.executable, sys.argv[1:])")
    done = ronde("run", "-np", "1", "--", str(script), "--np", "-x")
    assert done.stdout.decode() == f"[rank 0] {sys.executable} ['--np', '-x']\n"


@pytest.mark.processes
def test_a_module_runs_in_this_python() -> None:
    done = ronde("run", "-np", "2", "--no-prefix", "-m", "base64", "-t")
    assert (done.returncode, done.stdout.count(b"b'Aladdin:")) == (0, 4), done.stderr


@pytest.mark.processes
def test_only_rank_0_reads_the_input() -> None:
    code, out, _ = run(2, "cat; echo end", given=b"hello\n")
    assert code == 0
    assert sorted(out) == ["[rank 0] end", "[rank 0] hello", "[rank 1] end"]


@pytest.mark.processes
def test_large_output_arrives_completely_and_in_order() -> None:
    lines = 20000
    script = (
        f"i=0; while [ $i -lt {lines} ]; do echo line $i of the rank $RONDE_RANK, which likes to talk; i=$((i+1)); done"
    )
    code, out, _ = run(2, script)
    assert code == 0
    for rank in (0, 1):
        mine = [line for line in out if line.startswith(f"[rank {rank}] ")]
        assert mine == [f"[rank {rank}] line {i} of the rank {rank}, which likes to talk" for i in range(lines)]
    assert len(out) == 2 * lines


# How a job ends


@pytest.mark.processes
def test_a_failing_rank_ends_the_others(tmp_path: Path) -> None:
    script = f"""
        if [ $RONDE_RANK = 2 ]; then cat {tmp_path}/begun0 {tmp_path}/begun1; echo the reason >&2; exit 3; fi
        echo $$ $! > {tmp_path}/begun$RONDE_RANK; trap 'exit 0' TERM; sleep 1000 & wait
    """
    os.mkfifo(tmp_path / "begun0")
    os.mkfifo(tmp_path / "begun1")
    code, _, err = run(3, script)
    assert code == 3
    assert re.search(r"ronde: rank 2 failed: exited with 3 \(host .+, pid \d+\)\n.*\n +the reason\n", err)
    assert re.search(r"ronde: rank 0 afterwards: exited with 0", err)
    assert re.search(r"ronde: rank 1 afterwards: exited with 0", err)


@pytest.mark.processes
def test_survivors_of_a_killed_rank_report_first(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "link")
    script = f"""
        if [ $RONDE_RANK = 1 ]; then echo $$ > {tmp_path}/link; kill -KILL $$; fi
        read other < {tmp_path}/link; while kill -0 $other 2>/dev/null; do sleep 0.01; done
        echo lost rank 1 >&2; exit 4
    """
    code, _, err = run(2, script)
    assert code == 128 + signal.SIGKILL
    assert "ronde: rank 1 failed: killed by SIGKILL" in err
    assert "end of its stderr: (nothing)" in err
    assert re.search(r"ronde: rank 0 afterwards: exited with 4, pid \d+: lost rank 1\n", err)


CULPRIT = """
import atexit, os, sys
import collectives as ronde

link = os.open(sys.argv[1], os.O_RDWR if os.environ["RONDE_RANK"] == "0" else os.O_RDONLY | os.O_NONBLOCK)

def wait_for_the_end_of_rank_0():
    os.set_blocking(link, True)
    os.read(link, 1)

world = ronde.init()
world.barrier()
if world.rank == 1:
    atexit.register(wait_for_the_end_of_rank_0)
    raise KeyError("the reason")
world.barrier()
"""


@pytest.mark.processes
def test_culprit_is_reported_even_if_it_ends_last(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CULPRIT)
    os.mkfifo(tmp_path / "link")
    options = ["-np", "2", "--transport", "tcp", "--set", "timeout=30"]
    done = ronde("run", *options, str(tmp_path / "script.py"), str(tmp_path / "link"))
    err = done.stderr.decode()
    assert done.returncode == 1
    assert "\nronde: rank 1 failed: e" in err  # exited with 1, or, if it is slow, ended by the launcher
    assert "\n    KeyError: 'the reason'\n" in err
    assert re.search(
        r"\nronde: rank 0 afterwards: exited with 1, pid \d+: .*AbortedError: rank 1 aborted: KeyError", err
    )


@pytest.mark.processes
def test_report_has_only_the_last_lines_of_stderr() -> None:
    code, _, err = run(1, "i=0; while [ $i -lt 50 ]; do echo word $i >&2; i=$((i+1)); done; exit 1")
    assert code == 1
    assert re.findall(r"^    word (\d+)$", err, re.MULTILINE) == [str(i) for i in range(30, 50)]


@pytest.mark.processes
def test_rank_that_ignores_sigterm_is_killed() -> None:
    code, _, err = run(2, "[ $RONDE_RANK = 1 ] && exit 5; trap '' TERM; while :; do sleep 1; done", "--grace", "0.2")
    assert code == 5
    assert "ronde: rank 0 afterwards: ended by the launcher (SIGKILL)" in err


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_whole_tree(number: signal.Signals) -> None:
    with running("run", "-np", "2", "--grace", "0.2", "sh", "-c", WITH_CHILD) as launcher:
        pids = [int(word) for words in launcher.read_words("ready", 2) for word in words]
        with Watch(pids) as watch:
            assert watch.none_ended()
            launcher.process.send_signal(number)
            code, _, err = launcher.finish()
            assert watch.all_ended()
    assert code == 128 + number
    assert err.decode() == f"ronde: ended by {number.name}\n"


@pytest.mark.processes
def test_second_ctrl_c_kills_ranks_that_clean_up() -> None:
    script = "trap 'echo cleaning' INT TERM; echo ready; while :; do sleep 0.05; done"
    with running("run", "-np", "2", "--grace", "1000", "sh", "-c", script) as launcher:
        launcher.read_words("ready", 2)
        launcher.process.send_signal(signal.SIGINT)
        launcher.read_words("cleaning", 2)
        launcher.process.send_signal(signal.SIGINT)
        code, _, _ = launcher.finish()
    assert code == 128 + signal.SIGINT


@pytest.mark.processes
def test_ranks_are_killed_after_the_launcher_is_killed() -> None:
    with running("run", "-np", "2", "sh", "-c", WITH_CHILD) as launcher:
        pids = [int(word) for words in launcher.read_words("ready", 2) for word in words]
        with Watch(pids) as watch:
            assert watch.none_ended()
            launcher.process.kill()
            assert watch.all_ended(within=BOUND)


@pytest.mark.processes
def test_timeout_ends_the_job() -> None:
    code, _, err = run(2, "[ $RONDE_RANK = 0 ] && exit 0; exec sleep 1000", "--timeout", "0.3")
    assert code == 124
    assert "ronde: timed out after 0.3 s\n" in err
    assert "ronde: rank 0: exited with 0" in err
    assert "ronde: rank 1: ended by the launcher (SIGTERM)" in err


@pytest.mark.processes
@pytest.mark.parametrize("seconds", ["3e6", "1e18"])
def test_time_limit_beyond_what_the_system_can_wait_for(seconds: str) -> None:
    code, out, err = run(1, "echo done", "--time-limit", seconds)
    assert (code, out) == (0, ["[rank 0] done"]), err


@pytest.mark.processes
def test_processes_left_behind_by_ranks_are_ended() -> None:
    with running("run", "-np", "1", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo ready $!; sleep 0.1") as launcher:
        ((child,),) = launcher.read_words("ready", 1)
        with Watch([int(child)]) as watch:
            code, _, err = launcher.finish()
            assert watch.all_ended()
    assert (code, err) == (0, b"")


@pytest.mark.processes
@pytest.mark.skipif(not os.path.isdir(SHARED_DIRECTORY), reason="no shared memory")
def test_memory_that_a_killed_rank_has_named_is_removed() -> None:
    make = "from transports.shm.segments import Segment; print(Segment.create(4096).path, flush=True)"
    done = ronde("run", "-np", "1", "--no-prefix", sys.executable, "-c", f"{make}; import os; os.kill(os.getpid(), 9)")
    assert done.returncode == 128 + signal.SIGKILL
    path = Path(done.stdout.decode().strip())
    assert is_segment(str(path))
    assert not path.exists()


@pytest.mark.processes
def test_closed_output_ends_the_job() -> None:
    with running("run", "-np", "2", "sh", "-c", "echo ready $$; while :; do echo talk; done") as launcher:
        pids = [int(word) for (word, *_) in launcher.read_words("ready", 2)]
        assert launcher.process.stdout is not None
        with Watch(pids) as watch:
            launcher.process.stdout.close()
            assert launcher.process.wait(BOUND) == 128 + signal.SIGPIPE
            assert watch.all_ended()


@pytest.mark.processes
def test_slow_reader_does_not_keep_the_launcher_from_ending() -> None:
    with running("run", "-np", "2", "sh", "-c", "echo full of words >&2; while :; do echo talk; done") as launcher:
        assert launcher.process.stderr is not None
        assert launcher.process.stderr.readline().endswith(b"full of words\n")
        launcher.process.terminate()
        assert launcher.process.wait(BOUND) == 128 + signal.SIGTERM


# Programs that cannot be started


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "code", "reason"), [("no-such-program", 127, "No such file"), ("/", 126, "Permission denied")]
)
def test_program_that_cannot_be_started(program: str, code: int, reason: str) -> None:
    done = ronde("run", "-np", "2", program)
    assert done.returncode == code
    assert done.stderr.decode().startswith(f"ronde run: cannot start '{program}': {reason}")
