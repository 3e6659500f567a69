"""Parameter servers and asynchronous SGD, on NumPy arrays. The code is in collectives.parameter_server."""

from __future__ import annotations

from collectives.parameter_server import *  # noqa: F403
from collectives.parameter_server import __all__ as __all__
