"""Loosely coupled training for JAX: local SGD and DiLoCo.

Parameters are a pytree of arrays. JAX's arrays are immutable: use the returned tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from collectives import local_sgd
from collectives.local_sgd import Nesterov
from collectives.trees import Array, told_apart

__all__ = ["DiLoCo", "LocalSGD", "Nesterov"]


class _Arrays(local_sgd.Library):
    def leaves(self, params: Any) -> list[tuple[str, Any]]:
        found, _ = jax.tree_util.tree_flatten_with_path(params)
        named = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in found]
        for name, leaf in named:
            if not isinstance(leaf, jax.Array | np.ndarray):
                raise TypeError(f"params[{name!r}]: must be an array, not {type(leaf).__name__}")
        return list(told_apart(named))

    def read(self, leaf: Any) -> Array:
        return np.asarray(leaf)

    def write(self, params: Any, values: Mapping[int, Array]) -> Any:
        found, tree = jax.tree_util.tree_flatten(params)
        for place, value in values.items():
            old = found[place]
            new = value.astype(old.dtype)
            found[place] = jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else new
        return jax.tree_util.tree_unflatten(tree, found)

    def check(self, name: str, leaf: Any) -> None:
        """Nothing: no array is written."""


class DiLoCo(local_sgd.DiLoCo):
    """ronde.local_sgd.DiLoCo for a pytree: `params = outer.step(params)`."""

    library = _Arrays()


class LocalSGD(local_sgd.LocalSGD):
    """ronde.local_sgd.LocalSGD for a pytree."""

    library = _Arrays()
