"""The types of message specifications. The code is in frontends.mpi.typing."""

from __future__ import annotations

from frontends.mpi.typing import *  # noqa: F403
from frontends.mpi.typing import __all__ as __all__
