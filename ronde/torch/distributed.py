"""Registers the torch.distributed backend `ronde`. The code is in frontends.torch.distributed."""

from __future__ import annotations

from frontends.torch.distributed import ProcessGroup

__all__ = ["ProcessGroup"]
