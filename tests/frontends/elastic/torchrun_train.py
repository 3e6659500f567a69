"""A rank of torchrun that fails at the first start."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

import ronde.torch  # noqa: F401 - the backend

dist.init_process_group("ronde")
rank, start = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
x = torch.ones(3) * (rank + 1)
dist.all_reduce(x)
if start == "0" and rank == 1:
    os._exit(3)
dist.barrier()
dist.destroy_process_group()
print(f"start {start} rank {rank}: {x.tolist()}\n", end="", flush=True)
