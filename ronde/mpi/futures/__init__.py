"""Executors on ranks. The code is in frontends.mpi.futures."""

from __future__ import annotations

from frontends.mpi.futures import *  # noqa: F403
from frontends.mpi.futures import __all__ as __all__
