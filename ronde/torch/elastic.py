"""Training that continues without lost ranks, for PyTorch. The code is in frontends.torch.elastic."""

from __future__ import annotations

from frontends.torch.elastic import *  # noqa: F403
from frontends.torch.elastic import __all__ as __all__
