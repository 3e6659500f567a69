"""Table of the dtypes and ops that NCCL combines, with its own numbers (nccl.h: ncclDataType_t, ncclRedOp_t).

Missing combinations use others with the same result: bool is reduced as bytes of 0 and 1, with the maximum for `or` and
the minimum for `and`; a sum of complex numbers as a sum of twice as many floats.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from transports.nccl.api import FLOAT8

UINT8: Final = 1
FLOAT32: Final = 7
FLOAT64: Final = 8
_KINDS: Final = {
    "int8": 0,
    "uint8": UINT8,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": FLOAT32,
    "float64": FLOAT64,
    "bfloat16": 9,
    "float8_e4m3fn": 10,
    "float8_e5m2": 11,
}
_FLOAT8: Final = frozenset({"float8_e4m3fn", "float8_e5m2"})
_FLOATS: Final = frozenset({"float16", "float32", "float64", "bfloat16"}) | _FLOAT8
_COMPLEX: Final = {"complex64": "float32", "complex128": "float64"}

SUM: Final = 0
_OPS: Final = {"sum": SUM, "prod": 1, "max": 2, "min": 3, "average": 4}
_LOGICAL: Final = {"lor": 2, "land": 3}
"""Logical ops. Their operands are 0 or 1."""
_BOOL_OPS: Final = {"max": 2, "min": 3, "bor": 2, "band": 3, **_LOGICAL}


class Combination(NamedTuple):
    """NCCL's numbers of the dtype and the op, and the number of NCCL elements per element of the array."""

    kind: int
    op: int
    width: int = 1


def combination(dtype: str, op: str, version: int, capability: tuple[int, int]) -> Combination | str:
    """NCCL's combination for a dtype (NumPy's name of it) and an op, or the reason why there is none.

    version, capability   of NCCL, and the least that the devices have (8-bit floats depend on both)
    """
    if dtype == "bool":
        if op not in _BOOL_OPS:
            return f"NCCL has no {op} for bool"
        return Combination(UINT8, _BOOL_OPS[op])
    if dtype in _COMPLEX:
        if op not in ("sum", "average"):
            return f"NCCL has no {op} for complex numbers"
        return Combination(_KINDS[_COMPLEX[dtype]], _OPS[op], 2)
    if dtype not in _KINDS:
        return f"NCCL has no {dtype}"
    if op in _LOGICAL:
        return Combination(_KINDS[dtype], _LOGICAL[op])
    if op not in _OPS:
        return f"NCCL has no {op}"
    if dtype in _FLOAT8 and (version < FLOAT8 or capability < (9, 0)):
        return f"{dtype} needs NCCL 2.24 and GPUs of compute capability 9.0"
    return Combination(_KINDS[dtype], _OPS[op if divides(dtype) or op != "average" else "sum"])


def divides(dtype: str) -> bool:
    """True if NCCL's average equals Ronde's: for floats. The caller sums and divides integers itself."""
    return dtype in _FLOATS or dtype in _COMPLEX


def premultiplies(dtype: str, op: str) -> bool:
    """True if NCCL's scaling equals Ronde's. NCCL multiplies in the precision of the dtype, which does not suffice for
    half precision and integers."""
    return op in ("sum", "average") and dtype in ("float32", "float64")
