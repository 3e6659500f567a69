"""Loosely coupled training for PyTorch: local SGD and DiLoCo. The code is in frontends.torch.local_sgd."""

from __future__ import annotations

from frontends.torch.local_sgd import *  # noqa: F403
from frontends.torch.local_sgd import __all__ as __all__
