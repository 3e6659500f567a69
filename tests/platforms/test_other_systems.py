"""Ronde sees macOS or Windows (`site/sitecustomize.py`): it works there by TCP, or refuses in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.platforms.starting import HERE, PROGRAM, python

pytestmark = pytest.mark.processes
SYSTEMS = ("darwin", "win32")


def seen_as(system: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return python(*arguments, site=HERE / "site", extra={"SHIM": system, **extra})


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("way", ["solo", "threads local", "processes tcp", "processes auto"])
def test_it_is_right(system: str, way: str) -> None:
    ended = seen_as(system, PROGRAM, *way.split())
    ranks = {"solo": 1, "threads": 3, "processes": 2}[way.split()[0]]
    assert ended.stdout.split() == ["right"] * ranks, ended.stderr
    assert ended.stderr == ""


@pytest.mark.parametrize(("system", "methods"), [("darwin", "forkserver spawn"), ("win32", "spawn")])
def test_ranks_of_tests_start_as_on_that_system(system: str, methods: str) -> None:
    """The tests themselves see Linux, and start ranks by forkserver on macOS: docs/platforms.md has the command."""
    text = (
        "from transports.testing.ranks import multiprocessing as seen\n"
        "print(*sorted({*seen.get_all_start_methods()} - {'fork'}))"
    )
    assert seen_as(system, "-c", text).stdout == f"{methods}\n"


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_shim_shows_another_system(system: str) -> None:
    """Names are gone for Ronde, and for nobody else."""
    look = 'sys.platform, hasattr(os, "sched_setaffinity"), os.path.exists("/proc")'
    text = (
        "import sys, os\n"
        "names = {'__name__': 'collectives.probe'}\n"
        f"exec('import sys, os; found = {look}', names)\n"
        "print(names['found'], sys.platform, hasattr(os, 'sched_setaffinity'))"
    )
    assert seen_as(system, "-c", text).stdout == f"({system!r}, False, False) linux True\n"


@pytest.mark.parametrize("system", SYSTEMS)
def test_shared_memory_is_refused_in_one_sentence(system: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import ronde\n"
        "def fn():\n"
        "    return ronde.rank()\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        ronde.run(fn, np=2, transport='shm', timeout=60)\n"
        "    except ronde.ConnectError as error:\n"
        "        print(error)\n"
    )
    ended = seen_as(system, str(program))
    assert "'shm'" in ended.stdout, ended.stderr
    assert len(ended.stdout.splitlines()) == 1


def test_the_launcher_works_on_macos() -> None:
    ended = seen_as("darwin", "-m", "ronde", "run", "-np", "2", PROGRAM)
    assert (ended.returncode, sorted(ended.stdout.splitlines())) == (0, ["[rank 0] right", "[rank 1] right"]), (
        ended.stderr
    )


def test_the_launcher_on_macos_ends_a_job_whose_rank_dies() -> None:
    text = "import os, signal, ronde; ronde.init(); ronde.rank() or os.kill(os.getpid(), 9); ronde.barrier()"
    ended = seen_as("darwin", "-m", "ronde", "run", "-np", "2", sys.executable, "-c", text)
    assert ended.returncode == 128 + 9, ended.stderr
    assert "rank 0" in ended.stderr


@pytest.mark.parametrize("options", [[], ["--nodes", "1", "--node-rank", "0", "--meet", "127.0.0.1:1"]])
def test_the_launcher_on_windows_names_the_other_way(options: list[str]) -> None:
    ended = seen_as("win32", "-m", "ronde", "run", "-np", "2", *options, PROGRAM)
    assert ended.returncode == 2
    assert "ronde.run(fn" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_dead_rank_is_named(system: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, ronde\n"
        "def fn():\n"
        "    ronde.rank() or os._exit(3)\n"
        "    ronde.barrier()\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        ronde.run(fn, np=2, timeout=60)\n"
        "    except RuntimeError as error:\n"
        "        print(error)\n"
    )
    ended = seen_as(system, str(program))
    assert ended.stdout.startswith("rank 0 "), ended.stdout + ended.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_doctor_says_what_can_be_used(system: str) -> None:
    ended = seen_as(system, "-m", "ronde", "doctor")
    assert ended.returncode == 0, ended.stderr
    (verdict,) = [line for line in ended.stdout.splitlines() if line.startswith("usable here:")]
    assert {"auto", "local", "tcp"} <= set(verdict.replace(",", " ").replace(";", " ").split())
    assert "shm" not in verdict


def test_a_look_at_a_process_does_not_end_it_on_windows() -> None:
    """os.kill(pid, 0) ends a process of Windows."""
    text = (
        "import subprocess, sys\n"
        "from transports.liveness import Identity, Watch, is_running\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "watch = Watch()\n"
        "watch.add(1, Identity(child.pid, 0, 0))\n"
        "print(is_running(Identity(child.pid, 0, 0)), watch.dead(), watch.stopped())\n"
        "child.communicate(b'end\\n')\n"
        "print(child.returncode)"
    )
    assert seen_as("win32", "-c", text).stdout == "False [] []\n0\n"
