"""Ronde: collective communication in pure Python.

    import numpy as np
    import ronde

    ronde.init()
    total = ronde.allreduce(np.ones(3) * ronde.rank())
    ronde.shutdown()

The functions here act on the world communicator. `Communicator` has the same as methods; its docstring explains arrays,
order, names and errors.

A framework has a module of its own, which is imported when it is first used: `ronde.torch`, `ronde.tensorflow`,
`ronde.keras`, `ronde.jax`, `ronde.mxnet`, and `ronde.numpy` for loops written by hand. `import ronde.torch as hvd`
replaces `import horovod.torch as hvd`. `ronde.ray` starts ranks in a Ray cluster, `ronde.horovod` has `horovod.run`,
`ronde.compression` the compressors, `ronde.elastic` state for ranks that come and go, `ronde.local_sgd` loosely coupled
training, `ronde.parameter_server` asynchronous SGD.

This package only re-exports: the code is in `collectives`, `frontends` and `transports`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Final

from collectives import *  # noqa: F403
from collectives import __all__ as __all__
from collectives import __version__ as __version__

if TYPE_CHECKING:
    from ronde import compression as compression
    from ronde import dask as dask
    from ronde import elastic as elastic
    from ronde import horovod as horovod
    from ronde import jax as jax
    from ronde import keras as keras
    from ronde import local_sgd as local_sgd
    from ronde import mxnet as mxnet
    from ronde import numpy as numpy
    from ronde import parameter_server as parameter_server
    from ronde import ray as ray
    from ronde import spark as spark
    from ronde import tensorflow as tensorflow
    from ronde import torch as torch

_MODULES: Final = (
    "compression",
    "dask",
    "elastic",
    "horovod",
    "jax",
    "keras",
    "local_sgd",
    "mxnet",
    "numpy",
    "parameter_server",
    "ray",
    "spark",
    "tensorflow",
    "torch",
)
"""Modules that are imported when they are first used. They are not in `__all__`: a star import loads no framework."""


def __getattr__(name: str) -> ModuleType:
    """Import one of the modules at its first use."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
