"""Conversion between torch tensors and the runtime's arrays, without copies.

A CPU tensor becomes a NumPy view of its memory. bfloat16 and the 8-bit floats, which NumPy does not have, are viewed as
integers of the same size in between. A CUDA tensor is passed on unchanged: the runtime uses its
`__cuda_array_interface__`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import torch

from collectives import OpName
from collectives.arrays import named_dtype
from collectives.libraries import no_memory
from frontends.horovod import Average, Library, Sum

_NAMES: Final[dict[torch.dtype, str]] = {
    getattr(torch, name): name
    for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
}
"""Types that NumPy has by ml_dtypes."""
_KINDS: Final = {name: kind for kind, name in _NAMES.items()}
_PACKED: Final = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
    *("bits1x8", "bits2x4", "bits4x2", "bits8", "float4_e2m1fn_x2"),
)
"""Types whose elements are bits, or several numbers in a byte: their bytes are no numbers to add."""
_MOVED: Final[dict[torch.dtype, torch.dtype]] = {
    getattr(torch, name): bits
    for name, bits in (("complex32", torch.int32), ("bits16", torch.int16), *((name, torch.uint8) for name in _PACKED))
    if hasattr(torch, name)
}
"""Types of which NumPy has none, not even by ml_dtypes: they can be moved, but not combined."""
_SHARES: Final = np.lib.NumpyVersion(np.__version__) >= "2.1.0" and hasattr(torch._C, "_to_dlpack_versioned")


class _Memory:
    """A CPU tensor as NumPy asks for its memory.

    `Tensor.numpy()` forbids for good that the tensor is resized; memory that is shared like this does not.
    `Tensor.__dlpack__` takes three times as long.
    """

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return torch._C._to_dlpack_versioned(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the host's memory


def as_array(tensor: torch.Tensor, name: str = "tensor", *, moved: bool = False) -> Any:
    """Return an array that shares the tensor's memory, of any strides; a copy for a lazily conjugated or negated
    tensor. Gradients are not tracked through it. For a tensor to be written to, use `writable_array`.

    moved   the elements are only moved: types that cannot be combined are then viewed as integers

    Raises TypeError unless the tensor is a dense tensor of numbers on the CPU or a CUDA device, ValueError if its
    memory was freed.
    """
    if isinstance(tensor, torch.Tensor) and (tensor.is_conj() or tensor.is_neg()):
        tensor = tensor.detach().resolve_conj().resolve_neg()
    return _array(tensor, name, moved)


def writable_array(tensor: torch.Tensor, name: str = "tensor", *, moved: bool = False) -> Any:
    """`as_array` for a tensor to be written to. Also raises TypeError for a lazily conjugated or negated tensor."""
    if isinstance(tensor, torch.Tensor) and (tensor.is_conj() or tensor.is_neg()):
        raise TypeError(f"{name}: is a conjugated or negated view; give tensor.resolve_conj().resolve_neg()")
    return _array(tensor, name, moved)


def _array(tensor: torch.Tensor, name: str, moved: bool) -> Any:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: must be a torch.Tensor, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"{name}: must be a dense tensor, not {tensor.layout}{', quantized' * tensor.is_quantized}")
    kind = tensor.dtype
    if kind in _MOVED:
        if not moved:
            raise TypeError(f"{name}: has dtype {kind}, which can be moved between ranks, but not combined")
        tensor = bits_of(tensor.detach())
    if not tensor.is_cpu:
        if not tensor.is_cuda:
            raise TypeError(f"{name}: is on device {tensor.device}; must be on cpu or cuda")
        return tensor.detach()
    if kind in _NAMES:
        return _shared(tensor.detach().view(_bits(kind)), name).view(named_dtype(_NAMES[kind]))
    return _shared(tensor, name)


def _shared(tensor: torch.Tensor, name: str) -> Any:
    """A NumPy array that shares the memory of a dense CPU tensor."""
    if not tensor.data_ptr() and tensor.numel():
        raise ValueError(f"{name}: {no_memory(tensor.numel())}")
    return np.from_dlpack(_Memory(tensor)) if _SHARES else tensor.detach().numpy()


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view as integers of a tensor whose elements can be moved, but not combined: torch itself cannot copy all
    of these. Another tensor is returned unchanged."""
    kind = _MOVED.get(tensor.dtype)
    return tensor if kind is None else tensor.view(kind)


def as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor that shares a NumPy array's memory. A CUDA tensor is returned unchanged."""
    if isinstance(array, torch.Tensor):
        return array
    plain, kind = plain_array(np.asarray(array))
    tensor = torch.from_numpy(plain)
    return tensor if kind is None else tensor.view(kind)


def sparse_sum(where: torch.Tensor, what: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the coalesced sparse tensor of entries that are gathered from all ranks: `where` has a row for each."""
    total = torch.sparse_coo_tensor(where.t(), what, shape, device=what.device, check_invariants=True)
    return total.coalesce()


def form_of(tensor: torch.Tensor, op: OpName = Sum) -> torch.Tensor:
    """Return a tensor without rows, whose allgather shows if a sparse tensor has the same shape on all ranks, and the
    op, as the last dimension. It is on the device of the values, as all tensors of one operation must be."""
    return tensor.values().new_empty((0, *tensor.shape, 1 + (op == Average)), dtype=torch.uint8)


def plain_array(array: Any) -> tuple[Any, torch.dtype | None]:
    """Return a view of the array with a type that `torch.from_numpy` accepts, and the torch dtype to view the tensor
    as; None if that is already its type.
    """
    kind = _KINDS.get(array.dtype.name) if array.dtype.itemsize <= 2 else None
    return (array, None) if kind is None else (array.view(np.int16 if kind is torch.bfloat16 else np.uint8), kind)


def _bits(kind: torch.dtype) -> torch.dtype:
    return torch.int16 if kind is torch.bfloat16 else torch.uint8


def _library(moved: bool) -> Library:
    def result(array: Any, like: torch.Tensor) -> torch.Tensor:
        tensor = as_tensor(array)
        return tensor if tensor.dtype is like.dtype else tensor.view(like.dtype)

    def empty_like(tensor: torch.Tensor, name: str) -> torch.Tensor:
        as_array(tensor, name, moved=moved)
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    return Library(partial(as_array, moved=moved), partial(writable_array, moved=moved), result, empty_like)


LIBRARY: Final = _library(moved=False)
"""Horovod's operations that combine torch tensors."""
MOVING: Final = _library(moved=True)
"""Horovod's operations that move them."""
