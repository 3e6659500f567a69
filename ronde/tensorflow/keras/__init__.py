"""The same as ronde.keras, under Horovod's name: `import ronde.tensorflow.keras as hvd`."""

from __future__ import annotations

from ronde.keras import *  # noqa: F403
from ronde.keras import __all__ as __all__
