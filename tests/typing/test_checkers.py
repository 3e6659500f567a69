"""Type checkers find the mistakes in a user's script, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MISTAKES = {
    number
    for number, line in enumerate((HERE / "mistakes.py").read_text("utf-8").splitlines(), 1)
    if line.endswith("  # mistake")
}


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@cache
def mypy() -> list[tuple[str, int]]:
    """The file and line of every error, with the project's settings, which are strict: so the cache of `make lint`
    serves."""
    scripts = [str(HERE / name) for name in ("correct.py", "face.py", "mistakes.py")]
    lines = run("mypy", "--output=json", *scripts).splitlines()
    found: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    return [(Path(error["file"]).name, error["line"]) for error in found if error["severity"] == "error"]


@cache
def pyright() -> list[tuple[str, int]]:
    """The file and line of every error. basedpyright is pyright with Node.js from PyPI."""
    text = run("basedpyright", "--outputjson", "--project", str(HERE), "--pythonpath", sys.executable)
    found: list[dict[str, Any]] = json.loads(text)["generalDiagnostics"]
    errors = [error for error in found if error["severity"] == "error"]
    return [(Path(error["file"]).name, error["range"]["start"]["line"] + 1) for error in errors]


@pytest.mark.processes
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_ten_mistakes_are_found_and_nothing_else(checker: Callable[[], list[tuple[str, int]]]) -> None:
    errors = checker()
    assert len(MISTAKES) == 10
    assert [error for error in errors if error[0] != "mistakes.py"] == []
    assert {line for _, line in errors} == MISTAKES
