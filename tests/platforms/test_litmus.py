"""Litmus tests of the words that ranks publish in shared memory. RONDE_LITMUS_ROUNDS=100000000 is for real hardware."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.platforms.litmus import PYTHON, UNORDERED
from transports import shm

ROUNDS = int(os.environ.get("RONDE_LITMUS_ROUNDS", "100000"))
SECONDS = 300 + ROUNDS / 20_000

pytestmark = [
    pytest.mark.skipif(shm.usable() is not None, reason=str(shm.usable())),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="both sides are forked"),
    pytest.mark.timeout(int(SECONDS) + 100),
    pytest.mark.processes,
]
has_numba = importlib.util.find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not has_numba, reason="the sides are compiled by Numba")


def litmus(kind: str) -> dict[str, dict[str, Any]]:
    """The outcomes of the program, by name."""
    command = [sys.executable, "-m", "tests.platforms.litmus", "--kind", kind, "--rounds", str(ROUNDS)]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ended.stdout, ended.stderr
    return {outcome["name"]: outcome for outcome in map(json.loads, ended.stdout.splitlines())}


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, Any]]:
    return litmus("compiled")


def test_litmus_in_python() -> None:
    found = litmus("python")
    assert found.keys() == PYTHON.keys()
    for outcome in found.values():
        assert outcome["rounds"] > 0
        assert outcome["wrong"] == 0, outcome


@needs_numba
@pytest.mark.parametrize("name", ["ring", "window", "sleepers"])
def test_litmus_in_machine_code(compiled: dict[str, dict[str, Any]], name: str) -> None:
    outcome = compiled[f"{name}, machine code"]
    assert outcome["rounds"] > 0
    assert outcome["wrong"] == 0, outcome


@needs_numba
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2 if hasattr(os, "sched_getaffinity") else False, reason="one core")
def test_litmus_sees_that_a_barrier_is_missing(compiled: dict[str, dict[str, Any]]) -> None:
    """Every processor reorders a store with a later load of another word, unless a barrier is between them."""
    assert compiled[UNORDERED]["wrong"] > 0, compiled[UNORDERED]
