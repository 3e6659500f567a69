"""`import frontends.torch` imports only the modules that it needs."""

from __future__ import annotations

import json
import sys

import pytest

from tests.frontends.launch import output

pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")

REPORT = """
import json, sys
import torch
had = set(sys.modules)
import {what}
print(json.dumps(sorted(set(sys.modules) - had)))
"""


def brought(what: str) -> list[str]:
    """The modules that an import loads where torch is loaded."""
    found: list[str] = json.loads(output("-c", REPORT.format(what=what)))
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
