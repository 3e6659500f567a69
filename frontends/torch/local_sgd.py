"""Loosely coupled training for PyTorch: local SGD and DiLoCo.

Parameters are a module, of which those that require gradients are taken, or a tree of tensors. They are changed in
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from collectives import local_sgd
from collectives.local_sgd import Nesterov
from collectives.trees import Array, leaves
from frontends.torch.tensors import as_array

__all__ = ["DiLoCo", "LocalSGD", "Nesterov"]


class _Tensors(local_sgd.Library):
    def leaves(self, params: Any) -> list[tuple[str, Any]]:
        if isinstance(params, torch.nn.Module):
            params = {name: tensor for name, tensor in params.named_parameters() if tensor.requires_grad}
        return list(leaves(params, kinds=(torch.Tensor,)))

    def read(self, leaf: Any) -> Array:
        array: Array = as_array(leaf.detach().cpu(), "params")
        return array

    def write(self, params: Any, values: Mapping[int, Array]) -> Any:
        found = self.leaves(params)
        with torch.no_grad():
            for place, value in values.items():
                found[place][1].copy_(torch.from_numpy(value))
        return params

    def check(self, name: str, leaf: Any) -> None:
        """Nothing: every tensor can be written."""


class DiLoCo(local_sgd.DiLoCo):
    """ronde.local_sgd.DiLoCo for a module, or a tree of tensors: `outer.step(model)`."""

    library = _Tensors()


class LocalSGD(local_sgd.LocalSGD):
    """ronde.local_sgd.LocalSGD for a module, or a tree of tensors."""

    library = _Tensors()
