"""The predefined datatypes: their names, dtypes and codes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from collectives.arrays import small_floats

_C: Final = {
    "CHAR": "c",
    "WCHAR": "U",
    "SIGNED_CHAR": "b",
    "SHORT": "h",
    "INT": "i",
    "LONG": "l",
    "LONG_LONG": "q",
    "UNSIGNED_CHAR": "B",
    "UNSIGNED_SHORT": "H",
    "UNSIGNED": "I",
    "UNSIGNED_LONG": "L",
    "UNSIGNED_LONG_LONG": "Q",
    "FLOAT": "f",
    "DOUBLE": "d",
    "LONG_DOUBLE": "g",
    "C_BOOL": "b1",
    "INT8_T": "i1",
    "INT16_T": "i2",
    "INT32_T": "i4",
    "INT64_T": "i8",
    "UINT8_T": "u1",
    "UINT16_T": "u2",
    "UINT32_T": "u4",
    "UINT64_T": "u8",
    "FLOAT16_T": "e",
    "FLOAT32_T": "f",
    "FLOAT64_T": "d",
    "C_COMPLEX": "F",
    "C_FLOAT_COMPLEX": "F",
    "C_DOUBLE_COMPLEX": "D",
    "C_LONG_DOUBLE_COMPLEX": "G",
    "CXX_BOOL": "?",
    "CXX_FLOAT_COMPLEX": "F",
    "CXX_DOUBLE_COMPLEX": "D",
    "CXX_LONG_DOUBLE_COMPLEX": "G",
}
_MPI: Final = {"PACKED": "B", "BYTE": "B", "AINT": "p", "OFFSET": "p", "COUNT": "p"}
_FORTRAN: Final = {
    "CHARACTER": "c",
    "LOGICAL": "i",
    "INTEGER": "i",
    "REAL": "f",
    "DOUBLE_PRECISION": "d",
    "COMPLEX": "F",
    "DOUBLE_COMPLEX": "D",
    "LOGICAL1": "b1",
    "LOGICAL2": "i2",
    "LOGICAL4": "i4",
    "LOGICAL8": "i8",
    "INTEGER1": "i1",
    "INTEGER2": "i2",
    "INTEGER4": "i4",
    "INTEGER8": "i8",
    "REAL2": "f2",
    "REAL4": "f4",
    "REAL8": "f8",
    "COMPLEX8": "c8",
    "COMPLEX16": "c16",
}
_PAIRS: Final = {
    "SHORT_INT": "h",
    "INT_INT": "i",
    "LONG_INT": "l",
    "FLOAT_INT": "f",
    "DOUBLE_INT": "d",
    "LONG_DOUBLE_INT": "g",
}
_BFLOAT16: Final = {"BFLOAT16_T": small_floats()["bfloat16"]} if small_floats() else {}
ABSENT: Final = {"LOGICAL16", "INTEGER16", "REAL16", "COMPLEX4", "COMPLEX32", "BFLOAT16_T"} - _BFLOAT16.keys()
"""Datatypes for which NumPy has no dtype, even with ml_dtypes if it is installed: they are DATATYPE_NULL."""
ALIASES: Final = {
    "UNSIGNED_INT": "UNSIGNED",
    "SIGNED_SHORT": "SHORT",
    "SIGNED_INT": "INT",
    "SIGNED_LONG": "LONG",
    "SIGNED_LONG_LONG": "LONG_LONG",
    "BOOL": "C_BOOL",
    "SINT8_T": "INT8_T",
    "SINT16_T": "INT16_T",
    "SINT32_T": "INT32_T",
    "SINT64_T": "INT64_T",
    "F_BOOL": "LOGICAL",
    "F_INT": "INTEGER",
    "F_FLOAT": "REAL",
    "F_DOUBLE": "DOUBLE_PRECISION",
    "F_COMPLEX": "COMPLEX",
    "F_FLOAT_COMPLEX": "COMPLEX",
    "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
    "TWOINT": "INT_INT",
}
STANDARD_NAMES: Final = {"INT_INT": "2INT"}
"""Names in MPI's standard that no name of Python can be."""


CODES: Final = {**_MPI, **_C, **_FORTRAN, **{name: dtype.char for name, dtype in _BFLOAT16.items()}}
"""The code of each predefined datatype of numbers, as mpi4py gives it."""
_WIDE: Final = {"p": "q", "i8": "q", "u8": "Q"}
"""The types of numbers that have 64 bits everywhere, in messages too. That of NumPy's "l" has 32 in external32."""


def number(code: str) -> np.dtype[Any]:
    """The dtype of a datatype of numbers, by its code."""
    found = np.dtype(_WIDE.get(code, code))
    return found if found.itemsize else np.dtype(f"{code}1")


def _pair(code: str) -> np.dtype[Any]:
    return np.dtype([("value", code), ("index", "i")], align=True)


DTYPES: Final[dict[str, np.dtype[Any]]] = {
    **{name: number(code) for name, code in {**_MPI, **_C, **_FORTRAN}.items()},
    **_BFLOAT16,
    **{name: _pair(code) for name, code in _PAIRS.items()},
}
"""The dtype of each predefined datatype."""
PAIRS: Final = {np.dtype(code): name for name, code in _PAIRS.items()}
"""The pair of a value of this dtype and an int."""

_FORTRAN_NAMES: Final = frozenset(_FORTRAN)


def codes() -> dict[str, str]:
    """The predefined datatype for each code of a program: those of NumPy, `struct` and the array interface."""
    found: dict[str, str] = {}
    for name, code in _C.items():
        dtype = DTYPES[name]
        for key in (code, np.dtype(code).char, dtype.str[1:]):
            found.setdefault(key, name)
    found.update(
        {"c": "CHAR", "S": "CHAR", "S1": "CHAR", "a": "CHAR", "U": "WCHAR", "U1": "WCHAR", "w": "WCHAR", "u": "WCHAR"}
    )
    found.update({"B": "UNSIGNED_CHAR", "b": "SIGNED_CHAR", "e": "FLOAT16_T", "p": "AINT", "P": "UNSIGNED_LONG"})
    found.update({"n": "COUNT", "N": "UNSIGNED_LONG", "?": "C_BOOL", "b1": "C_BOOL", "m8": "INT64_T"})
    found.update({"Zf": "C_COMPLEX", "Zd": "C_DOUBLE_COMPLEX", "Zg": "C_LONG_DOUBLE_COMPLEX"})
    found.update(dict.fromkeys(("E", "bfloat16"), "BFLOAT16_T") if _BFLOAT16 else {})
    found.update({"i1": "INT8_T", "i2": "INT16_T", "i4": "INT32_T", "i8": "INT64_T"})
    found.update({"u1": "UINT8_T", "u2": "UINT16_T", "u4": "UINT32_T", "u8": "UINT64_T"})
    found.update({"f2": "FLOAT16_T", "f4": "FLOAT", "f8": "DOUBLE", "c8": "C_FLOAT_COMPLEX", "c16": "C_DOUBLE_COMPLEX"})
    return found


def is_fortran(name: str) -> bool:
    """True for a datatype of Fortran."""
    return name in _FORTRAN_NAMES
