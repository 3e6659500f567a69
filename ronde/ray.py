"""Ronde inside a Ray cluster: `from ronde.ray import RayExecutor`. The code is in frontends.ray."""

from __future__ import annotations

from frontends.ray import *  # noqa: F403
from frontends.ray import __all__ as __all__
