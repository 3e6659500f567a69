"""Ronde inside a Ray cluster: `from ronde.ray import RayExecutor`. The code is in frontends.ray."""

from __future__ import annotations

from frontends.ray import *  # noqa: F403
from frontends.ray import RondeConfig as RondeConfig  # by name, because the reference does not see lazy names through *
from frontends.ray import __all__ as __all__
from frontends.ray import register as register
