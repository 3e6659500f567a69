"""Compressors for allreduce. The code is in collectives.compression."""

from __future__ import annotations

from collectives.compression import *  # noqa: F403
from collectives.compression import __all__ as __all__
