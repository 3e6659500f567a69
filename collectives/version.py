"""The version of Ronde. This is its only place: pyproject.toml reads it from here."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
