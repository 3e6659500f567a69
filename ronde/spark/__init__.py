"""Ronde inside a Spark cluster: `from ronde.spark import run`. The code is in frontends.spark."""

from __future__ import annotations

from frontends.spark import *  # noqa: F403
from frontends.spark import __all__ as __all__
