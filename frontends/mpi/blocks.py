"""Blocks: elements of a datatype in memory, read as they travel and written to their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from frontends.mpi.memory import Bytes

_UNITS: Final = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


class Block:
    """Elements of a datatype in memory.

    memory    bytes of the program
    offset    where the first element begins in it
    count     number of elements
    datatype  their Datatype
    """

    __slots__ = ("count", "datatype", "memory", "offset")

    def __init__(self, memory: Bytes, offset: int, count: int, datatype: Any) -> None:
        self.memory = memory
        self.offset = offset
        self.count = count
        self.datatype = datatype

    @property
    def nbytes(self) -> int:
        """Number of bytes of data."""
        return int(self.count * self.datatype.layout.size)

    @property
    def whole(self) -> bool:
        """True if the data are one piece of memory."""
        return self.datatype.layout.whole or not self.count

    def read(self) -> Bytes:
        """The data, in the order in which they travel: the memory itself if it is one piece, else a copy."""
        layout = self.datatype.layout
        if layout.whole or not self.count:
            return self._piece()
        units, places = self._places()
        packed: Bytes = units[places].view(np.uint8)
        return packed

    def write(self, data: Bytes) -> None:
        """Put data, which may be fewer than the block takes, in their places. Raises ValueError for more."""
        if not len(data):
            return
        if len(data) > self.nbytes:
            raise ValueError(f"message: {len(data)} bytes for {self._elements()}, which have {self.nbytes}")
        if self.datatype.layout.whole:
            self._piece()[: len(data)] = data
            return
        units, places = self._places()
        size = units.dtype.itemsize
        full = len(data) // size
        units[places[:full]] = data[: full * size].view(units.dtype)
        rest = data[full * size :]
        if len(rest):
            units[places[full] : places[full] + 1].view(np.uint8)[: len(rest)] = rest

    def target(self) -> tuple[Bytes, Callable[[Bytes], None] | None]:
        """Memory for the data as they travel, and the function that puts them in their places; None if they are."""
        if self.whole:
            return self._piece(), None
        self._places()  # raises before anything is received
        return np.empty(self.nbytes, np.uint8), self.write

    def array(self, dtype: Any) -> Any:
        """The data as numbers: the memory itself if it is one piece."""
        return self.read().view(dtype)

    def _piece(self) -> Bytes:
        end = self.offset + self.nbytes
        if end == self.offset:  # no data may be anywhere
            return self.memory[:0]
        if self.offset < 0 or end > len(self.memory):
            raise self._outside(self.offset, end)
        return self.memory[self.offset : end]

    def _places(self) -> tuple[Any, Any]:
        """The memory in units, and the units that hold the data in their order."""
        layout = self.datatype.layout
        first, end = layout.span(self.count)
        if self.offset + first < 0 or self.offset + end > len(self.memory):
            raise self._outside(self.offset + first, self.offset + end)
        places, size = layout.places(self.count)
        kind: Any = _UNITS[size]
        start = self.offset % size
        units = self.memory[start : start + (len(self.memory) - start) // size * size].view(kind)
        at = (self.offset - start) // size
        return units, places + at if at else places

    def _outside(self, first: int, end: int) -> ValueError:
        return ValueError(f"message: {self._elements()} are bytes {first} to {end} of a buffer of {len(self.memory)}")

    def _elements(self) -> str:
        return f"{self.count} elements of {self.datatype.Get_name() or 'a derived datatype'}"


class Blocks:
    """One block for each rank.

    blocks   by rank
    """

    __slots__ = ("blocks",)

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks

    @property
    def sizes(self) -> list[int]:
        """Bytes of data by rank."""
        return [block.nbytes for block in self.blocks]

    def _adjacent(self) -> Bytes | None:
        """The memory of all blocks, if they follow each other in it; None if they do not."""
        first, at = self.blocks[0], self.blocks[0].offset
        for block in self.blocks:
            if block.memory is not first.memory or not block.whole or (block.nbytes and block.offset != at):
                return None
            at += block.nbytes
        if first.offset < 0 or at > len(first.memory):
            return None
        return first.memory[first.offset : at]

    def read(self) -> Bytes:
        """The data of all blocks, one after the other."""
        adjacent = self._adjacent()
        return np.concatenate([block.read() for block in self.blocks]) if adjacent is None else adjacent

    def target(self) -> tuple[Bytes, Callable[[Bytes], None] | None]:
        """The same as `Block.target` for the data of all blocks, one after the other."""
        adjacent = self._adjacent()
        if adjacent is not None:
            return adjacent, None
        for block in self.blocks:
            block.target()  # raises before anything is received
        return np.empty(sum(self.sizes), np.uint8), self.write

    def write(self, data: Bytes) -> None:
        """Put the data of all blocks in their places."""
        at = 0
        for block in self.blocks:
            block.write(data[at : at + block.nbytes])
            at += block.nbytes


def check_kinds(given: Block, result: Block) -> None:
    """Raise ValueError unless the basic elements that are combined are of one dtype, if each block has one."""
    kinds = given.datatype.layout.dtype, result.datatype.layout.dtype
    if kinds[0] != kinds[1]:
        raise ValueError(f"elements of {kinds[0]} and of {kinds[1]} are combined: must be equal")
