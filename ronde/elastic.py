"""State that newcomers get, and a loop that goes on while ranks come and go. The code is in collectives.elastic."""

from __future__ import annotations

from collectives.elastic import *  # noqa: F403
from collectives.elastic import __all__ as __all__
