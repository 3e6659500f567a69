"""Callbacks for `model.fit`. The code is in frontends.keras.callbacks."""

from __future__ import annotations

from ronde.keras.callbacks import *  # noqa: F403
from ronde.keras.callbacks import __all__ as __all__
