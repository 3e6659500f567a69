"""Ronde for training loops written by hand: `import ronde.numpy as hvd`. The code is in frontends.numpy."""

from __future__ import annotations

from frontends.common import *  # noqa: F403
from frontends.numpy import *  # noqa: F403
from frontends.numpy import __all__ as __all__
