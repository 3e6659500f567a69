"""Entry point of group `torch.backends`: torch calls `register` when it is imported.

It must stay small, because every program that imports torch loads it. The backend's code (frontends.torch.distributed)
is imported with the first process group.
"""

from __future__ import annotations

from typing import Any

from frontends.torch_backend import announce


def register() -> None:
    """Make the backend "ronde" known to torch.distributed. Idempotent."""
    announce(_create)


def _create(*arguments: Any) -> Any:
    from frontends.torch.distributed import create

    return create(*arguments)
