"""CUDA tensors of torch that are not there: tensors on device cuda:N whose memory and streams are a fake machine's.

    with gpus(2) as some, cuda_tensors(some) as cuda:
        x = cuda.tensor(torch.ones(4))          # x.is_cuda, and torch.cuda.current_stream is the machine's

What is computed with such a tensor is done in its turn on the stream that is torch's current one then, from the memory
as it is by then: `machine.violations` tells of memory that was given up too early. They know views, copies, `cat` and
arithmetic; torch's futures of CUDA tensors need a torch that was built for CUDA, so there are none.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from frontends.torch import dispatch
from tests.gpu.gpus import Gpus
from tests.gpu.machine import Work


class Event:
    """A stand-in for torch.cuda.Event."""

    def __init__(self, cuda: Cuda) -> None:
        self._machine = cuda.machine
        self.handle = cuda.machine.event()

    def query(self) -> bool:
        return self._machine.happened(self.handle)


class Stream:
    """Stands for torch.cuda.Stream; `cuda_stream` is its handle."""

    def __init__(self, cuda: Cuda, device: int, handle: int) -> None:
        self._cuda = cuda
        self.device = device
        self.cuda_stream = handle

    def record_event(self) -> Event:
        event = Event(self._cuda)
        with self._cuda.cupy.cuda.Device(self.device):
            self._cuda.machine.record(event.handle, self.cuda_stream)
        return event

    def wait_event(self, event: Event) -> None:
        with self._cuda.cupy.cuda.Device(self.device):
            self._cuda.machine.wait_event(self.cuda_stream, event.handle)


class Cuda:
    """torch.cuda, as far as it is needed, on the machine of `some`."""

    def __init__(self, some: Gpus) -> None:
        self.machine = some.machine
        self.cupy = some.cupy
        self.held: list[Callable[[], None]] | None = None
        """Not None: new streams are held back, until these are called."""
        self._local = threading.local()

    def _streams(self) -> dict[int, Stream]:
        found: dict[int, Stream] = self._local.__dict__.setdefault("streams", {})
        return found

    def current_stream(self, device: Any = None) -> Stream:
        index = self._index(device)
        return self._streams().get(index) or Stream(self, index, 0)

    def new_stream(self, device: Any = None) -> Stream:
        made = Stream(self, self._index(device), self.machine.handle())
        if self.held is not None:
            self.held.append(self.machine.gate(made.cuda_stream))
        return made

    @contextlib.contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream(stream.device)
        self._streams()[stream.device] = stream
        try:
            yield
        finally:
            self._streams()[stream.device] = before

    def _index(self, device: Any) -> int:
        found = device.index if isinstance(device, torch.device) else device
        return self.machine.device if found is None else int(found)

    def tensor(self, values: torch.Tensor) -> CudaTensor:
        """A copy of `values` on the calling thread's GPU, made in its turn on the current stream."""
        kept, made = values.clone(), self.empty(values)
        self.enqueue("to", made.device.index, [made], lambda target: target.copy_(kept))
        return made

    def empty(self, like: torch.Tensor, device: int | None = None) -> CudaTensor:
        with self.cupy.cuda.Device(self.machine.device if device is None else device):
            array = self.cupy.empty(tuple(like.shape), like.detach()[:0].numpy().dtype)
        return CudaTensor(self, torch.from_numpy(array._inner), array._memory)

    def view(self, array: Any) -> CudaTensor:
        """torch.from_dlpack of a CuPy array."""
        return CudaTensor(self, torch.from_numpy(array._inner), array._memory)

    def enqueue(self, what: str, device: int, operands: list[Any], run: Callable[..., object]) -> None:
        """Have `run(*operands)` called in its turn, with CPU tensors of the memory as it is then. What the operands are
        keeps nobody's memory: a GPU's work does not, either."""
        places = [self._place(one) if isinstance(one, CudaTensor) else one for one in operands]

        def late() -> None:
            run(*[one(what) if callable(one) else one for one in places])

        with self.cupy.cuda.Device(device):
            self.machine.enqueue(self.current_stream(device).cuda_stream, Work(what, late))

    def _place(self, tensor: CudaTensor) -> Callable[[str], torch.Tensor]:
        inner = tensor.inner
        assert inner.is_contiguous(), "only contiguous operands here"
        address, nbytes = inner.data_ptr(), inner.numel() * inner.element_size()
        shape, dtype = inner.shape, inner.numpy().dtype

        def find(what: str) -> torch.Tensor:
            return torch.from_numpy(self.machine.bytes_at(address, nbytes, what).view(dtype)).reshape(shape)

        return find

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values, once the current stream has come so far."""
        assert isinstance(tensor, CudaTensor), type(tensor)
        with self.cupy.cuda.Device(tensor.device.index):
            handle = self.current_stream(tensor.device).cuda_stream
            self.machine.synchronize(lambda: self.machine.drained(handle))
        return tensor.inner.clone()


class CudaTensor(torch.Tensor):
    """A tensor on cuda:N. `inner` is a CPU tensor of its memory, which is a GPU's of the machine."""

    cuda: Cuda  # type: ignore[assignment]
    inner: torch.Tensor

    @staticmethod
    def __new__(cls: Any, cuda: Cuda, inner: torch.Tensor, memory: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=f"cuda:{memory.device}"
        )
        made.fake, made.inner, made.memory = cuda, inner, memory
        return made

    def __dlpack__(self, *, stream: int | None = None, **more: object) -> Any:
        """The consumer's stream waits for the current one, as in torch."""
        here = self.fake.current_stream(self.device)
        if stream is not None and (0 if stream == 1 else stream) != here.cuda_stream:
            Stream(self.fake, self.device.index, 0 if stream == 1 else stream).wait_event(here.record_event())
        return self.fake.cupy.ndarray(self.inner.numpy(), self.memory)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.copy_:  # which asks for a GPU before it dispatches
            target, source = args
            target.fake.enqueue("copy_", target.device.index, [target, source], lambda a, b: a.copy_(b))
            return target
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves(args) if isinstance(one, cls)]
        cuda, memory = given[0].fake, given[0].memory
        plain = tree_map(lambda one: one.inner if isinstance(one, cls) else one, args)
        result = function(*plain, **(kwargs or {}))  # for its shape; of what is there now, for views
        storage = given[0].inner.untyped_storage().data_ptr()

        def wrap(one: Any) -> Any:
            if not isinstance(one, torch.Tensor):
                return one
            if one.untyped_storage().data_ptr() == storage:
                return cls(cuda, one, memory)
            made = cuda.empty(one, memory.device)
            if "empty" not in function.__name__:
                flat = list(given)

                def run(target: torch.Tensor, *sources: torch.Tensor) -> None:
                    left = iter(sources)
                    again = tree_map(lambda x: next(left) if isinstance(x, cls) else x, args)
                    target.copy_(function(*again, **(kwargs or {})))

                cuda.enqueue(function.__name__, memory.device, [made, *flat], run)
            return made

        return tree_map(wrap, result)


CudaTensor.__module__ = "torch"  # the runtime asks the library that a tensor is of for its current stream


@contextlib.contextmanager
def cuda_tensors(some: Gpus) -> Iterator[Cuda]:
    """Let torch.cuda be that of a fake machine."""
    cuda = Cuda(some)
    real = torch.from_dlpack

    def from_dlpack(array: Any) -> torch.Tensor:
        return cuda.view(array) if isinstance(array, some.cupy.ndarray) else real(array)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "from_dlpack", from_dlpack)
        patch.setattr(torch.cuda, "current_stream", cuda.current_stream)
        patch.setattr(torch.cuda, "Stream", cuda.new_stream)
        patch.setattr(torch.cuda, "stream", cuda.use)
        patch.setattr(dispatch, "PLAIN", dispatch.PLAIN | {CudaTensor})  # it stands for torch's own class
        yield cuda


def numbers(*shape: int) -> torch.Tensor:
    """1, 2, 3, ..."""
    return torch.from_numpy(np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape))
