"""A snapshot of any value: its arrays, and all else pickled with a mark at the place of each array."""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from transports.errors import MismatchError

Bytes = NDArray[np.uint8]

CHUNK_BYTES: Final = 8 << 20
"""Bytes that travel, and are digested, at once."""
_THREADS: Final = 4
_ALIGNMENT: Final = 16
"""Bytes; no element needs more."""
_X87_MANTISSA: Final = 63
"""Bits of the mantissa of an x87 number, without its first one."""
_X87_BYTES: Final = 10

NOTHING_FIXED: Final[Mapping[str, Any]] = {}


class Arrays:
    """The arrays of a library, as NumPy arrays; one object for one snapshot, or for one value made of it. This class
    knows NumPy's; a frontend overrides both methods."""

    def encode(self, value: Any) -> tuple[NDArray[Any], Any] | None:
        """A NumPy array on the memory of `value`, or on a copy of it, and a picklable note for `decode`; None if it is
        no array. Values that share memory give arrays that share memory."""
        return (value, None) if type(value) is np.ndarray and not value.dtype.hasobject else None

    def decode(self, array: NDArray[Any], note: Any) -> Any:
        """The value again. `array` belongs to it. Arrays that share memory have the same `base`."""
        return array


@dataclass(frozen=True)
class _Place:
    """An array in a snapshot: its block, and where it is there. Without `strides` it is the whole block."""

    block: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    note: Any

    def of(self, block: NDArray[Any]) -> NDArray[Any]:
        """The array in its block."""
        if self.strides is None:
            return block
        return np.ndarray(self.shape, self.dtype, block, self.offset, self.strides)


class _Pickler(pickle.Pickler):
    """Puts a mark at the place of each array, and of each fixed object. An object keeps its mark."""

    def __init__(self, file: io.BytesIO, library: Arrays, fixed: Mapping[str, Any]) -> None:
        super().__init__(file, protocol=5)
        self._library = library
        self._names: dict[int, str] = {}
        for name, value in fixed.items():
            self._names.setdefault(id(value), name)
        self._numbers: dict[int, int] = {}
        self._values: list[Any] = []  # while they live, no other object has their identity
        self.arrays: list[tuple[NDArray[Any], Any]] = []

    def persistent_id(self, value: Any) -> str | int | None:
        name = self._names.get(id(value))
        if name is not None:
            return name
        number = self._numbers.get(id(value))
        if number is None:
            encoded = self._library.encode(value)
            if encoded is None:
                return None
            number = self._numbers[id(value)] = len(self.arrays)
            self._values.append(value)
            self.arrays.append(encoded)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        library: Arrays,
        fixed: Mapping[str, Any],
        places: Sequence[_Place],
        blocks: Sequence[NDArray[Any]],
    ) -> None:
        super().__init__(file)
        self._library = library
        self._fixed = fixed
        self._places = places
        self._blocks = blocks
        self._copies: dict[int, NDArray[Any]] = {}
        self._values: dict[int, Any] = {}

    def persistent_load(self, mark: str | int) -> Any:
        if isinstance(mark, str):
            if mark not in self._fixed:
                raise MismatchError(f"the state refers to {mark}, which the state of this rank does not have")
            return self._fixed[mark]
        if mark not in self._values:
            place = self._places[mark]
            if place.block not in self._copies:
                self._copies[place.block] = self._blocks[place.block].copy()
            self._values[mark] = self._library.decode(place.of(self._copies[place.block]), place.note)
        return self._values[mark]


@dataclass(frozen=True)
class Snapshot:
    """A copy of a value.

    An object that the value has in several places is one object in the copy, and arrays that share memory share memory
    there.

    outline  the value without its arrays, pickled, and the places of the arrays
    arrays   the blocks in which the arrays are, contiguous; nobody else has them. Most arrays are a block, those that
             share memory are in one
    """

    outline: bytes
    arrays: list[NDArray[Any]]

    @classmethod
    def of(cls, value: Any, library: Arrays, fixed: Mapping[str, Any] = NOTHING_FIXED) -> Snapshot:
        """Copy a value.

        fixed  objects that are not copied, by names: in their place the copy has the objects of these names

        Raises the errors of pickle for a value that cannot be pickled.
        """
        file = io.BytesIO()
        pickler = _Pickler(file, library, fixed)
        pickler.dump(value)
        blocks, places = _copied(pickler.arrays)
        return cls(pickle.dumps((places, file.getvalue())), blocks)

    @classmethod
    def empty(cls, outline: bytes, forms: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> Snapshot:
        """A snapshot whose arrays have yet to come."""
        return cls(outline, [np.empty(shape, dtype) for shape, dtype in forms])

    def value(self, library: Arrays, fixed: Mapping[str, Any] = NOTHING_FIXED) -> Any:
        """A new copy of the value. Raises MismatchError if it needs a fixed object that is not in `fixed`."""
        places, pickled = pickle.loads(self.outline)
        return _Unpickler(io.BytesIO(pickled), library, fixed, places, self.arrays).load()

    @property
    def forms(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each block."""
        return [(array.shape, array.dtype) for array in self.arrays]

    def memory(self) -> Memory:
        """The bytes of all blocks, one after the other."""
        return Memory([array.reshape(-1).view(np.uint8) for array in self.arrays if array.nbytes])

    def digest(self, outline: bool) -> bytes:
        """The digest of shapes, dtypes and bytes of the blocks, and with `outline` of the rest: equal objects may be
        pickled differently."""
        memory = self.memory()
        with ThreadPoolExecutor(_THREADS) as pool:
            parts = list(pool.map(lambda chunk: _digest(memory.read(*chunk).data), memory.chunks()))
        forms = repr([(shape, str(dtype)) for shape, dtype in self.forms])
        return _digest(forms.encode() + b"".join(parts) + (self.outline if outline else b""))


class Memory:
    """Several flat arrays of bytes as one, from 0 to `size`."""

    def __init__(self, arrays: list[Bytes]) -> None:
        self._arrays = arrays
        self._starts = np.cumsum([0, *(array.size for array in arrays)])
        self.size = int(self._starts[-1])

    def chunks(self, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """The ends of the chunks of a range."""
        stop = self.size if stop is None else stop
        return [(at, min(at + CHUNK_BYTES, stop)) for at in range(start, stop, CHUNK_BYTES)]

    def read(self, start: int, stop: int) -> Bytes:
        """The bytes of a range: a view where they lie in one array, else a copy."""
        pieces = self._pieces(start, stop)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def write(self, start: int, data: Bytes) -> None:
        """Put bytes at a place."""
        done = 0
        for piece in self._pieces(start, start + data.size):
            piece[:] = data[done : done + piece.size]
            done += piece.size

    def _pieces(self, start: int, stop: int) -> list[Bytes]:
        pieces = []
        place = int(np.searchsorted(self._starts, start, "right")) - 1
        while start < stop:
            first = start - int(self._starts[place])
            piece = self._arrays[place][first : first + stop - start]
            pieces.append(piece)
            start += piece.size
            place += 1
        return pieces


def _copied(arrays: Sequence[tuple[NDArray[Any], Any]]) -> tuple[list[NDArray[Any]], list[_Place]]:
    """The blocks of some arrays with notes, and the place of each."""
    blocks: list[NDArray[Any]] = []
    places: dict[int, _Place] = {}
    for numbers in _overlapping([array for array, _ in arrays]):
        if len(numbers) == 1:
            array, note = arrays[numbers[0]]
            places[numbers[0]] = _Place(len(blocks), 0, array.dtype, array.shape, None, note)
            if (used := used_bytes(array.dtype)).all():
                blocks.append(np.array(array, order="C", copy=True))
            else:
                blocks.append(np.zeros(array.shape, array.dtype))
                _fill(blocks[-1], array, used)
            continue
        ends = [_ends(arrays[number][0]) for number in numbers]
        # The offset of an element is as even as its address, which gives the copy of a copy the same offsets.
        even = max(min(_ALIGNMENT, item & -item) for item in (arrays[number][0].itemsize for number in numbers))
        start = min(low for low, _ in ends) // even * even
        block = np.zeros(max(high for _, high in ends) - start, np.uint8)
        for number in numbers:
            array, note = arrays[number]
            place = _Place(len(blocks), _address(array) - start, array.dtype, array.shape, array.strides, note)
            _fill(place.of(block), array, used_bytes(array.dtype))  # bytes that belong to nobody stay 0
            places[number] = place
        blocks.append(block)
    return blocks, [places[number] for number in range(len(arrays))]


def _fill(target: NDArray[Any], array: NDArray[Any], used: NDArray[np.bool_]) -> None:
    """Copy an array into another of its shape and dtype, without the bytes that no number uses."""
    if used.all():
        target[...] = array
        return
    _bytes_of(target)[..., used] = _bytes_of(array)[..., used]


def _bytes_of(array: NDArray[Any]) -> Bytes:
    """The bytes of an array's elements, on its memory: one more axis."""
    strides = *array.strides, array.itemsize
    return np.lib.stride_tricks.as_strided(array, (*array.shape, 1), strides).view(np.uint8)


@functools.lru_cache(256)
def used_bytes(dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """For each byte of an element, True if its value depends on it. Aligned structures have gaps, and an x87 number has
    10 bytes in 16: what lies in the rest differs between ranks with equal values."""
    if dtype.subdtype is not None:
        item, shape = dtype.subdtype
        return np.tile(used_bytes(item), int(np.prod(shape)))
    used = np.ones(dtype.itemsize, bool)
    if dtype.fields is not None:
        used[:] = False
        for item, start, *_ in dtype.fields.values():
            used[start : start + item.itemsize] |= used_bytes(item)
    elif dtype.char in "gG" and np.finfo(np.longdouble).nmant == _X87_MANTISSA:
        numbers = used.reshape(-1, np.dtype(np.longdouble).itemsize)
        (numbers if dtype.isnative else numbers[:, ::-1])[:, _X87_BYTES:] = False
    return used


def _overlapping(arrays: Sequence[NDArray[Any]]) -> list[list[int]]:
    """The indices of the arrays, those that may share memory together, in the order of the first of each group."""
    groups: list[list[int]] = [[number] for number, array in enumerate(arrays) if not array.nbytes]
    furthest = 0
    spans = sorted((*_ends(array), number) for number, array in enumerate(arrays) if array.nbytes)
    for place, (low, high, number) in enumerate(spans):
        if place and low < furthest:
            groups[-1].append(number)
        else:
            groups.append([number])
        furthest = max(furthest, high)
    return sorted(sorted(group) for group in groups)


def _address(array: NDArray[Any]) -> int:
    """The address of the first element."""
    return int(array.__array_interface__["data"][0])


def _ends(array: NDArray[Any]) -> tuple[int, int]:
    """The addresses of the first byte, and after the last one, of an array that is not empty."""
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    low = _address(array) + sum(step for step in steps if step < 0)
    return low, _address(array) + sum(step for step in steps if step > 0) + array.itemsize


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
