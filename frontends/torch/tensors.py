"""Conversion between torch tensors and the runtime's arrays, without copies.

A CPU tensor becomes a NumPy view of its memory. bfloat16 and the 8-bit floats, which `Tensor.numpy()` does not support,
are viewed as integers of the same size in between. A CUDA tensor is passed on unchanged: the runtime uses its
`__cuda_array_interface__`.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import torch

_BY_BITS: Final[dict[torch.dtype, tuple[torch.dtype, np.dtype[Any]]]] = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e4m3fnuz: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    torch.float8_e5m2: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2)),
    torch.float8_e5m2fnuz: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2fnuz)),
}
_BACK: Final = {numpy: (bits, kind) for kind, (bits, numpy) in _BY_BITS.items()}


def as_array(tensor: torch.Tensor, name: str = "tensor") -> Any:
    """Return an array that shares the tensor's memory, of any strides; a copy for a lazily conjugated or negated
    tensor. Gradients are not tracked through it. For a tensor to be written to, use `writable_array`.

    Raises TypeError unless the tensor is a dense tensor of numbers on the CPU or a CUDA device.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: must be a torch.Tensor, not {type(tensor).__name__}")
    plain = tensor.detach()
    if plain.layout is not torch.strided or plain.is_quantized:
        raise TypeError(f"{name}: must be a dense tensor, not {plain.layout}{', quantized' * plain.is_quantized}")
    if not plain.is_cuda and plain.device.type != "cpu":
        raise TypeError(f"{name}: is on device {plain.device}; must be on cpu or cuda")
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if plain.is_cuda:
        return plain
    if plain.dtype in _BY_BITS:
        bits, dtype = _BY_BITS[plain.dtype]
        return plain.view(bits).numpy().view(dtype)
    return plain.numpy()


def writable_array(tensor: torch.Tensor, name: str = "tensor") -> Any:
    """`as_array` for a tensor to be written to. Also raises TypeError for a lazily conjugated or negated tensor."""
    if isinstance(tensor, torch.Tensor) and (tensor.is_conj() or tensor.is_neg()):
        raise TypeError(f"{name}: is a conjugated or negated view; give tensor.resolve_conj().resolve_neg()")
    return as_array(tensor, name)


def as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor that shares a NumPy array's memory. A CUDA tensor is returned unchanged."""
    if isinstance(array, torch.Tensor):
        return array
    plain, kind = plain_array(np.asarray(array))
    tensor = torch.from_numpy(plain)
    return tensor if kind is None else tensor.view(kind)


def plain_array(array: Any) -> tuple[Any, torch.dtype | None]:
    """Return a view of the array with a type that `torch.from_numpy` accepts, and the torch dtype to view the tensor
    as; None if that is already its type.
    """
    if array.dtype not in _BACK:
        return array, None
    bits, kind = _BACK[array.dtype]
    return array.view(_numpy_of(bits)), kind


def _numpy_of(bits: torch.dtype) -> np.dtype[Any]:
    return np.dtype(np.int16 if bits is torch.int16 else np.uint8)
