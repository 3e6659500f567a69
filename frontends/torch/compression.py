"""Compression of torch tensors by a cast."""

from __future__ import annotations

import torch

from frontends.horovod import AnyCompression, Compressions, casts

__all__ = ["AnyCompression", "Compression"]


def _is_wide(tensor: torch.Tensor) -> bool:
    return bool(tensor.dtype.is_floating_point and tensor.element_size() > 2)


class Compression(Compressions):
    """Values for the argument `compression`."""

    fp16, bf16 = casts(__name__, _is_wide, torch.Tensor.to, torch.float16, torch.bfloat16)
