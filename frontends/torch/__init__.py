"""Horovod's API for PyTorch: `import ronde.torch as hvd`, and a Horovod script runs unchanged.

Names, signatures, defaults and semantics are those of `horovod.torch` 0.28; docs/migrating-from-horovod.md lists the
differences. Beside Horovod's API this room has the torch.distributed backend "ronde" (distributed.py) and compression
hooks for DistributedDataParallel (ddp_comm_hooks.py), which this module does not import. tensors.py is the only place
that converts between tensors and arrays.
"""

from __future__ import annotations

from frontends.needs import needs

with needs(torch="ronde.torch needs torch: pip install 'ronde[torch]'"):
    import torch as _torch  # noqa: F401

from types import FunctionType as _FunctionType

from collectives import shutdown
from frontends import builds, common
from frontends.builds import *  # noqa: F403
from frontends.common import *  # noqa: F403
from frontends.horovod import allgather_object, barrier, broadcast_object, join, poll, synchronize
from frontends.torch import autograd, elastic, ops
from frontends.torch.autograd import *  # noqa: F403
from frontends.torch.basics import init
from frontends.torch.compression import Compression
from frontends.torch.functions import broadcast_optimizer_state, broadcast_parameters
from frontends.torch.ops import *  # noqa: F403
from frontends.torch.optimizer import DistributedOptimizer
from frontends.torch.sync_batch_norm import SyncBatchNorm
from frontends.torch.tensors import LIBRARY as LIBRARY
from frontends.torch.works import eager as _eager

__all__ = [
    *ops.__all__,
    *autograd.__all__,
    *builds.__all__,
    *common.__all__,
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "init",
    "join",
    "poll",
    "shutdown",
    "synchronize",
]

for _name in __all__:  # torch.compile calls them, and does not follow them into the runtime
    if isinstance(globals()[_name], _FunctionType):
        _eager(globals()[_name])
