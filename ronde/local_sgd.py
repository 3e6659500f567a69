"""Loosely coupled training: local SGD and DiLoCo, on NumPy arrays. The code is in collectives.local_sgd."""

from __future__ import annotations

from collectives.local_sgd import *  # noqa: F403
from collectives.local_sgd import __all__ as __all__
