"""Programs as a user starts them, with limits that hold on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.frontends.pool import COMPILING, ROOT, bound

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node"]


def ronde_run(size: int, *options: str) -> list[str]:
    """The words that start `size` ranks: for `output`, before a script and its arguments."""
    return ["-m", "ronde", "run", "--timeout", f"{bound(300):.0f}", "-np", str(size), *options]


def python(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python to its end, with Ronde importable. The ranks of a job may come minutes after each other."""
    patience = f"{bound(240):.0f}"
    quiet = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    limits = {"RONDE_CONNECT_TIMEOUT": patience, "RONDE_TIMEOUT": patience}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | quiet | COMPILING | limits | environment,
        capture_output=True,
        text=True,
        timeout=bound(360),
        check=False,
        cwd=ROOT,
    )


def output(*words: object, **environment: str) -> str:
    """Run a program that must succeed; returns its stdout."""
    done = python(*words, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
