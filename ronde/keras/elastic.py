"""Training that continues without lost ranks, for Keras. The code is in frontends.keras.elastic."""

from __future__ import annotations

from frontends.keras.elastic import *  # noqa: F403
from frontends.keras.elastic import __all__ as __all__
