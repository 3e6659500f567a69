"""The table of `benchmarks/validate_training.py`; its measurements need network namespaces and minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validate_training import STEPS, error, main

KEPT: dict[str, Any] = {
    "step": "hidden",
    "world": "4x1",
    "rate": "200mbit",
    "measured": [0.40, 0.30, 0.50],
    "algorithms": {"ring": 36},
    "predicted": 0.36,
    "calls": 6,
}


def test_errors_are_those_of_the_prediction() -> None:
    assert error(KEPT, 0.4) == pytest.approx(-0.1)
    assert error(KEPT, 0.3) == pytest.approx(0.2)


def test_the_table_of_kept_steps_is_printed_without_measuring(tmp_path: Path, capsys: Any) -> None:
    kept = tmp_path / "steps.json"
    kept.write_text(json.dumps({"calibration": {}, "steps": [KEPT]}))
    assert main(["--json", str(kept), "--worlds"]) == 0
    printed = capsys.readouterr().out
    assert "median of 1 steps: median error 10.0%, worst 10.0%" in printed
    assert "quickest of 1 steps: median error 20.0%, worst 20.0%" in printed
    assert KEPT["step"] in STEPS
