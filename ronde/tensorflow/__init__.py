"""Horovod's API for TensorFlow: `import ronde.tensorflow as hvd`. The code is in frontends.tensorflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frontends import tensorflow as _frontend
from frontends.tensorflow import __all__ as __all__

if TYPE_CHECKING:
    from frontends.builds import *  # noqa: F403
    from frontends.common import *  # noqa: F403
    from frontends.tensorflow import *  # noqa: F403
    from frontends.tensorflow import SyncBatchNormalization as SyncBatchNormalization
    from frontends.tensorflow_ops import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Look names up in the frontend when they are used: SyncBatchNormalization loads Keras."""
    return getattr(_frontend, name)


def __dir__() -> list[str]:
    return sorted(__all__)
