"""Packing: elements into bytes and back, as they travel, or in the portable representation external32."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from frontends.mpi.blocks import Block
from frontends.mpi.errors import error
from frontends.mpi.layout import Layout
from frontends.mpi.memory import Bytes, as_memory

EXTERNAL: Final = "external32"
_SIZES: Final = {"l": 4, "L": 4, "g": 16, "G": 32, "U": 4}
"""Bytes in external32 of the C types long, long double and wchar_t, by NumPy's codes; other types keep theirs."""


def pack(block: Block, outbuf: Any, position: int) -> int:
    """Put the elements of a block into a buffer, from a position on; the position after them."""
    return _put(block.read(), outbuf, position)


def unpack(inbuf: Any, position: int, block: Block) -> int:
    """Take the elements of a block out of a buffer; the position after them."""
    block.write(_take(inbuf, position, block.nbytes))
    return position + block.nbytes


def pack_external(datarep: str, block: Block, outbuf: Any, position: int) -> int:
    """The same as `pack`, in external32."""
    _check(datarep)
    return _put(_converted(block.read(), block, outwards=True), outbuf, position)


def unpack_external(datarep: str, inbuf: Any, position: int, block: Block) -> int:
    """The same as `unpack`, from external32."""
    nbytes = external_size(datarep, block.datatype.layout, block.count)
    block.write(_converted(_take(inbuf, position, nbytes), block, outwards=False))
    return position + nbytes


def external_size(datarep: str, layout: Layout, count: int) -> int:
    """Bytes of so many elements in external32."""
    _check(datarep)
    return count * layout.repeats * sum(_size(dtype) * number for dtype, number in layout.runs)


def _check(datarep: str) -> None:
    if datarep != EXTERNAL:
        raise error("ERR_ARG", f"datarep={datarep!r}: must be {EXTERNAL!r}")


def _put(data: Bytes, outbuf: Any, position: int) -> int:
    target = as_memory(outbuf[0] if isinstance(outbuf, (list, tuple)) else outbuf).data
    end = position + len(data)
    if position < 0:
        raise error("ERR_ARG", f"position={position}: must be 0 or more")
    if end > len(target):
        raise error("ERR_TRUNCATE", f"position={position}: {len(data)} bytes, a buffer of {len(target)} bytes")
    target[position:end] = data
    return end


def _take(inbuf: Any, position: int, nbytes: int) -> Bytes:
    source = as_memory(inbuf[0] if isinstance(inbuf, (list, tuple)) else inbuf).data
    if position < 0:
        raise error("ERR_ARG", f"position={position}: must be 0 or more")
    if position + nbytes > len(source):
        raise error("ERR_TRUNCATE", f"position={position}: {nbytes} bytes, a buffer of {len(source)} bytes")
    return source[position : position + nbytes]


def _size(dtype: np.dtype[Any]) -> int:
    return _SIZES.get(dtype.char, dtype.itemsize)


def _converted(data: Bytes, block: Block, *, outwards: bool) -> Bytes:
    """Bytes of elements in the representation of this machine as external32, or the other way round."""
    found, at = [], 0
    layout = block.datatype.layout
    for dtype, number in layout.runs * (layout.repeats * block.count):
        size = dtype.itemsize if outwards else _size(dtype)
        piece = data[at : at + size * number]
        at += size * number
        found.append(_numbers(piece, dtype, outwards=outwards))
    return np.concatenate(found) if found else np.empty(0, np.uint8)


def _numbers(piece: Bytes, dtype: np.dtype[Any], *, outwards: bool) -> Bytes:
    narrow, wide = _size(dtype), dtype.itemsize
    if dtype.char in "lL" and narrow != wide:
        foreign = np.dtype(f">{'i' if dtype.char == 'l' else 'u'}{narrow}")
        if not outwards:
            return piece.view(foreign).astype(dtype).view(np.uint8)
        numbers = piece.view(dtype).astype(foreign)
        if not np.array_equal(numbers, piece.view(dtype)):
            raise error("ERR_CONVERSION", f"a long has {8 * narrow} bits in {EXTERNAL}, and a number is beyond them")
        return numbers.view(np.uint8)
    if sys.byteorder == "big" or dtype.kind in "SV" or dtype.itemsize == 1:
        return piece
    unit = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return np.ascontiguousarray(piece.reshape(-1, unit)[:, ::-1]).reshape(-1)
