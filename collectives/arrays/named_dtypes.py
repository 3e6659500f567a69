"""bfloat16 and the 8-bit floats, which NumPy has only with ml_dtypes. That package is optional; this is its one place.

An array of such a dtype has been made with ml_dtypes; its name tells the dtype without an import.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np

HALVES: Final = frozenset({"float16", "bfloat16"})
"""Names of the dtypes that have kernels of their own."""
FLOAT16: Final = np.dtype(np.float16)

ML_DTYPES: Final = (
    "bfloat16",
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
    *("int1", "int2", "int4", "uint1", "uint2", "uint4", "complex32", "bcomplex32"),
)
"""Names of the dtypes of ml_dtypes, known also where it is not installed."""


def is_small_float(dtype: np.dtype[Any]) -> bool:
    """Return True for float16, bfloat16 and the 8-bit floats of ml_dtypes: dtypes that are combined in float32."""
    return dtype.itemsize <= 2 and dtype.kind not in "biuc"


@cache
def small_floats() -> dict[str, np.dtype[Any]]:
    """Return the dtypes of ml_dtypes by their names; none where it is not installed."""
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        if error.name != "ml_dtypes":
            raise
        return {}
    kinds = [kind for kind in vars(ml_dtypes).values() if isinstance(kind, type) and issubclass(kind, np.generic)]
    return {dtype.name: dtype for dtype in map(np.dtype, kinds)}


@cache
def named_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of this name, which may be one of ml_dtypes.

    Raises TypeError for a name that is none; ModuleNotFoundError, which names the command that installs ml_dtypes, for
    one of its dtypes where it is absent.
    """
    try:
        return np.dtype(name)
    except TypeError:
        found = small_floats()
        if name in found:
            return found[name]
        if found or name not in ML_DTYPES:
            raise
    text = f"dtype {name} needs the package ml_dtypes: pip install 'ronde[bfloat16]'"
    raise ModuleNotFoundError(text, name="ml_dtypes")
