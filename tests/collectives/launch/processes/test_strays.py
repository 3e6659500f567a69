"""Processes that have left the group of their rank, and commands that find hosts: none outlives the job."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.collectives.launch.launcher import BOUND, ronde, running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="strays are found in /proc")

STRAY = """
import os, subprocess, sys, time
def stray(ignore):
    code = "import signal, time; ignore and signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    code = code.replace("ignore", str(ignore), 1)
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=2)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.wait()
"""


def left(word: str) -> list[int]:
    """The processes that have the word among their variables."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"STRAY={word}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def assert_none_is_left(word: str) -> None:
    until = time.monotonic() + BOUND
    while found := left(word):
        assert time.monotonic() < until, found
        time.sleep(0.05)


@pytest.mark.processes
@pytest.mark.parametrize("ending", ["0", "3", "stubborn"])
def test_l6_a_child_that_called_setsid(tmp_path: Path, ending: str) -> None:
    code = f"{STRAY}\nstray({ending == 'stubborn'})\nsys.exit({0 if ending == 'stubborn' else ending})"
    word = tmp_path.name + ending
    ended = ronde("run", "-np", "2", "--grace", "1", sys.executable, "-c", code, extra={"STRAY": word})
    assert ended.returncode == (3 if ending == "3" else 0), ended.stderr
    assert left(word) == []


@pytest.mark.processes
def test_l6_also_in_an_elastic_job_and_when_the_launcher_is_killed(tmp_path: Path) -> None:
    word, code = tmp_path.name, f"{STRAY}\nimport ronde\nronde.init()\nstray(False)"
    ended = ronde("run", "-np", "2", "--min-np", "1", sys.executable, "-c", code, extra={"STRAY": word})
    assert ended.returncode == 0, ended.stderr
    assert left(word) == []
    code = f"{STRAY}\nstray(True)\nprint('started', flush=True)\ntime.sleep(1000)"
    with running("run", "-np", "2", sys.executable, "-c", code, extra={"STRAY": word}) as job:
        job.read_words("started", 2)
        assert len(left(word)) >= 6
        job.process.kill()
        job.process.wait()
        assert_none_is_left(word)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "ending"), [(["--keep-going"], "os._exit(3)"), (["--min-np", "1"], "os.kill(os.getpid(), 9)")]
)
def test_what_a_failed_rank_has_left_behind_is_ended_while_the_job_goes_on(
    tmp_path: Path, options: list[str], ending: str
) -> None:
    """Also what ignores SIGTERM, and what has left its group."""
    word, go = f"{tmp_path.name} child", tmp_path / "go"
    code = (
        f"{STRAY}\nif os.environ.get('RONDE_RANK') == '1':\n"
        f"    os.environ['STRAY'] = {word!r}\n"
        f"    subprocess.Popen(['sleep', '1000'])\n"
        f"    stray(True)\n    print('started', flush=True)\n    {ending}\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)"
    )
    with running("run", "-np", "2", "--grace", "0.2", *options, sys.executable, "-c", code) as job:
        job.read_words("started", 1)
        assert_none_is_left(word)
        assert job.process.poll() is None
        go.touch()
        assert job.finish()[0] == 0


@pytest.mark.processes
def test_l6_a_process_that_is_to_outlive_the_job(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\nos.environ.pop('RONDE_JOB')\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True, stdout=2)"
    )
    assert ronde("run", "-np", "1", sys.executable, "-c", code, extra={"STRAY": tmp_path.name}).returncode == 0
    (found,) = left(tmp_path.name)
    os.kill(found, signal.SIGKILL)
    assert_none_is_left(tmp_path.name)


@pytest.mark.processes
@pytest.mark.parametrize("killed", [False, True])
def test_l6_a_discovery_script_that_still_runs(tmp_path: Path, killed: bool) -> None:
    script = tmp_path / "find"
    again = f"[ -e {tmp_path}/looked ] && touch {tmp_path}/again && sleep 1000"
    script.write_text(f"#!/bin/sh\n{again}\ntouch {tmp_path}/looked\necho localhost:2\n")
    script.chmod(0o755)
    code = (
        "import os, time, ronde\nronde.init().barrier()\n"
        f"while not os.path.exists('{tmp_path}/again'): time.sleep(0.01)\nprint('done', flush=True)"
    )
    arguments = ["--host-discovery-script", str(script), "-np", "2", sys.executable, "-c", code]
    with running("run", *arguments, extra={"STRAY": tmp_path.name}) as job:
        job.read_words("done", 2)
        if killed:
            job.process.kill()
            job.process.wait()
        else:
            assert job.finish()[0] == 0
            assert left(tmp_path.name) == []
    assert_none_is_left(tmp_path.name)
