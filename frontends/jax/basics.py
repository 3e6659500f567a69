"""How a process with JAX leaves the other ranks."""

from __future__ import annotations

import contextlib

import jax

import collectives
from frontends.jax.primitive import settle


def shutdown() -> None:
    """Wait for what was called, and leave the other ranks. `init` may follow; then call jax.clear_caches() if there are
    compiled functions of a world of another size. What has failed is raised where its result is waited for, not here.
    """
    if collectives.is_initialized():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            settle()
    collectives.shutdown()
