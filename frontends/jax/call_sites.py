"""Call sites: the text that a compiled program passes to the handler, with the request and the arrays' shapes and
types."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from collectives.arrays import named_dtype
from frontends.jax.requests import Array, Request

_Kind = tuple[tuple[int, ...], str]
"""Shape, and the name of the dtype."""


class CallSite:
    """A request on arrays of known shapes; everything that does not change between calls."""

    def __init__(self, request: Request, operands: Sequence[_Kind], results: Sequence[_Kind]) -> None:
        self.request = request
        self._kinds = (
            tuple((tuple(shape), name) for shape, name in operands),
            tuple((tuple(shape), name) for shape, name in results),
        )
        self._operands, self._results = ([_Memory(*kind) for kind in kinds] for kinds in self._kinds)

    def encode(self) -> str:
        """Return the call site as text; `decode` is the inverse."""
        return json.dumps([self.request.text(), *self._kinds])

    def arrays(self, operands: Sequence[int], results: Sequence[int]) -> tuple[list[Array], list[Array]]:
        """Return the arrays at these addresses. A result that shares its operand's memory is the same array."""
        sources = [memory.at(address) for memory, address in zip(self._operands, operands, strict=True)]
        targets = [
            source if address == origin and source.size else memory.at(address)
            for memory, address, origin, source in zip(self._results, results, operands, sources, strict=True)
        ]
        return sources, targets


class _Memory:
    """Makes arrays of one shape and type at given addresses."""

    __slots__ = ("_block", "_count", "_dtype", "_shape")

    def __init__(self, shape: tuple[int, ...], name: str) -> None:
        self._shape, self._dtype = shape, named_dtype(name)
        self._count = int(np.prod(shape, dtype=np.int64))
        self._block = ctypes.c_char * (self._count * self._dtype.itemsize)

    def at(self, address: int) -> Array:
        if not self._count:
            return np.empty(self._shape, self._dtype)
        return np.ndarray(self._shape, self._dtype, self._block.from_address(address))  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def decode(text: bytes) -> CallSite:
    """Return the call site of a text."""

    request, operands, results = json.loads(text)
    return CallSite(Request.read(request), operands, results)
