"""End of a job for JAX."""

from __future__ import annotations

import contextlib

import jax

import collectives
from frontends.jax.primitive import settle


def shutdown() -> None:
    """Wait for this thread's calls and leave the world.

    `init` may follow. Then call jax.clear_caches() if there are functions compiled for another rank or size. Errors of
    calls are raised where their results are used, not here.
    """
    if collectives.is_initialized():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            settle()
    collectives.shutdown()
