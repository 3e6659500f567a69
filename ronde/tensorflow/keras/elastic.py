"""Training that continues without lost ranks, for Keras. The code is in frontends.keras.elastic."""

from __future__ import annotations

from ronde.keras.elastic import *  # noqa: F403
from ronde.keras.elastic import __all__ as __all__
