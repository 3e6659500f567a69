"""The examples for Keras: one as a user starts it, all in ranks that have Keras already."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends.launch import output, ronde_run
from tests.frontends.pool import ROOT, Framework

for needed in ("keras", "tensorflow", "jax", "torch", "sklearn"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install 'ronde[test]'", allow_module_level=True)

EXAMPLES = ROOT / "examples"
Frameworks = Callable[[str], Framework]


def accuracy(text: str) -> float:
    assert "parameters identical" in text, text
    found = re.search(r"accuracy ([\d.]+)% on 2 ranks", text)
    assert found is not None, text
    return float(found[1])


def test_horovod_style_with_a_checkpoint(frameworks: Frameworks, tmp_path: Path) -> None:
    script, checkpoint, logs = EXAMPLES / "tensorflow_keras_digits.py", tmp_path / "digits.keras", tmp_path / "logs"
    logging = ["--logs", logs] if importlib.util.find_spec("tensorboard") else []
    first = output(*ronde_run(2), script, "--epochs", 2, "--checkpoint", checkpoint, KERAS_BACKEND="tensorflow")
    assert "epoch 2: loss" in first
    second = frameworks("tensorflow")(2).run_script(script, "--epochs", 6, "--checkpoint", checkpoint, *logging)
    assert "epoch 2: loss" not in second
    assert "epoch 3: loss" in second
    assert accuracy(second) > 90
    assert not logging or sorted(one.name for one in logs.iterdir()) == ["rank0", "rank1"]


def test_jax(frameworks: Frameworks) -> None:
    script = EXAMPLES / "keras_jax_digits.py"
    assert accuracy(frameworks("keras-jax")(2).run_script(script, "--compression", "bf16")) > 90


def test_convolutions(frameworks: Frameworks, tmp_path: Path) -> None:
    script, best = EXAMPLES / "keras_cnn_digits.py", tmp_path / "best.keras"
    assert accuracy(frameworks("keras-torch")(2).run_script(script, "--best", best)) > 85
    assert best.exists()


def test_sequence_to_sequence(frameworks: Frameworks) -> None:
    script = EXAMPLES / "keras_lstm_seq2seq.py"
    assert accuracy(frameworks("tensorflow")(2).run_script(script, "--epochs", 4)) > 90
