"""The progress bar of long measurements."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

SCRIPT = """
from frontends.command_line.measuring import progress
with progress("tune", 3) as done:
    for name in ("first", "second", "third"):
        print("measured", name, flush=True)
        done(name)
"""


def on_terminal(stdout: int | None = None) -> str:
    """The output of the script on a terminal; without its stdout if that is another descriptor."""
    ours, theirs = os.openpty()
    try:
        env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
        out = theirs if stdout is None else stdout
        subprocess.run([sys.executable, "-c", SCRIPT], stdout=out, stderr=theirs, env=env, timeout=60, check=True)
        os.close(theirs)
        theirs = -1
        said = b""
        with contextlib.suppress(OSError):  # EIO is the end
            while more := os.read(ours, 1 << 16):
                said += more
        return said.decode()
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


@pytest.mark.skipif(sys.platform != "linux", reason="reads a terminal as Linux has it")
def test_a_terminal_shows_a_bar_below_the_lines() -> None:
    pytest.importorskip("rich", reason="rich is not installed: pip install 'ronde[progress]'")
    said = on_terminal()
    for number, name in enumerate(("first", "second", "third"), 1):
        assert f"measured {name}" in said
        assert f"{number}/3" in said
    assert said.index("1/3") < said.index("measured third") < said.index("3/3")


@pytest.mark.skipif(sys.platform != "linux", reason="reads a terminal as Linux has it")
def test_lines_for_a_file_are_in_the_file_beside_a_bar(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="rich is not installed: pip install 'ronde[progress]'")
    with (tmp_path / "lines.txt").open("wb") as file:
        said = on_terminal(file.fileno())
    assert (tmp_path / "lines.txt").read_text() == "measured first\nmeasured second\nmeasured third\n"
    assert "3/3" in said
    assert "measured" not in said


def test_elsewhere_only_the_lines_are_shown() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("measured first\nmeasured second\nmeasured third\n", "")
