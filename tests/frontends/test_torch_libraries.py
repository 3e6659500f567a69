"""The examples for libraries on top of torch.distributed, as a user starts them, on the backend "ronde"."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.frontends.launch import TORCHRUN, output, python
from tests.frontends.pool import ROOT

pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ronde[examples]'")

GROUP = ["-m", "ronde.torch.with_group"]
INSTALL = "is not installed: pip install 'ronde[compatibility]'"


def accuracy(text: str) -> float:
    found = re.search(r"accuracy ([\d.]+)% on 2 ranks, backend ronde", text)
    assert found is not None, text
    return float(found[1])


def test_lightning() -> None:
    pytest.importorskip("lightning", reason=f"lightning {INSTALL}")
    assert accuracy(output(ROOT / "examples/torch_lightning_digits.py")) > 85


@pytest.mark.parametrize("first", ["the script", "with_group"])
@pytest.mark.parametrize("library", ["accelerate", "transformers"])
def test_hugging_face(library: str, first: str) -> None:
    pytest.importorskip(library, reason=f"{library} {INSTALL}")
    script = ROOT / f"examples/torch_{library}_digits.py"
    words = [*GROUP, script] if first == "with_group" else [script, "--backend", "ronde"]
    assert accuracy(output(*TORCHRUN, 2, *words, ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1")) > 80


SCRIPT = """
import os, sys, torch, torch.distributed as dist
class Point: ...
x = torch.ones(2)
dist.all_reduce(x)
points = [None, None]
dist.all_gather_object(points, Point())
os.chdir("/")
right = isinstance(points[0], Point) and os.path.exists(__file__)
sys.stdout.write(f"{dist.get_backend()} {sys.argv[1:]} {x.tolist()} {__name__} {right}" + chr(10))
if "fail" in sys.argv and dist.get_rank() == 1:
    raise ValueError("on purpose")
if "fail" in sys.argv:
    dist.barrier()
"""


def test_a_script_runs_with_a_group_made_before(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    text = output(*TORCHRUN, 2, *GROUP, os.path.relpath(script, ROOT), "--option", "3")
    assert text.count("ronde ['--option', '3'] [2.0, 2.0] __main__ True") == 2, text
    text = output(*TORCHRUN, 2, *GROUP, "-m", "script", "4", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert text.count("ronde ['4'] [2.0, 2.0] __main__ True") == 2, text


def test_a_script_that_fails_ends_all_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = python(*TORCHRUN, 2, *GROUP, script, "fail")
    assert done.returncode == 1
    assert "ValueError: on purpose" in done.stderr


@pytest.mark.parametrize("words", [[], ["-c"], ["-m"], ["--option", "script.py"]])
def test_no_script(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from frontends.torch.with_group import main

    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "usage: python -m ronde.torch.with_group" in capsys.readouterr().err
