"""The table of dtypes and ops."""

from __future__ import annotations

import pytest

from transports.nccl.types import Combination, combination, divides, premultiplies

NEW, HOPPER = 22803, (9, 0)


@pytest.mark.parametrize(
    ("dtype", "op", "expected"),
    [
        ("float32", "sum", Combination(7, 0)),
        ("float64", "prod", Combination(8, 1)),
        ("bfloat16", "max", Combination(9, 2)),
        ("float16", "min", Combination(6, 3)),
        ("float16", "average", Combination(6, 4)),
        ("int8", "sum", Combination(0, 0)),
        ("uint64", "max", Combination(5, 2)),
        ("int32", "average", Combination(2, 0)),
        ("bool", "max", Combination(1, 2)),
        ("bool", "bor", Combination(1, 2)),
        ("bool", "lor", Combination(1, 2)),
        ("bool", "min", Combination(1, 3)),
        ("bool", "band", Combination(1, 3)),
        ("int64", "land", Combination(4, 3)),
        ("complex64", "sum", Combination(7, 0, 2)),
        ("complex128", "average", Combination(8, 4, 2)),
        ("float8_e4m3fn", "sum", Combination(10, 0)),
        ("float8_e5m2", "max", Combination(11, 2)),
    ],
)
def test_supported_combinations(dtype: str, op: str, expected: Combination) -> None:
    assert combination(dtype, op, NEW, HOPPER) == expected


@pytest.mark.parametrize(
    ("dtype", "op", "reason"),
    [
        ("int16", "sum", "NCCL has no int16"),
        ("uint16", "max", "NCCL has no uint16"),
        ("longdouble", "sum", "NCCL has no longdouble"),
        ("int32", "bxor", "NCCL has no bxor"),
        ("uint8", "band", "NCCL has no band"),
        ("int32", "lxor", "NCCL has no lxor"),
        ("bool", "sum", "NCCL has no sum for bool"),
        ("bool", "lxor", "NCCL has no lxor for bool"),
        ("complex64", "prod", "NCCL has no prod for complex numbers"),
        ("complex64", "max", "NCCL has no max for complex numbers"),
    ],
)
def test_missing_combinations(dtype: str, op: str, reason: str) -> None:
    assert combination(dtype, op, NEW, HOPPER) == reason


@pytest.mark.parametrize(("version", "capability"), [(22304, (9, 0)), (22803, (8, 9)), (22400, (8, 0))])
def test_eight_bit_floats_need_new_gpus_and_a_new_nccl(version: int, capability: tuple[int, int]) -> None:
    said = combination("float8_e4m3fn", "sum", version, capability)
    assert said == "float8_e4m3fn needs NCCL 2.24 and GPUs of compute capability 9.0"
    assert combination("float32", "sum", version, capability) == Combination(7, 0)


def test_means_and_factors() -> None:
    assert divides("float32")
    assert divides("complex64")
    assert not divides("int32")
    assert premultiplies("float64", "sum")
    assert premultiplies("float32", "average")
    assert not premultiplies("float32", "max")
    assert not premultiplies("float16", "sum")
    assert not premultiplies("int32", "sum")
