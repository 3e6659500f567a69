"""MXNet 1.9.1, imported under NumPy 2. The other modules of this room get `mx` from here.

MXNet's last release is of 2022, for NumPy 1, and reads names of `numpy` that NumPy 2 has removed. It reads nearly all
of them while it is imported: it lists them in `mxnet.numpy`, or registers its own functions under them. So the names
stand in `numpy` during the import alone. Two are read later, and stay: `Inf`, by the handlers of
`gluon.contrib.estimator`, and `compat.basestring`, by `mx.np.pad`.

Functions with a successor in NumPy 2 call it. Those for finance have none: NumPy moved them to the package
numpy-financial, and here they raise NotImplementedError.
"""

from __future__ import annotations

import importlib
import types
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np

_CONSTANTS: Final = {
    "PZERO": 0.0,
    "NZERO": -0.0,
    "PINF": np.inf,
    "NINF": -np.inf,
    "Inf": np.inf,
    "NAN": np.nan,
    "NaN": np.nan,
    "compat": types.SimpleNamespace(basestring=str),
}
_SUCCESSORS: Final = {
    "alltrue": "all",
    "in1d": "isin",
    "product": "prod",
    "round_": "round",
    "sometrue": "any",
    "trapz": "trapezoid",
}
_FINANCE: Final = ("mirr", "npv", "pmt", "ppmt", "pv", "rate")
_STAY: Final = {"Inf", "compat"}


def _successor(name: str) -> Callable[..., Any]:
    """Return a function that calls another one. It is not the same object, as MXNet keeps a table of functions."""
    found = getattr(np, name)
    return lambda *args, **kwargs: found(*args, **kwargs)


def _absent(name: str) -> Callable[..., Any]:
    """Return a function that raises NotImplementedError."""

    def function(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"numpy.{name}: NumPy 2 has no such function; the package numpy-financial has it")

    return function


def _removed_names() -> dict[str, Any]:
    """Return the names of NumPy 1 that MXNet reads, with their values."""
    return {
        **_CONSTANTS,
        **{name: _successor(other) for name, other in _SUCCESSORS.items()},
        "msort": lambda a: np.sort(a, axis=0),
        **{name: _absent(name) for name in _FINANCE},
    }


def _import_mxnet() -> types.ModuleType:
    """Import MXNet. Raises ModuleNotFoundError for the first module that is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # distutils, and names that this NumPy is about to remove
        added = {name: value for name, value in _removed_names().items() if not hasattr(np, name)}
        for name, value in added.items():
            setattr(np, name, value)
        try:
            return importlib.import_module("mxnet")
        finally:
            for name in added.keys() - _STAY:
                delattr(np, name)


mx: Final[Any] = _import_mxnet()
"""The module `mxnet`."""
