"""The types of message specifications, for annotations, by the names of `mpi4py.typing`. `specs` takes them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from collectives.annotations import SupportsCudaArrayInterface as SupportsCAI
from collectives.annotations import SupportsDLPack
from frontends.mpi.datatypes import Datatype
from frontends.mpi.memory import BottomType, InPlaceType

__all__ = [
    "Aint",
    "Bottom",
    "BufSpec",
    "BufSpecB",
    "BufSpecV",
    "BufSpecW",
    "Buffer",
    "Count",
    "Displ",
    "InPlace",
    "Offset",
    "S",
    "SupportsBuffer",
    "SupportsCAI",
    "SupportsDLPack",
    "T",
    "TargetSpec",
    "TypeSpec",
    "U",
    "V",
]

S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class SupportsBuffer(Protocol):
    """An object with Python's buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


Buffer: TypeAlias = SupportsBuffer | SupportsDLPack | SupportsCAI
"""Memory of the host or of a GPU."""
Bottom: TypeAlias = BottomType | None
InPlace: TypeAlias = InPlaceType | None
Aint: TypeAlias = int
Count: TypeAlias = int
Displ: TypeAlias = int
Offset: TypeAlias = int
TypeSpec: TypeAlias = Datatype | str
"""A datatype or its code."""

BufSpec: TypeAlias = (
    Buffer
    | tuple[Buffer, Count]
    | tuple[Buffer, TypeSpec]
    | tuple[Buffer, Count, TypeSpec]
    | tuple[Buffer, tuple[Count, Displ], TypeSpec]
    | tuple[Buffer, Count, Displ, TypeSpec]
    | tuple[Bottom, Count, Datatype]
    | list[Any]
)
"""A buffer with one count."""
BufSpecB: TypeAlias = (
    Buffer | tuple[Buffer, Count] | tuple[Buffer, TypeSpec] | tuple[Buffer, Count, TypeSpec] | list[Any]
)
"""A buffer with as many elements for each rank."""
BufSpecV: TypeAlias = (
    Buffer
    | tuple[Buffer, Sequence[Count]]
    | tuple[Buffer, tuple[Sequence[Count], Sequence[Displ]]]
    | tuple[Buffer, TypeSpec]
    | tuple[Buffer, Sequence[Count], TypeSpec]
    | tuple[Buffer, tuple[Sequence[Count], Sequence[Displ]], TypeSpec]
    | tuple[Buffer, Sequence[Count], Sequence[Displ], TypeSpec]
    | tuple[Bottom, tuple[Sequence[Count], Sequence[Displ]], Datatype]
    | tuple[Bottom, Sequence[Count], Sequence[Displ], Datatype]
    | list[Any]
)
"""A buffer with a count for each rank."""
BufSpecW: TypeAlias = (
    tuple[Buffer, Sequence[Datatype]]
    | tuple[Buffer, tuple[Sequence[Count], Sequence[Displ]], Sequence[Datatype]]
    | tuple[Buffer, Sequence[Count], Sequence[Displ], Sequence[Datatype]]
    | tuple[Bottom, tuple[Sequence[Count], Sequence[Displ]], Sequence[Datatype]]
    | tuple[Bottom, Sequence[Count], Sequence[Displ], Sequence[Datatype]]
    | list[Any]
)
"""A buffer with a count and a datatype for each rank."""
TargetSpec: TypeAlias = Displ | tuple[()] | tuple[Displ] | tuple[Displ, Count] | tuple[Displ, Count, TypeSpec]
"""The place of an access in a window."""
