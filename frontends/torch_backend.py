"""Name and registration of the torch.distributed backend. Imports nothing of torch before `announce` is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

BACKEND: Final = "ronde"


def announce(create: Callable[..., Any]) -> None:
    """Register the backend with torch.distributed, for CPU and CUDA tensors. Idempotent.

    create   called by torch with store, rank, size and timeout for each new process group
    """
    import torch.distributed as dist

    if dist.is_available() and BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])
