"""A snapshot of any value: its arrays, and all else pickled with a mark at the place of each array."""

from __future__ import annotations

import hashlib
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

CHUNK_BYTES: Final = 8 << 20
"""Bytes that travel, and are digested, at once."""
_THREADS: Final = 4


class Arrays:
    """The arrays of a library, as NumPy arrays. This class knows NumPy's; a frontend overrides both methods."""

    def encode(self, value: Any) -> tuple[NDArray[Any], Any] | None:
        """A NumPy array with the bytes of `value` and a picklable note for `decode`; None if it is no array."""
        return (value, None) if type(value) is np.ndarray and not value.dtype.hasobject else None

    def decode(self, array: NDArray[Any], note: Any) -> Any:
        """The value again. `array` belongs to it."""
        return array


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, library: Arrays, arrays: list[NDArray[Any]]) -> None:
        super().__init__(file, protocol=5)
        self._library = library
        self._arrays = arrays

    def persistent_id(self, value: Any) -> tuple[int, Any] | None:
        encoded = self._library.encode(value)
        if encoded is None:
            return None
        self._arrays.append(np.array(encoded[0], order="C", copy=True))
        return len(self._arrays) - 1, encoded[1]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, library: Arrays, arrays: list[NDArray[Any]]) -> None:
        super().__init__(file)
        self._library = library
        self._arrays = arrays

    def persistent_load(self, found: Any) -> Any:
        place, note = found
        return self._library.decode(self._arrays[place].copy(), note)


@dataclass(frozen=True)
class Snapshot:
    """A copy of a value.

    outline  the value without its arrays, pickled
    arrays   its arrays, contiguous; nobody else has them
    """

    outline: bytes
    arrays: list[NDArray[Any]]

    @classmethod
    def of(cls, value: Any, library: Arrays) -> Snapshot:
        """Copy a value. Raises what pickle raises for what cannot be pickled."""
        file, arrays = io.BytesIO(), list[NDArray[Any]]()
        _Pickler(file, library, arrays).dump(value)
        return cls(file.getvalue(), arrays)

    @classmethod
    def empty(cls, outline: bytes, forms: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> Snapshot:
        """A snapshot whose arrays have yet to come."""
        return cls(outline, [np.empty(shape, dtype) for shape, dtype in forms])

    def value(self, library: Arrays) -> Any:
        """A new copy of the value."""
        return _Unpickler(io.BytesIO(self.outline), library, self.arrays).load()

    @property
    def forms(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each array."""
        return [(array.shape, array.dtype) for array in self.arrays]

    def memory(self) -> Memory:
        """The bytes of all arrays, one after the other."""
        return Memory([array.reshape(-1).view(np.uint8) for array in self.arrays if array.nbytes])

    def digest(self, outline: bool) -> bytes:
        """The digest of shapes, dtypes and bytes of the arrays, and with `outline` of the rest: equal objects may be
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


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
