"""The examples for torch, as a user starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")

ROOT = Path(__file__).parents[2]
RONDE = ["-m", "collectives.launch.cli", "run", "--timeout", "90", "-np"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node"]


def output(*command: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=110, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(text: str) -> float:
    found = re.search(r"accuracy ([\d.]+)%", text)
    assert found is not None, text
    return float(found[1])


def test_horovod_style_with_a_checkpoint(tmp_path: Path) -> None:
    script, checkpoint = ROOT / "examples/torch_hvd_digits.py", tmp_path / "digits.pt"
    first = output(*RONDE, 2, script, "--epochs", 2, "--checkpoint", checkpoint)
    assert "epoch 2: loss" in first
    second = output(*RONDE, 2, script, "--epochs", 6, "--checkpoint", checkpoint, "--accumulate", 2)
    assert "epoch 2: loss" not in second
    assert "epoch 3: loss" in second
    assert "parameters identical" in second
    assert accuracy(second) > 90


@pytest.mark.parametrize("options", [["--bfloat16"], ["--compression", "fp16"]])
def test_horovod_style_in_halves(options: list[str]) -> None:
    text = output(*TORCHRUN, 2, ROOT / "examples/torch_hvd_digits.py", *options)
    assert "parameters identical" in text
    assert accuracy(text) > 88


@pytest.mark.parametrize("launcher", ["spawn", "torchrun"])
def test_ddp(launcher: str) -> None:
    script = ROOT / "examples/torch_ddp_digits.py"
    text = output(script, "--spawn", 2) if launcher == "spawn" else output(*TORCHRUN, 2, script)
    assert "on 2 ranks, backend ronde" in text
    assert accuracy(text) > 90
