"""The examples for torch: as a user starts them, and again in ranks that have torch already."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends.launch import TORCHRUN, output, ronde_run
from tests.frontends.pool import ROOT, Framework, Pool, run_as_main
from tests.frontends.test_torch_distributed import free_port

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


def test_mixed_precision(pool: Callable[[int], Pool]) -> None:
    """An overflow on rank 0 makes all ranks skip the step and halve the scale."""
    text = pool(2).run_script(ROOT / "examples/torch_amp_digits.py", "--epochs", 2, "--overflow", 20)
    assert "on 2 ranks, scale 512, parameters identical" in text
    assert accuracy(text) > 80


def test_parameter_servers(pool: Callable[[int], Pool]) -> None:
    text = pool(2).run_script(ROOT / "examples/torch_parameter_server_digits.py", "--steps", 100)
    assert "rank 1 of 2 was a server and pushed 0 changes" in text
    found = re.search(r"after (\d+) changes", text)
    assert found is not None
    assert int(found[1]) == sum(int(count) for count in re.findall(r"pushed (\d+) changes", text))
    assert accuracy(text) > 90


def run_as_torchrun(port: str, *argv: str) -> str:
    """In a rank: run a script in the environment that torchrun gives."""
    place = {"RANK": os.environ["RONDE_RANK"], "WORLD_SIZE": os.environ["RONDE_SIZE"]}
    os.environ.update(place, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    return run_as_main(list(argv))


def test_a_pipeline_is_one_process() -> None:
    ranks = Framework("frontends.torch.distributed", "torch.distributed.pipelining", "sklearn.datasets")
    script = str(ROOT / "examples/torch_pipeline_digits.py")
    try:
        text = ranks(4).run(run_as_torchrun, free_port().rpartition(":")[2], script, "--steps", "5", transport="auto")[
            3
        ]
    finally:
        ranks.close()
    assert "on 4 ranks, backend ronde" in text
    found = re.search(r"largest difference of a loss to one process: (\S+)", text)
    assert found is not None
    assert float(found[1]) < 1e-8
