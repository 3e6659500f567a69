"""Loosely coupled training for JAX: local SGD and DiLoCo. The code is in frontends.jax.local_sgd."""

from __future__ import annotations

from frontends.jax.local_sgd import *  # noqa: F403
from frontends.jax.local_sgd import __all__ as __all__
