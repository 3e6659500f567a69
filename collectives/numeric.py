"""The kinds of numbers that arguments may be, those of Python and those of NumPy, and the dtype for parameters."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

NUMBERS: Final = (int, float, np.integer, np.floating)
"""The types of real numbers."""


def is_integer(value: Any) -> bool:
    """True for an int of Python or NumPy that is no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def master_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which parameters of a float dtype are kept for training: float32, or float64 for what float32
    cannot hold, in any byte order."""
    return np.dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
