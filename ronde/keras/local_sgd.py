"""Loosely coupled training for Keras: local SGD and DiLoCo. The code is in frontends.keras.local_sgd."""

from __future__ import annotations

from frontends.keras.local_sgd import *  # noqa: F403
from frontends.keras.local_sgd import __all__ as __all__
