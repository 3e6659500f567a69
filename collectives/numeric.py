"""The kinds of numbers and flags that arguments may be, those of Python and of NumPy, and the dtype for parameters."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

NUMBERS: Final = (int, float, np.integer, np.floating)
"""The types of real numbers."""


def is_integer(value: Any) -> bool:
    """True for an int of Python or NumPy that is no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def flag(value: Any, name: str) -> bool:
    """Return the argument `name` as a bool. Raises TypeError for anything but True, False, 1 and 0: a text is true."""
    if not isinstance(value, (bool, np.bool_)) and not (is_integer(value) and value in (0, 1)):
        raise TypeError(f"{name}={value!r}: must be True or False")
    return bool(value)


def master_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which parameters of a float dtype are kept for training: float32, or float64 for what float32
    cannot hold, in any byte order."""
    return np.dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
