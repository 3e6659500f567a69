"""Collectives for JAX: `import ronde.jax as hvd`. The code is in frontends.jax."""

from __future__ import annotations

from frontends.common import *  # noqa: F403
from frontends.jax import *  # noqa: F403
from frontends.jax import __all__ as __all__
from frontends.jax.ops import *  # noqa: F403
