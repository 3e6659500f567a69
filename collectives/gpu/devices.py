"""GPUs as Ronde sees them, by CuPy: arrays, the places where work on them is done, and copies to and from the host.

A *place* is a GPU and one of its streams. Within it (`with place:`) arrays are made and computed
there, in order, while the host goes on; an event on the stream tells when the GPU has come past a point.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, Final

import numpy as np

from collectives.arrays import Array, check_dtype, type_name
from collectives.libraries import check_sign, maker_of, no_memory, packages_of
from transports.base import FIRST_SLICE, LAST_SLICE
from transports.errors import ConfigError, DeadlineExceeded

INSTALL: Final = f"{sys.executable} -m pip install 'ronde[cuda12]' (or 'ronde[cuda13]', as the driver's CUDA is)"
_CUDA: Final = (2, 13)
"""DLPack's numbers of memory on NVIDIA GPUs: plain, and managed."""


def is_device_array(x: Any) -> bool:
    """True for an array on an NVIDIA GPU, of any library. Imports nothing."""
    if isinstance(x, (np.ndarray, np.generic, bool, int, float, complex)):
        return False
    kind = getattr(x, "__dlpack_device__", None)
    if kind is None:
        return hasattr(x, "__cuda_array_interface__")
    try:
        return kind()[0] in _CUDA
    except (BufferError, RuntimeError, ValueError):  # a device that DLPack has no number for
        return False


class DeviceStream:
    """A GPU and one of its streams."""

    def __init__(self, cuda: Cuda, device: int, stream: Any) -> None:
        self.cuda = cuda
        self.device = device
        self.stream = stream
        self._gpu = cuda.module.cuda.Device(device)

    def __enter__(self) -> DeviceStream:
        self._gpu.__enter__()
        self.stream.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.__exit__(kind, error, trace)
        self._gpu.__exit__(kind, error, trace)

    @property
    def handle(self) -> int:
        """The stream's."""
        return int(self.stream.ptr)

    def mark(self) -> Any:
        """An event that has happened when the stream has come past this point."""
        with self._gpu:
            return self.stream.record(self.cuda.module.cuda.Event(disable_timing=True))

    def after(self, event: Any) -> None:
        """Let all work that is enqueued later wait for an event."""
        with self._gpu:  # on which stream 0 depends
            self.stream.wait_event(event)

    def beside(self) -> DeviceStream:
        """Another stream of the same GPU."""
        with self._gpu:
            return DeviceStream(self.cuda, self.device, self.cuda.module.cuda.Stream(non_blocking=True))


class Cuda:
    """CuPy, as far as Ronde uses it."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._runtime = module.cuda.runtime

    def stream_of(self, x: Any, stream: Any = None) -> DeviceStream:
        """The stream for work on `x`: `stream` (an object with `__cuda_stream__`, or a CUDA stream's handle), by
        default the current stream of the array's library, CuPy or torch; CuPy's for other libraries.

        Raises TypeError naming `stream` for anything else.
        """
        device = self._device(x)
        if stream is not None:
            return DeviceStream(self, device, self._stream(_handle(stream), stream))
        torch = sys.modules.get("torch") if "torch" in packages_of(x) else None
        if torch is not None:
            current = torch.cuda.current_stream(device)
            return DeviceStream(self, device, self._stream(int(current.cuda_stream), current))
        return DeviceStream(self, device, self.module.cuda.get_current_stream(device))

    @property
    def count(self) -> int:
        """The number of GPUs."""
        return int(self._runtime.getDeviceCount())

    def use(self, device: int) -> None:
        """Make a GPU that of the calling thread."""
        self.module.cuda.Device(device).use()

    def facts(self) -> dict[str, str]:
        """Facts about the device that measurements depend on."""
        properties = self._runtime.getDeviceProperties(self._runtime.getDevice())
        return {
            "gpu": properties["name"].decode(),
            "driver_cuda": str(self._runtime.driverGetVersion()),
            "runtime_cuda": str(self._runtime.runtimeGetVersion()),
            "cupy": self.module.__version__,
        }

    def time(self, call: Callable[[], object], times: int, deadline: float) -> float:
        """The seconds of one of so many calls in a row, by events in the current place. Raises DeadlineExceeded."""
        begin, end = self.module.cuda.Event(), self.module.cuda.Event()
        begin.record()
        for _ in range(times):
            call()
        end.record()
        wait_until_done(end, deadline, lambda: None, "calls that are timed")
        return float(self.module.cuda.get_elapsed_time(begin, end)) / 1e3 / times

    def here(self) -> DeviceStream:
        """The place of the calling thread."""
        device = int(self._runtime.getDevice())
        return DeviceStream(self, device, self.module.cuda.get_current_stream(device))

    def array(self, x: Any, name: str = "x") -> Any:
        """A CuPy array that shares the memory of `x`. Raises TypeError if CuPy cannot view it, for a negated view of
        a tensor, and for a dtype that cannot be communicated; ValueError for a tensor whose memory was freed."""
        if isinstance(x, self.module.ndarray):
            array = x
        elif not is_device_array(x):
            raise TypeError(f"{name}: must be on a GPU, as the other arguments are; it is a {type_name(x)}")
        else:
            check_sign(x, name)
            try:
                array = self.module.from_dlpack(x) if hasattr(x, "__dlpack__") else self.module.asarray(x)
            except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
                raise TypeError(f"{name}: a {type_name(x)} that CuPy cannot view: {error}") from error
            if array.size and not array.data.ptr:
                raise ValueError(f"{name}: {no_memory(array.size)}")
        check_dtype(array.dtype, name)
        return array

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array in the current place. Raises TypeError for a dtype that CuPy does not know."""
        try:
            return self.module.empty(shape, dtype)
        except ValueError as error:
            raise TypeError(f"dtype {dtype}: CuPy does not support it: {error}") from error

    def flat(self, array: Any) -> Any:
        """The elements in C order as a one-dimensional array: a view if possible, else a copy."""
        return self.module.ascontiguousarray(array).reshape(-1)

    def pinned(self, nbytes: int) -> Array:
        """Page-locked memory of the host: copies from and to it go on while the host does."""
        memory = self.module.cuda.alloc_pinned_memory(max(nbytes, 1))
        return np.frombuffer(memory, np.uint8, nbytes)

    def to_host(self, target: Array, source: Any, place: DeviceStream) -> None:
        """Enqueue a copy of a contiguous array to page-locked memory."""
        kind = self._runtime.memcpyDeviceToHost
        self._runtime.memcpyAsync(target.ctypes.data, source.data.ptr, source.nbytes, kind, place.handle)

    def to_device(self, target: Any, source: Array, place: DeviceStream) -> None:
        """Enqueue a copy from page-locked memory to a contiguous array."""
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(target.data.ptr, source.ctypes.data, source.nbytes, kind, place.handle)

    def fill(self, target: Any, values: Array) -> None:
        """Enqueue target = values, a copy from any memory of the host, which may be changed afterwards."""
        if target.flags.c_contiguous:
            target.set(values)
        else:
            target[...] = self.module.asarray(values)

    def like(self, array: Any, original: Any) -> Any:
        """A CuPy array as the kind of array that `original` is, by DLPack where its library knows that; in the place
        where it is going to be used. Lists and tuples likewise; anything else stays."""
        if isinstance(array, (list, tuple)):
            return type(array)(self.like(one, original) for one in array)
        if isinstance(original, self.module.ndarray) or not isinstance(array, self.module.ndarray):
            return array
        convert = maker_of(original)
        return array if convert is None else convert(array)

    def _device(self, x: Any) -> int:
        """The number of the GPU that `x` is on."""
        if isinstance(x, self.module.ndarray) or not hasattr(x, "__dlpack_device__"):
            return int(self.module.asarray(x).device.id)
        return int(x.__dlpack_device__()[1])

    def _stream(self, handle: int, owner: Any) -> Any:
        if handle == 0:
            return self.module.cuda.Stream.null
        return self.module.cuda.Stream.from_external(_Foreign(handle, owner))


class DeviceTarget:
    """The target of a result on the GPU of the current place: the caller's `out` or a new array. See buffers.Target."""

    def __init__(self, place: DeviceStream, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Raises TypeError or ValueError, naming `out`, if it does not fit."""
        self._out = out
        self.given = out is not None
        self._shaped = check_out(place, out, shape, dtype) if self.given else place.cuda.empty(shape, dtype)
        self.flat = place.cuda.flat(self._shaped)

    def apart(self, source: Any) -> Any:
        """`source`, copied if its memory overlaps this; see arguments.apart."""
        return source.copy() if self.given and np.may_share_memory(source, self.flat) else source

    def finish(self) -> Any:
        """`out`, written back if it is not contiguous, or the new array, which is CuPy's."""
        if not self.given:
            return self._shaped
        if not self._shaped.flags.c_contiguous:
            np.copyto(self._shaped, self.flat.reshape(self._shaped.shape))
        return self._out


class _Foreign:
    """A stream that other code made and owns."""

    def __init__(self, handle: int, owner: object) -> None:
        self._handle = handle
        self._owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@cache
def cuda() -> Cuda:
    """CuPy. Raises ConfigError, with the command that installs it, if it is missing."""
    try:
        return Cuda(importlib.import_module("cupy"))
    except ImportError as error:
        raise ConfigError(f"arrays on GPUs need CuPy, which cannot be imported ({error}): {INSTALL}") from error


def wait_until_done(event: Any, deadline: float, attend: Callable[[], None], what: str) -> None:
    """Wait on the host until an event has happened. `attend` is called periodically; an error of it ends the wait.

    Raises DeadlineExceeded naming `what`.
    """
    pause = FIRST_SLICE
    while not event.done:
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(f"the GPU did not complete in time: {what}")
        time.sleep(pause)  # CUDA has no wait with a time limit
        pause = min(2 * pause, LAST_SLICE)
        attend()


def _handle(stream: Any) -> int:
    """The handle of a stream that a caller gave."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    raise TypeError(f"stream={stream!r}: must have __cuda_stream__, or be the handle of a CUDA stream")


def check_out(place: DeviceStream, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """`out` as a CuPy array, in the current place. Raises TypeError or ValueError, naming it, if it does not fit."""
    if not is_device_array(out):
        raise TypeError("out: must be on a GPU, as x is")
    array = place.cuda.array(out, "out")
    if array.dtype != dtype:
        raise TypeError(f"out: has dtype {array.dtype}, must have {dtype}")
    if array.shape != shape:
        raise ValueError(f"out: has shape {array.shape}, must have {shape}")
    if array.device.id != place.device:
        raise ValueError(f"out: is on GPU {array.device.id}, x is on GPU {place.device}")
    return array
