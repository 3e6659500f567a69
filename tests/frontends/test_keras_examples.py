"""The examples for Keras, as a user starts them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for needed in ("keras", "tensorflow", "jax", "torch", "sklearn"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install 'ronde[test]'", allow_module_level=True)

ROOT = Path(__file__).parents[2]
RONDE = ["-m", "collectives.launch.cli", "run", "--timeout", "90", "-np", "2"]


def output(script: str, *options: object, backend: str = "tensorflow") -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "",
    }
    words = [sys.executable, *RONDE, str(ROOT / "examples" / script), *map(str, options)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=110, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(text: str) -> float:
    assert "parameters identical" in text, text
    found = re.search(r"accuracy ([\d.]+)% on 2 ranks", text)
    assert found is not None, text
    return float(found[1])


def test_horovod_style_with_a_checkpoint(tmp_path: Path) -> None:
    script, checkpoint, logs = "tensorflow_keras_digits.py", tmp_path / "digits.keras", tmp_path / "logs"
    logging = ["--logs", logs] if importlib.util.find_spec("tensorboard") else []
    first = output(script, "--epochs", 2, "--checkpoint", checkpoint)
    assert "epoch 2: loss" in first
    second = output(script, "--epochs", 6, "--checkpoint", checkpoint, *logging)
    assert "epoch 2: loss" not in second
    assert "epoch 3: loss" in second
    assert accuracy(second) > 90
    assert not logging or sorted(one.name for one in logs.iterdir()) == ["rank0", "rank1"]


def test_jax() -> None:
    assert accuracy(output("keras_jax_digits.py", "--compression", "bf16", backend="jax")) > 90


def test_convolutions(tmp_path: Path) -> None:
    best = tmp_path / "best.keras"
    assert accuracy(output("keras_cnn_digits.py", "--best", best, backend="torch")) > 85
    assert best.exists()


def test_sequence_to_sequence() -> None:
    assert accuracy(output("keras_lstm_seq2seq.py", "--epochs", 4)) > 90
