"""The examples for torch: as a user starts them, and again in ranks that have torch already."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends.launch import TORCHRUN, output, ronde_run
from tests.frontends.pool import ROOT, Pool

pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")

HOROVOD, DDP = ROOT / "examples/torch_hvd_digits.py", ROOT / "examples/torch_ddp_digits.py"


def accuracy(text: str) -> float:
    found = re.search(r"accuracy ([\d.]+)%", text)
    assert found is not None, text
    return float(found[1])


def test_horovod_style_with_a_checkpoint(pool: Callable[[int], Pool], tmp_path: Path) -> None:
    checkpoint = tmp_path / "digits.pt"
    first = output(*ronde_run(2), HOROVOD, "--epochs", 2, "--checkpoint", checkpoint)
    assert "epoch 2: loss" in first
    second = pool(2).run_script(HOROVOD, "--epochs", 6, "--checkpoint", checkpoint, "--accumulate", 2)
    assert "epoch 2: loss" not in second
    assert "epoch 3: loss" in second
    assert "parameters identical" in second
    assert accuracy(second) > 90


def test_horovod_style_in_bfloat16_under_torchrun() -> None:
    text = output(*TORCHRUN, 2, HOROVOD, "--bfloat16")
    assert "parameters identical" in text
    assert accuracy(text) > 88


def test_horovod_style_with_compression(pool: Callable[[int], Pool]) -> None:
    text = pool(2).run_script(HOROVOD, "--compression", "fp16")
    assert "parameters identical" in text
    assert accuracy(text) > 88


@pytest.mark.parametrize("launcher", ["spawn", "torchrun"])
def test_ddp(launcher: str) -> None:
    text = output(DDP, "--spawn", 2) if launcher == "spawn" else output(*TORCHRUN, 2, DDP)
    assert "on 2 ranks, backend ronde" in text
    assert accuracy(text) > 90
