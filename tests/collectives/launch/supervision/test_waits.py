"""The launcher waits for events alone: no job ends later because a wait ran out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.collectives.launch import fake_ssh
from tests.collectives.launch.launcher import BOUND, environment
from tests.collectives.launch.supervision.test_nodes import SECRET, free_port

LAUNCHER = """
import selectors, sys, threading

class Selector(selectors.DefaultSelector):
    def select(self, timeout=None):
        found = super().select(timeout)
        if timeout and not found and threading.current_thread() is threading.main_thread():
            print(f"waited {timeout:.3f} s for nothing", file=sys.stderr)
        return found

selectors.DefaultSelector = Selector
from frontends.command_line.cli import main
sys.exit(main(sys.argv[1:]))
"""

NO_BEATS = ["--host-timeout", "600"]
"""A sign of life is sent every fifth of it: no wait for one ends within a test, however slow the machine is."""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "code"),
    [(["-np", "2"], 0), (["-np", "2"], 3), (["-H", "h1:1,h2:1"], 0), (["-H", "localhost:1,h2:1"], 3)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_no_wait_of_a_job_runs_out(options: list[str], code: int, tmp_path: Path) -> None:
    program = ["sh", "-c", f"exit {code}"]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, "run", *NO_BEATS, *options, *program],
        capture_output=True,
        text=True,
        timeout=BOUND,
        env=environment(fake_ssh.install(tmp_path)),
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "for nothing" not in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("code", [0, 3])
def test_no_wait_of_nodes_runs_out(code: int) -> None:
    meet = f"127.0.0.1:{free_port()}"
    launchers = [
        subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, "run", *NO_BEATS, "--nodes", "2", "--node-rank", str(node), "--meet", meet,
             "-np", "1", "sh", "-c", f"exit {code}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment({"RONDE_SECRET": SECRET}),
        )
        for node in range(2)
    ]  # fmt: skip
    for launcher in launchers:
        with launcher:
            _, err = launcher.communicate(timeout=BOUND)
            assert launcher.returncode == code, err
            assert "for nothing" not in err
