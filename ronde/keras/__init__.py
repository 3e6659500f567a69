"""Horovod's API for Keras 3: `import ronde.keras as hvd`. The code is in frontends.keras."""

from __future__ import annotations

from frontends.builds import *  # noqa: F403
from frontends.common import *  # noqa: F403
from frontends.keras import *  # noqa: F403
from frontends.keras import __all__ as __all__
from frontends.keras.values import *  # noqa: F403
