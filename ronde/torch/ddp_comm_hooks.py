"""Compression in DistributedDataParallel. The code is in frontends.torch.ddp_comm_hooks."""

from __future__ import annotations

from frontends.torch.ddp_comm_hooks import CompressionState, compression_hook

__all__ = ["CompressionState", "compression_hook"]
