"""torch tensors <-> arrays that the runtime moves, without copies.

A CPU tensor becomes a NumPy view of its memory; bfloat16 and the 8-bit floats, which `Tensor.numpy()` does not know, by
way of integers of their size. A CUDA tensor stays what it is: the runtime takes it by `__cuda_array_interface__`.
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
    """An array that shares the tensor's memory, of any strides. Gradients are not tracked through it.

    Raises TypeError for what is no dense tensor of numbers on the CPU or a CUDA device. Of a lazily conjugated or
    negated tensor it is a copy: take `writable_array` for what is to be written to.
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
    """`as_array` for a tensor that is written to. Raises TypeError also for a lazily conjugated or negated one."""
    if isinstance(tensor, torch.Tensor) and (tensor.is_conj() or tensor.is_neg()):
        raise TypeError(f"{name}: is a conjugated or negated view; give tensor.resolve_conj().resolve_neg()")
    return as_array(tensor, name)


def as_tensor(array: Any) -> torch.Tensor:
    """A tensor that shares a NumPy array's memory; a CUDA tensor is returned as it is."""
    if isinstance(array, torch.Tensor):
        return array
    plain, kind = plain_array(np.asarray(array))
    tensor = torch.from_numpy(plain)
    return tensor if kind is None else tensor.view(kind)


def plain_array(array: Any) -> tuple[Any, torch.dtype | None]:
    """An array that `torch.from_numpy` takes, of the same memory; and the dtype as which to view the tensor, if that is
    another."""
    if array.dtype not in _BACK:
        return array, None
    bits, kind = _BACK[array.dtype]
    return array.view(_numpy_of(bits)), kind


def _numpy_of(bits: torch.dtype) -> np.dtype[Any]:
    return np.dtype(np.int16 if bits is torch.int16 else np.uint8)
