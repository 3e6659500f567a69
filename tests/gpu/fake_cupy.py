"""The part of CuPy that Ronde uses, on a `Machine`. Like CuPy it never turns an array into a NumPy one by itself, and
does nothing before its turn on the current stream.

    cupy = make(machine); sys.modules["cupy"] = cupy
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tests.gpu.machine import Machine, Work

CUDA = 2
"""DLPack's number of the kind of device."""


class Memory:
    """The memory that arrays point into."""

    def __init__(self, machine: Machine, nbytes: int, device: int) -> None:
        self.bytes = machine.allocate(nbytes)
        self.ptr = self.bytes.ctypes.data
        self.device = device


class Pointer:
    def __init__(self, memory: Memory, ptr: int) -> None:
        self.mem = memory
        self.ptr = ptr


def make(machine: Machine) -> Any:
    """A module like CuPy."""
    cupy: Any = types.ModuleType("cupy")
    cupy.__version__ = "14.0.0"
    local = threading.local()
    owners: dict[int, int] = {}

    def current() -> Stream:
        return getattr(local, "streams", {}).get(machine.device, Stream.null)

    def enqueue(what: str, run: Callable[[], None]) -> None:
        machine.enqueue(current().ptr, Work(what, run))

    class Device:
        def __init__(self, device: int | None = None) -> None:
            self.id = machine.device if device is None else int(device)

        def __enter__(self) -> Device:
            stack = local.__dict__.setdefault("devices", [])
            stack.append(machine.device)
            machine.device = self.id
            return self

        def __exit__(self, *error: object) -> None:
            machine.device = local.devices.pop()

        def __int__(self) -> int:
            return self.id

        def use(self) -> Device:
            machine.device = self.id
            return self

        def synchronize(self) -> None:
            own = [0, *(handle for handle, device in owners.items() if device == self.id)]
            machine.synchronize(lambda: all(map(machine.drained, own)))

    class Event:
        def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
            self.ptr = machine.event()

        def record(self, stream: Stream | None = None) -> None:
            machine.record(self.ptr, (stream or current()).ptr)

        @property
        def done(self) -> bool:
            return machine.happened(self.ptr)

        def synchronize(self) -> None:
            machine.synchronize(lambda: machine.happened(self.ptr))

        def __del__(self) -> None:
            machine.forget(self.ptr)

    class Stream:
        null: Stream

        def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
            self.ptr = 0 if null else machine.handle()
            self.device_id = -1 if null else machine.device
            owners[self.ptr] = self.device_id

        @classmethod
        def from_external(cls, stream: Any) -> Stream:
            version, ptr = stream.__cuda_stream__()
            assert version == 0
            made = cls(null=True)
            made.ptr = ptr
            return made

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self.ptr

        def __enter__(self) -> Stream:
            if self.device_id not in (-1, machine.device):
                raise RuntimeError(f"a stream of device {self.device_id} on device {machine.device}")
            local.__dict__.setdefault("streams", {})
            local.__dict__.setdefault("before", []).append((machine.device, current()))
            local.streams[machine.device] = self
            return self

        def __exit__(self, *error: object) -> None:
            device, stream = local.before.pop()
            local.streams[device] = stream

        def record(self, event: Event | None = None) -> Event:
            event = event or Event()
            machine.record(event.ptr, self.ptr)
            return event

        def wait_event(self, event: Event) -> None:
            machine.wait_event(self.ptr, event.ptr)

        def synchronize(self) -> None:
            machine.synchronize(lambda: machine.drained(self.ptr))

        @property
        def done(self) -> bool:
            return machine.drained(self.ptr)

    Stream.null = Stream(null=True)

    class ndarray(NDArrayOperatorsMixin):
        __array_priority__ = 100

        def __init__(self, inner: np.ndarray[Any, Any], memory: Memory) -> None:
            self._inner = inner
            self._memory = memory

        dtype = property(lambda self: self._inner.dtype)
        shape = property(lambda self: self._inner.shape)
        size = property(lambda self: self._inner.size)
        ndim = property(lambda self: self._inner.ndim)
        nbytes = property(lambda self: self._inner.nbytes)
        strides = property(lambda self: self._inner.strides)
        itemsize = property(lambda self: self._inner.itemsize)
        device = property(lambda self: Device(self._memory.device))
        data = property(lambda self: Pointer(self._memory, self._inner.ctypes.data))

        @property
        def flags(self) -> Any:
            flags = self._inner.flags
            return types.SimpleNamespace(c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous)

        def __array__(self, *args: object) -> Any:
            raise TypeError("Implicit conversion to a NumPy array is not allowed.")

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {
                "shape": self.shape,
                "typestr": self.dtype.str,
                "data": (self.data.ptr, False),
                "strides": None if self.flags.c_contiguous else self.strides,
                "version": 3,
                "stream": current().ptr or 1,
                "_memory": self._memory,
            }

        def __dlpack_device__(self) -> tuple[int, int]:
            return CUDA, self._memory.device

        def __dlpack__(self, *, stream: int | None = None, **more: object) -> Any:
            return self

        def __len__(self) -> int:
            return len(self._inner)

        def __getitem__(self, key: Any) -> Any:
            return ndarray(np.asarray(self._inner[key]), self._memory)

        def __setitem__(self, key: Any, value: Any) -> None:
            copyto(self[key], value)

        def reshape(self, *shape: Any) -> Any:
            made = self._inner.reshape(*shape)
            if np.shares_memory(made, self._inner) or not self.size:
                return ndarray(made, self._memory)
            return ascontiguousarray(self).reshape(*shape)

        def view(self, dtype: Any) -> Any:
            return ndarray(self._inner.view(dtype), self._memory)

        def astype(self, dtype: Any, copy: bool = True) -> Any:
            made = empty(self.shape, dtype)
            copyto(made, self, casting="unsafe")
            return made

        def copy(self) -> Any:
            return self.astype(self.dtype)

        def fill(self, value: Any) -> None:
            copyto(self, value)

        def get(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
            current().synchronize()
            if out is None:
                return self._inner.copy()
            np.copyto(out, self._inner)
            return out

        def set(self, values: np.ndarray[Any, Any]) -> None:
            kept = np.array(values)
            enqueue("set", lambda: np.copyto(self._inner, kept))

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
            (out,) = kwargs.pop("out", (None,))
            if method != "__call__" or kwargs:
                return NotImplemented
            return compute(ufunc.__name__, ufunc, inputs, out)

        def __array_function__(self, function: Any, types_: Any, args: Any, kwargs: Any) -> Any:
            return getattr(cupy, function.__name__)(*args, **kwargs)

    def raw(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        return value._inner if isinstance(value, ndarray) else value

    def compute(name: str, function: Callable[..., Any], inputs: Any, out: Any) -> Any:
        """Enqueue out = function(*inputs)."""
        operands = [raw(value) for value in inputs]
        if out is None:
            samples = [np.zeros(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in operands]
            sample = np.asarray(function(*samples))
            out = empty(sample.shape, sample.dtype)

        def run() -> None:
            with np.errstate(all="ignore"):
                np.copyto(out._inner, function(*operands), casting="unsafe")

        enqueue(name, run)
        return out

    def empty(shape: Any, dtype: Any = float) -> Any:
        dtype = np.dtype(dtype)
        if dtype.name not in ALLOWED:
            raise ValueError(f"Unsupported dtype {dtype}")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = int(np.prod(shape, dtype=np.int64))
        memory = Memory(machine, count * dtype.itemsize, machine.device)
        return ndarray(memory.bytes[: count * dtype.itemsize].view(dtype).reshape(shape), memory)

    def empty_like(array: Any, dtype: Any = None, shape: Any = None) -> Any:
        return empty(array.shape if shape is None else shape, array.dtype if dtype is None else dtype)

    def copyto(target: Any, source: Any, casting: str = "same_kind") -> None:
        values = raw(source)
        enqueue("copyto", lambda: np.copyto(target._inner, values, casting=casting))  # type: ignore[arg-type]

    def ascontiguousarray(array: Any) -> Any:
        return array if array.flags.c_contiguous else array.astype(array.dtype)

    def concatenate(arrays: Any, axis: int = 0, out: Any = None) -> Any:
        made = empty(sum(len(array) for array in arrays), arrays[0].dtype) if out is None else out
        at = 0
        for array in arrays:
            copyto(made[at : at + len(array)], array)
            at += len(array)
        return made

    def asarray(values: Any, dtype: Any = None) -> Any:
        if isinstance(values, ndarray):
            return values
        interface = getattr(values, "__cuda_array_interface__", None)
        if interface is not None:
            memory = interface["_memory"]
            offset = interface["data"][0] - memory.ptr
            inner = np.ndarray(interface["shape"], interface["typestr"], memory.bytes, offset, interface["strides"])
            return ndarray(inner, memory)
        host = np.asarray(values, dtype)
        made = empty(host.shape, host.dtype)
        made.set(host)
        return made

    def from_dlpack(array: Any) -> Any:
        assert array.__dlpack_device__()[0] == CUDA
        found = array.__dlpack__(stream=current().ptr or 1)
        return ndarray(found._inner, found._memory)

    class Pinned(np.ndarray[Any, Any]):
        """Memory of the host that copies can be made from and to."""

        ptr = property(lambda self: self.ctypes.data)

    def alloc_pinned_memory(nbytes: int) -> Any:
        return machine.allocate(nbytes)[:nbytes].view(Pinned)

    def memcpy(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        def run() -> None:
            machine.bytes_at(target, nbytes, "memcpy")[:] = machine.bytes_at(source, nbytes, "memcpy")

        machine.enqueue(stream, Work("d2h" if kind == 2 else "h2d", run))

    def set_device(number: int) -> None:
        machine.device = number

    cupy.cuda = types.SimpleNamespace(
        Device=Device,
        Event=Event,
        Stream=Stream,
        alloc_pinned_memory=alloc_pinned_memory,
        get_current_stream=lambda device_id=-1: (
            current()
            if device_id in (-1, machine.device)
            else getattr(local, "streams", {}).get(device_id, Stream.null)
        ),
        get_elapsed_time=lambda begin, end: (machine.when(end.ptr) - machine.when(begin.ptr)) * 1e3,
        runtime=types.SimpleNamespace(
            memcpyAsync=memcpy,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            getDevice=lambda: machine.device,
            setDevice=set_device,
            getDeviceCount=lambda: machine.devices,
            driverGetVersion=lambda: 13000,
            runtimeGetVersion=lambda: 13000,
            getDeviceProperties=lambda number: {"name": b"a GPU that is not there", "major": 9, "minor": 0},
        ),
    )
    for made in (ndarray, empty, empty_like, copyto, ascontiguousarray, concatenate, asarray, from_dlpack):
        setattr(cupy, made.__name__, made)
    cupy.may_share_memory = lambda a, b: np.may_share_memory(a._inner, b._inner)
    cupy.array = lambda values, dtype=None: asarray(np.array(values, dtype))
    cupy.zeros = lambda shape, dtype=float: asarray(np.zeros(shape, dtype))
    cupy.arange = lambda *args, **kwargs: asarray(np.arange(*args, **kwargs))
    for name in ("add", "multiply", "divide", "maximum", "minimum", "not_equal", "equal", "bitwise_and", "logical_and"):
        ufunc = getattr(np, name)
        setattr(cupy, name, lambda *args, ufunc=ufunc, out=None: compute(ufunc.__name__, ufunc, args, out))
    cupy.where = lambda *args: compute("where", np.where, args, None)
    return cupy


ALLOWED = frozenset(
    f"{kind}{bits}"
    for kind, sizes in {"int": "8 16 32 64", "uint": "8 16 32 64", "float": "16 32 64", "complex": "64 128"}.items()
    for bits in sizes.split()
) | {"bool", "bfloat16"}
"""The dtypes for which CuPy has kernels."""
