"""Horovod's API for PyTorch: `import ronde.torch as hvd`. The code is in frontends.torch."""

from __future__ import annotations

from frontends.builds import *  # noqa: F403
from frontends.common import *  # noqa: F403
from frontends.torch import *  # noqa: F403
from frontends.torch import __all__ as __all__
from frontends.torch.autograd import *  # noqa: F403
from frontends.torch.ops import *  # noqa: F403
