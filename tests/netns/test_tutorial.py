"""The commands of the tutorial's page on two hosts, as the page has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.cluster import BOUND, Cluster
from tests.netns.conftest import ssh_hosts
from tests.test_snippets import ROOT, blocks, save

pytestmark = pytest.mark.long

PROGRAM = "docs/tutorial/one-process.md"
PAGE = "docs/tutorial/two-hosts.md"


@pytest.fixture
def ssh_pair() -> Iterator[Cluster]:
    """The two hosts of the page, with sshd."""
    with ssh_hosts("h1", "h2") as made:
        yield made


def test_the_page_on_two_hosts(ssh_pair: Cluster, tmp_path: Path) -> None:
    save(PROGRAM, tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    said = {}
    for command in [line for block in blocks(PAGE) if block.language == "bash" for line in block.text.splitlines()]:
        done = subprocess.run(
            ssh_pair.hosts["h1"].command(
                "env", "-C", str(tmp_path), f"PATH={path}", f"PYTHONPATH={ROOT}", "sh", "-c", command
            ),
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        said[command] = done.stdout
    assert list(said) == ["ronde doctor -H h1,h2", "ronde run -H h1:2,h2:2 python train.py"]
    report, trained = said.values()
    assert "h1" in report
    assert "h2" in report
    assert trained == "[rank 0, h1] 4 ranks: [1. 2. 3. 4. 5. 6. 7. 8.]\n"
