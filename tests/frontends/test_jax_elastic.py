"""frontends.jax.elastic: going on without a rank that was lost, whose call has failed in a compiled function."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends.pool import Framework

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed: pip install 'ronde[jax]'", allow_module_level=True)

SCRIPT = """
import os, sys
import jax
import jax.numpy as jnp
import frontends.jax as hvd
hvd.init()
born = hvd.rank()

@{jit}
def step(x, total):
    return total + hvd.allreduce(x, op=hvd.Sum)

state = hvd.elastic.JaxState(total=jnp.zeros(3), step=0)
sizes = []
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])

@hvd.elastic.run
def train(state):
    while state.step < 6:
        if born == 1 and state.step == 3:
            os._exit(7)
        state.total = step(jnp.full(3, 1.0 + born), state.total)
        state.step += 1
        if state.step % 2 == 0:
            state.commit()

train(state)
sys.stdout.write(f"rank {{born}} of {{hvd.size()}}, resets {{sizes}}: {{state.total.tolist()}}" + chr(10))
hvd.shutdown()
"""


@pytest.mark.parametrize("jit", ["jax.jit", "hvd.jit"])
def test_the_others_go_on_without_a_lost_rank(frameworks: Callable[[str], Framework], jit: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(jit=jit))
    said = frameworks("jax").fresh(3).run_script(script, lost={1: 7})
    total = 2 * (1.0 + 2.0 + 3.0) + 4 * (1.0 + 3.0)  # two steps of three ranks were committed
    for born in (0, 2):
        assert f"rank {born} of 2, resets [2]: {[total] * 3}" in said, said
