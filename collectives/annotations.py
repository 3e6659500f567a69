"""The types that the public signatures are written with, for type checkers.

A method that takes an array of the caller's library returns one of the same type: see `A`. The checks of values are at
run time, in `operations`.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np

OpName: TypeAlias = Literal[
    "sum", "average", "avg", "mean", "prod", "min", "max", "band", "bor", "bxor", "land", "lor", "lxor", "adasum"
]
"""The reductions that Ronde has. `average` divides the sum by the number of ranks; `avg` and `mean` are other names of
it. `adasum` is for allreduce of floats alone."""


class SupportsDLPack(Protocol):
    """An array that other libraries can read through DLPack: PyTorch, JAX, CuPy, NumPy."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class SupportsArrayInterface(Protocol):
    """An array in the host's memory that NumPy can view."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """An array in the memory of a CUDA GPU."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


SupportsArray: TypeAlias = SupportsDLPack | SupportsArrayInterface | SupportsCudaArrayInterface
"""Every type of array that the collectives take. NumPy's arrays and scalars are among them."""
Number: TypeAlias = bool | int | float | complex
"""Python's numbers. They are communicated as 0-d arrays; results are NumPy scalars."""
Scalar: TypeAlias = Number | np.generic
A = TypeVar("A", bound=SupportsArray)
T = TypeVar("T")


class Options(TypedDict, total=False):
    """The options of a collective that have the same type in all its overloads."""

    algorithm: str | None
    timeout: float | None
    stream: Any
    blocking: bool


class ReduceOptions(Options, TypedDict, total=False):
    """Those of a prefix."""

    reproducible: bool | None


class ScaledOptions(ReduceOptions, TypedDict, total=False):
    """Those of a reduction."""

    prescale: float | None
    postscale: float | None
