"""Memory: the objects that stand for memory in calls, and the way from a program's buffer to a NumPy array of bytes."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from frontends.mpi import cuda_arrays, dlpack
from frontends.mpi.errors import missing
from frontends.mpi.handles import SURFACE
from frontends.mpi.ints import as_int

Bytes = NDArray[np.uint8]
_NO_BYTES: Final[Bytes] = np.empty(0, np.uint8)


class _Marker(int):
    """A constant that stands for memory."""

    __module__ = SURFACE
    _name = ""
    _value = 0

    def __new__(cls, buf: Any = None, /) -> Any:
        return getattr(sys.modules.get(SURFACE), cls._name, None) or int.__new__(cls, cls._value)

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> Any:
        return self._name

    def _refused(self, other: object) -> Any:
        return NotImplemented

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refused


class BottomType(_Marker):
    """The type of BOTTOM: the displacements of the datatype are addresses."""

    _name, _value = "BOTTOM", 0


class InPlaceType(_Marker):
    """The type of IN_PLACE: the data are where the result goes."""

    _name, _value = "IN_PLACE", 1


class BufferAutomaticType(_Marker):
    """The type of BUFFER_AUTOMATIC: buffered sends make their buffers themselves."""

    _name, _value = "BUFFER_AUTOMATIC", 2


def is_in_place(buf: Any) -> bool:
    """True for IN_PLACE, and for None in its stead."""
    return buf is None or buf is IN_PLACE


BOTTOM: Final = int.__new__(BottomType, 0)
IN_PLACE: Final = int.__new__(InPlaceType, 1)
BUFFER_AUTOMATIC: Final = int.__new__(BufferAutomaticType, 2)


class Memory(NamedTuple):
    """A program's buffer.

    data      its bytes, in the order in which they lie in memory; read-only if the buffer is
    code      the code of its elements, as NumPy and the buffer protocol have it; empty if that is not known
    native    False for elements in another byte order
    """

    data: Bytes
    code: str = ""
    native: bool = True


class buffer(np.ndarray[Any, Any]):
    """Memory of bytes, as Alloc_mem and windows give it. (A class can export memory before Python 3.12 only as a
    subclass of one that does.)"""

    __module__ = SURFACE
    _obj: Any = None
    _shown: Any = None

    def __new__(cls, *buf: Any) -> Any:
        return cls.frombuffer(*buf) if buf else _buffer(_NO_BYTES.copy(), None)

    @staticmethod
    def allocate(nbytes: int, clear: bool = False) -> buffer:
        """New memory."""
        if not isinstance(nbytes, (int, np.integer)):
            raise TypeError(f"nbytes={nbytes!r}: must be an int")
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes}: must be 0 or more")
        data = bytearray(nbytes)
        return _buffer(np.frombuffer(data, np.uint8) if nbytes else _NO_BYTES.copy(), data)

    @staticmethod
    def frombuffer(buf: Any, readonly: bool = False) -> buffer:
        """The memory of an object."""
        if buf is None:
            raise TypeError("None has no memory")
        data = as_memory(buf).data
        if readonly:
            data = data.view()
            data.flags.writeable = False
        return _buffer(data, buf)

    @staticmethod
    def fromaddress(address: int, nbytes: int, readonly: bool = False) -> buffer:
        """The memory at an address. Nothing keeps it."""
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes}: must be 0 or more")
        if nbytes and not address:
            raise ValueError("address=0: there is no memory")
        data = at_address(address, nbytes) if nbytes else _NO_BYTES.copy()
        data.flags.writeable = not readonly
        return _buffer(data, None)

    def _bytes(self) -> Any:
        return self._shown if self._shown is not None else np.ndarray.view(self, np.ndarray)

    @property
    def address(self) -> int:
        data = self._bytes()
        return int(data.ctypes.data) if data.size or self._obj is not None else 0

    @property
    def obj(self) -> Any:
        return self._obj

    @property
    def nbytes(self) -> int:
        return int(self._bytes().size)

    @property
    def readonly(self) -> bool:
        return not self._bytes().flags.writeable

    @property
    def format(self) -> str:
        return "B"

    @property
    def itemsize(self) -> int:
        return 1

    def __len__(self) -> int:
        return self.nbytes

    def __bool__(self) -> bool:
        return self.nbytes > 0

    def __getitem__(self, item: Any) -> Any:
        data = self._bytes()
        if isinstance(item, slice):
            if item.step not in (None, 1):
                raise IndexError("a slice of memory has no step")
            return _buffer(data[item], self._obj)
        if item is None or not hasattr(item, "__index__"):
            raise TypeError(f"{item!r}: an index must be an int or a slice")
        return int(data[item])

    def __setitem__(self, item: Any, value: Any) -> None:
        data = self._bytes()
        if not data.flags.writeable:
            raise TypeError("the memory is read-only")
        if isinstance(item, slice):
            if item.step not in (None, 1):
                raise IndexError("a slice of memory has no step")
            data[item] = value if isinstance(value, int) else as_memory(value).data
        elif item is None or not hasattr(item, "__index__"):
            raise TypeError(f"{item!r}: an index must be an int or a slice")
        else:
            data[item] = value

    def __delitem__(self, item: Any) -> None:
        raise NotImplementedError("memory cannot be deleted from a buffer")

    def __iter__(self) -> Any:
        return iter(self._bytes().tolist())

    def __eq__(self, other: object) -> Any:
        return self is other

    def __ne__(self, other: object) -> Any:
        return self is not other

    __hash__ = None

    def cast(self, format: str, shape: Any = None) -> memoryview:
        view = memoryview(self._bytes())
        return view.cast(format) if shape is None else view.cast(format, shape)  # type: ignore[call-overload, no-any-return]

    def tobytes(self, order: Any = None) -> bytes:
        return bytes(self._bytes().tobytes())

    def toreadonly(self) -> buffer:
        return buffer.frombuffer(self, readonly=True) if self._obj is None else buffer.frombuffer(self._obj, True)

    def release(self) -> None:
        """Let go of the memory."""
        self._shown, self._obj = _NO_BYTES.copy(), None


def _buffer(data: Any, obj: Any) -> buffer:
    made: buffer = data.view(buffer)
    made._obj = obj
    return made


def at_address(address: int, nbytes: int) -> Bytes:
    """The memory at an address, which nothing keeps."""
    return _shown((ctypes.c_ubyte * nbytes).from_address(address))


def as_memory(obj: Any) -> Memory:
    """The memory of a program's object: of the buffer protocol, of DLPack, or None. Raises TypeError for anything else,
    BufferError if it is not contiguous."""
    if type(obj) is np.ndarray:
        return _of_array(obj)
    if obj is None or isinstance(obj, _Marker):
        return Memory(_NO_BYTES)
    if isinstance(obj, buffer):
        return Memory(obj._bytes())
    try:
        view = memoryview(obj)
    except TypeError:
        return _foreign(obj)
    except ValueError as error:
        raise BufferError(str(error)) from error
    if not view.contiguous:
        raise BufferError(f"the memory of a {type(obj).__name__} is not contiguous")
    if not view.nbytes:
        data: Any = np.empty(0, np.uint8)
    elif view.c_contiguous:
        data = np.frombuffer(view.cast("B") if view.format != "B" or view.ndim != 1 else view, np.uint8)
    else:
        data = np.asarray(view).ravel(order="K").view(np.uint8)
    return Memory(data, view.format.lstrip("@=<>!"), view.format[:1] != _FOREIGN_ORDER)


_FOREIGN_ORDER: Final = ">" if sys.byteorder == "little" else "<"


def _of_array(array: NDArray[Any]) -> Memory:
    flags, dtype = array.flags, array.dtype
    if not flags.forc:
        raise BufferError(f"an array of shape {array.shape} and strides {array.strides} is not contiguous")
    if dtype.hasobject:
        raise BufferError(f"an array of {dtype} has Python objects, not data")
    line = array if array.ndim == 1 else array.ravel(order="K")
    data = line.view(np.uint8) if array.size else np.empty(0, np.uint8)
    return Memory(data, dtype.char if dtype.kind != "V" else dtype.str[1:], dtype.isnative)


def _foreign(obj: Any) -> Memory:
    """The memory of an object with DLPack on the host."""
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        capsule, on_host = dlpack.capsule_of(obj)
        address, nbytes, typestr, readonly = dlpack.read(capsule)
        if nbytes and not on_host and not cuda_arrays.is_readable(address, nbytes):
            raise _on_gpu()
        return _at(address, nbytes, typestr, readonly, (obj, capsule))
    if hasattr(obj, "__cuda_array_interface__"):
        address, nbytes, typestr, native, readonly = cuda_arrays.read(obj.__cuda_array_interface__)
        if nbytes and not cuda_arrays.is_readable(address, nbytes):
            raise _on_gpu()
        return _at(address, nbytes, "" if typestr[:1] == "V" else typestr, readonly, obj, native)
    raise TypeError(f"a {type(obj).__name__} has no memory: give an object with the buffer protocol or DLPack")


def _at(address: int, nbytes: int, typestr: str, readonly: bool, owner: Any, native: bool = True) -> Memory:
    """The memory at an address, which belongs to an owner that is kept alive."""
    if not nbytes:
        return Memory(np.empty(0, np.uint8), typestr, native)
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    data = _shown(memory)
    data.flags.writeable = not readonly
    return Memory(data, typestr, native)


def _shown(memory: Any) -> Bytes:
    """The array of bytes of an array of ctypes."""
    found: Bytes = np.frombuffer(memory, np.uint8)
    return found


def _on_gpu() -> NotImplementedError:
    return missing("messages from GPUs", "copy the array to the host, or call ronde's own functions on it")


def Get_address(location: Any) -> int:
    """The address of memory; 0 for memory of MPI of no bytes, such as that of a dynamic window."""
    if location is None or isinstance(location, _Marker):
        return int(location or 0)
    if isinstance(location, buffer) and not location.size:
        return 0
    return int(as_memory(location).data.ctypes.data)


def Aint_add(base: int, disp: int) -> int:
    """An address and a displacement, added."""
    return as_int(base, "base") + as_int(disp, "disp")


def Aint_diff(addr1: int, addr2: int) -> int:
    """The displacement between two addresses."""
    return as_int(addr1, "addr1") - as_int(addr2, "addr2")


def Alloc_mem(size: int, info: Any = None) -> buffer:
    """New memory of so many bytes."""
    return buffer.allocate(size)


def Free_mem(mem: buffer) -> None:
    """Let go of memory that Alloc_mem has given."""
    mem.release()
