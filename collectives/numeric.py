"""The kinds of numbers that arguments may be: those of Python, and those of NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

NUMBERS: Final = (int, float, np.integer, np.floating)
"""The types of real numbers."""


def is_integer(value: Any) -> bool:
    """True for an int of Python or NumPy that is no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
