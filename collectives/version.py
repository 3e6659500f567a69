"""The version of Ronde, which is also in pyproject.toml."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
