"""The examples in the README and the documentation work as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.algorithms import algorithms, registry
from collectives.proof.verify import prove
from tests.collectives.launch.launcher import RONDE

ROOT = Path(__file__).parent.parent


def snippets(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_the_readme(tmp_path: Path, index: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(snippets("README.md")[index])
    if index == 1:
        assert run([sys.executable, str(script)], tmp_path).strip() == "[30.0, 30.0, 30.0]"
        return
    said = run([*RONDE, "run", "-np", "4", sys.executable, str(script)], tmp_path)
    if index == 0:
        assert sorted(said.splitlines()) == [
            f"[rank {rank}] {rank} [6. 6. 6.] [3. 3. 3.] [0 0 1 0 1 2]" for rank in range(4)
        ]
    elif index == 2:
        assert [line.split()[2] for line in said.splitlines()] == ["0", "50", "100", "150"]


def test_every_snippet_of_the_readme_is_run() -> None:
    assert len(snippets("README.md")) == 4


DEATH = """
import os
import numpy as np

if os.environ["RONDE_RANK"] == "1":
    ones, calls = np.ones, iter(range(500))
    np.ones = lambda count, *kind: os._exit(3) if not kind and next(calls, None) is None else ones(count, *kind)
"""
"""Put before the snippet, it kills rank 1 in the middle."""


def test_ranks_go_on_as_the_reliability_page_says(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DEATH + snippets("docs/reliability.md")[0])
    said = run([*RONDE, "run", "-np", "3", "--keep-going", "--no-prefix", sys.executable, str(script)], tmp_path)
    lines = sorted(said.splitlines())
    assert [line for line in lines if line.endswith("is done")] == [f"rank {rank} of 2 is done" for rank in range(2)]
    assert all("rank 1" in line and "pid" in line for line in lines if " of 3: " in line)
    assert len([line for line in lines if " of 3: " in line]) == 2


def test_an_algorithm_is_added_as_the_architecture_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ALGORITHMS, "broadcast", algorithms("broadcast"))
    exec(snippets("docs/architecture.md")[0], {})
    for size in (1, 2, 5):
        prove(algorithms("broadcast")["one_by_one"], size, root=size - 1)


def test_a_transport_is_judged_as_the_architecture_page_says() -> None:
    exec(snippets("docs/architecture.md")[1], {})
