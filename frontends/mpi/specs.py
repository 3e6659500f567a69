"""Message specifications: what a program gives as a buffer, as blocks of elements in memory.

    buffer      [buffer, datatype]      [buffer, count]      [buffer, count, datatype]
    [buffer, (count, displacement), datatype]      [buffer, count, displacement, datatype]

Collectives of different counts take sequences of counts and displacements, those of different datatypes a sequence of
datatypes too, and displacements in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.mpi.blocks import Block, Blocks
from frontends.mpi.constants import PROC_NULL
from frontends.mpi.datatypes import BY_CODE, BYTE, Datatype
from frontends.mpi.ints import as_int, as_ints
from frontends.mpi.memory import BOTTOM, IN_PLACE, Bytes, as_memory, at_address


def message(spec: Any, *, writable: bool, parts: int = 1, rank: int = 0) -> Block:
    """The block of a specification with one count. Raises TypeError, ValueError, KeyError or BufferError.

    parts   number of ranks that the buffer is divided between: a count that is not given is that of all, and
            divisible by it
    rank    the rank of the message: with PROC_NULL the specification may be anything, None too
    """
    if rank == PROC_NULL:
        return Block(as_memory(None).data, 0, 0, BYTE)
    if type(spec) is np.ndarray:
        memory = as_memory(spec)
        datatype = _datatype(None, memory.code, memory.native)
        _check_writable(memory.data, writable)
        elements = len(memory.data) // (datatype.layout.size or 1)
        _check_parts(elements, parts)
        return Block(memory.data, 0, elements, datatype)
    buf, count, displacement, kind = _split(spec)
    if isinstance(count, list):  # a pair in a list, which is one count for each rank elsewhere
        count, displacement = _pair(tuple(count))
    memory = as_memory(buf)
    data = memory.data
    _check_writable(data, writable)
    datatype = _datatype(kind, memory.code, memory.native)
    count = None if count is None else as_int(count, "count")
    displacement = 0 if displacement is None else as_int(displacement, "displacement")
    if (count or 0) < 0 or displacement < 0:
        raise ValueError(f"message: count {count}, displacement {displacement}: must be 0 or more")
    if (displacement or (count is None and len(data))) and (not datatype or datatype.extent <= 0):
        raise ValueError("message: a datatype without a positive extent needs a count, and no displacement")
    offset = displacement * datatype.extent if displacement else 0
    if displacement and offset > len(data):
        raise ValueError(f"message: displacement {displacement} is outside of a buffer of {len(data)} bytes")
    if count is None:
        count = 0
        if len(data):
            count, rest = divmod(len(data), datatype.extent)
            if rest:
                raise ValueError(
                    f"message: {len(data)} bytes are no multiple of the datatype's extent {datatype.extent}"
                )
            count -= displacement
        _check_parts(count, parts)
    elif count and not len(data) and buf is not BOTTOM and datatype.layout.size:
        raise ValueError(f"message: the buffer is empty, but the count is {count}")
    if buf is BOTTOM:
        return _absolute(0, count, datatype)
    return Block(data, offset, count, datatype)


def divided(spec: Any, parts: int, *, writable: bool) -> Blocks:
    """Equal blocks for all ranks, in a specification with one count: that of one rank, or of all if it is not given."""
    whole = message(spec, writable=writable, parts=parts)
    given = isinstance(spec, (list, tuple)) and _split(spec)[1] is not None
    if parts == 0:
        return Blocks([])
    count = whole.count if given else whole.count // parts
    step = count * whole.datatype.extent
    return Blocks([Block(whole.memory, whole.offset + i * step, count, whole.datatype) for i in range(parts)])


def vector(spec: Any, parts: int, *, writable: bool) -> Blocks:
    """Blocks of different counts at displacements, which count elements."""
    buf, counts, displacements, kind = _split(spec)
    memory = as_memory(buf)
    _check_writable(memory.data, writable)
    datatype = _datatype(kind, memory.code, memory.native)
    size = len(memory.data)
    if counts is None:
        total = 0
        if size:
            if not datatype or datatype.extent <= 0:
                raise ValueError("message: a datatype without a positive extent needs counts")
            total, rest = divmod(size, datatype.extent)
            if rest:
                raise ValueError(f"message: {size} bytes are no multiple of the datatype's extent {datatype.extent}")
            if displacements is None:
                _check_parts(total, parts)
        numbers = [total // parts if parts else 0] * parts
    else:
        numbers = _list(counts, parts, "counts")
    if displacements is None:
        places = [0, *np.cumsum(numbers).tolist()][:parts]
    else:
        places = _list(displacements, parts, "displacements")
    extent = datatype.extent
    if buf is BOTTOM:
        return Blocks([_absolute(at * extent, n, datatype) for n, at in zip(numbers, places, strict=True)])
    return Blocks([Block(memory.data, at * extent, n, datatype) for n, at in zip(numbers, places, strict=True)])


def various(spec: Any, parts: int, *, writable: bool) -> Blocks:
    """Blocks of different datatypes at displacements in bytes: [buffer, datatypes], [buffer, (counts, displacements),
    datatypes] or [buffer, counts, displacements, datatypes]."""
    if not isinstance(spec, (list, tuple)):
        raise TypeError(
            f"message: a {type(spec).__name__}; must be a list of a buffer, counts, displacements, datatypes"
        )
    if len(spec) == 2:
        buf, kinds = spec
        counts, displacements = None, None
    elif len(spec) == 3:
        buf, (counts, displacements), kinds = spec
    elif len(spec) == 4:
        buf, counts, displacements, kinds = spec
    else:
        raise ValueError(f"message: {len(spec)} items; must be 2 to 4")
    if buf is BOTTOM and (counts is None or displacements is None):
        raise ValueError("message: BOTTOM needs counts and displacements")
    memory = as_memory(buf).data
    _check_writable(memory, writable)
    datatypes = [_datatype(kind, "", True) for kind in kinds]
    if len(datatypes) != parts:
        raise ValueError(f"message: {len(datatypes)} datatypes; must be {parts}, one for each rank")
    numbers = [1] * parts if counts is None else _list(counts, parts, "counts")
    places = [0] * parts if displacements is None else _list(displacements, parts, "displacements")
    parameters = zip(numbers, places, datatypes, strict=True)
    if buf is BOTTOM:
        return Blocks([_absolute(at, n, datatype) for n, at, datatype in parameters])
    return Blocks([Block(memory, at, n, datatype) for n, at, datatype in parameters])


def _absolute(at: int, count: int, datatype: Datatype) -> Block:
    """Elements at an address; the datatype may have addresses itself."""
    first, end = datatype.layout.span(count)
    if first == end:
        return Block(np.empty(0, np.uint8), 0, 0, datatype)
    return Block(at_address(at + first, end - first), -first, count, datatype)


def _split(spec: Any) -> tuple[Any, Any, Any, Any]:
    """Buffer, count, displacement and datatype of a specification; None for each that is not given."""
    if not isinstance(spec, (list, tuple)):
        if spec is None or spec is BOTTOM or spec is IN_PLACE:
            raise TypeError(f"message: {spec!r}; must be a buffer, or a list that begins with one")
        return spec, None, None, None
    if len(spec) == 2:
        buf, other = spec
        if other is None or isinstance(other, (Datatype, str)):
            return buf, None, None, other
        return (buf, *_pair(other), None)
    if len(spec) == 3:
        return (spec[0], *_pair(spec[1]), spec[2])
    if len(spec) == 4:
        return spec[0], spec[1], spec[2], spec[3]
    raise ValueError(f"message: {len(spec)} items; must be a buffer, and at most count, displacement and datatype")


def _pair(counts: Any) -> tuple[Any, Any]:
    if isinstance(counts, tuple):
        if len(counts) != 2:
            raise ValueError(f"message: {counts!r}: must be a count and a displacement")
        return counts[0], counts[1]
    return counts, None


def _datatype(kind: Any, code: str, native: bool) -> Datatype:
    """The datatype that is given, or that of a buffer's elements."""
    if isinstance(kind, Datatype):
        return kind
    if kind is not None:
        if not isinstance(kind, str):
            raise TypeError(f"message: datatype {kind!r}; must be a Datatype or its code")
        return BY_CODE[kind]
    if not native:
        raise BufferError("message: the elements have another byte order; give the datatype to send them as they are")
    if code and code not in BY_CODE:
        raise KeyError(f"message: no datatype has elements of kind {code!r}: give one, as in [buffer, MPI.BYTE]")
    return BY_CODE[code] if code else BYTE


def _check_writable(data: Bytes, writable: bool) -> None:
    if writable and len(data) and not data.flags.writeable:
        raise BufferError("message: the buffer is read-only")


def _check_parts(count: int, parts: int) -> None:
    if parts > 1 and count % parts:
        raise ValueError(f"message: {count} elements cannot be divided between {parts} ranks")


def _list(values: Any, parts: int, name: str) -> list[int]:
    """One number for each rank. A single number stands for all counts, and for the distance of displacements."""
    if isinstance(values, (int, np.integer)) or (isinstance(values, np.ndarray) and values.ndim == 0):
        number = as_int(values, name)
        return [number * rank for rank in range(parts)] if name == "displacements" else [number] * parts
    if isinstance(values, memoryview | bytes | bytearray) or not isinstance(values, (Sequence, np.ndarray)):
        values = list(values)
    numbers = as_ints(values.tolist() if isinstance(values, np.ndarray) else values, name)
    if len(numbers) != parts:
        raise ValueError(f"message: {len(numbers)} {name}; must be {parts}, one for each rank")
    return numbers
