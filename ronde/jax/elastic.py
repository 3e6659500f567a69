"""Training that continues without lost ranks, for JAX. The code is in frontends.jax.elastic."""

from __future__ import annotations

from frontends.jax.elastic import *  # noqa: F403
from frontends.jax.elastic import __all__ as __all__
