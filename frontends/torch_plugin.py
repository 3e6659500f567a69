"""What torch loads when it is imported (entry point group `torch.backends`): the name of the backend, and no more."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

BACKEND: Final = "ronde"


def register() -> None:
    """Make `torch.distributed` know the backend, whose code is imported with its first process group. Idempotent."""
    import torch.distributed as dist

    if dist.is_available() and BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])


def _create(*arguments: Any) -> Any:
    return import_module("frontends.torch.distributed").create(*arguments)
