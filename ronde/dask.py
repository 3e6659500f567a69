"""Ronde inside a Dask cluster: `from ronde.dask import run`. The code is in frontends.dask."""

from __future__ import annotations

from frontends.dask import *  # noqa: F403
from frontends.dask import __all__ as __all__
