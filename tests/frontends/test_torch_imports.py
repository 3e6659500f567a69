"""What `import frontends.torch` brings with it: what it needs, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

ROOT = Path(__file__).parents[2]
REPORT = """
import json, sys
import torch
had = set(sys.modules)
import {what}
print(json.dumps(sorted(set(sys.modules) - had)))
"""


def brought(what: str) -> list[str]:
    """The modules that an import loads where torch is loaded."""
    program = REPORT.format(what=what)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_frontend_brings_little_to_a_program_that_has_torch() -> None:
    found = brought("frontends.torch")
    foreign = {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names)
    others = {name for name in foreign if not name.lstrip("_").startswith("cython_")}  # those are msgpack's
    assert others <= {"collectives", "frontends", "transports", "ml_dtypes", "msgpack", "numpy"}
    assert "frontends.torch.distributed" not in found
    assert not [name for name in found if name.startswith(("transports.tcp", "transports.shm", "transports.nccl"))]


def test_the_backend_brings_no_compiler_to_a_program_that_has_torch() -> None:
    found = brought("frontends.torch.distributed")
    assert not [name for name in found if name.startswith(("torch._dynamo", "torch._inductor", "torch.fx", "sympy"))]
    assert not [name for name in found if name.startswith("torch.")]
