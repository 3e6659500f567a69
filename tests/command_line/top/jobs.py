"""Jobs that run while a test looks at them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(__file__).parent / "job.py"
WAITS: Final = PROGRAM.with_name("waits.py")
SECONDS: Final = 180


@contextlib.contextmanager
def running(
    mode: str, size: int, folder: Path, code: int | None = 0, program: Path = PROGRAM, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A job of `size` ranks, from the time at which it has made some calls to its end, with this exit code (None for
    any). `folder` is its own."""
    folder.mkdir()
    command = [sys.executable, "-m", "ronde", "run", "-np", str(size), sys.executable, program.name, mode]
    env = os.environ | {
        "RONDE_COMPILED": "off",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "JOB_FOLDER": str(folder),
        **variables,
    }
    job = subprocess.Popen(
        command, cwd=program.parent, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert job.stdout is not None
        said = []
        while (line := job.stdout.readline()) and "ready" not in line:
            said.append(line)
        assert line, f"the job has ended: {''.join(said)}"
        yield job
    finally:
        (folder / "stop").touch()
        rest, _ = job.communicate(timeout=SECONDS)
    assert code is None or job.returncode == code, rest


def top(*options: str, timeout: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """The command, without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "ronde", "top", *options],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
