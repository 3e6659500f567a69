"""Horovod's API for MXNet: `import ronde.mxnet as hvd`. The code is in frontends.mxnet."""

from __future__ import annotations

from frontends.builds import *  # noqa: F403
from frontends.common import *  # noqa: F403
from frontends.mxnet import *  # noqa: F403
from frontends.mxnet import __all__ as __all__
from frontends.mxnet.ops import *  # noqa: F403
