"""torch.distributed.pipelining on the backend "ronde": each rank has a stage of a network, on handwritten digits.

    ronde run -np 4 python examples/torch_pipeline_digits.py
    torchrun --nproc-per-node 4 examples/torch_pipeline_digits.py --schedule GPipe

The schedule cuts a batch into micro-batches and sends activations and gradients between neighbours. At the end the
losses are compared with those of one process.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import cross_entropy

import ronde.torch.distributed  # noqa: F401 - registers the backend "ronde"

BATCH, MICRO_BATCHES, WIDTH = 64, 8, 96
SCHEDULES = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}


def layer(number: int, count: int) -> torch.nn.Sequential:
    """One of `count` layers, the same on every rank."""
    torch.manual_seed(number)
    linear = torch.nn.Linear(64 if number == 0 else WIDTH, 10 if number == count - 1 else WIDTH, dtype=torch.float64)
    return torch.nn.Sequential(linear) if number == count - 1 else torch.nn.Sequential(linear, torch.nn.ReLU())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B")
    parser.add_argument("--backend", default="ronde")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    images, classes = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images / 16), torch.from_numpy(classes)
    batches = torch.stack(
        [torch.randperm(len(x), generator=torch.Generator().manual_seed(step))[:BATCH] for step in range(options.steps)]
    )

    module = layer(rank, size)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = SCHEDULES[options.schedule](stage, n_microbatches=MICRO_BATCHES, loss_fn=cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        found: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x[batch])
        elif rank == size - 1:
            schedule.step(target=y[batch], losses=found)
            losses.append(float(torch.stack(found).detach().mean()))
        else:
            schedule.step()
        optimizer.step()

    if rank == size - 1:
        whole = torch.nn.Sequential(*(layer(number, size) for number in range(size)))
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.2)
        difference = 0.0
        for batch, loss in zip(batches, losses, strict=True):
            optimizer.zero_grad()
            alone = cross_entropy(whole(x[batch]), y[batch])
            alone.backward()
            optimizer.step()
            difference = max(difference, abs(float(alone.detach()) - loss))
        print(f"loss {losses[0]:.3f} to {losses[-1]:.3f} on {size} ranks, backend {dist.get_backend()}")
        print(f"largest difference of a loss to one process: {difference:.1e}", flush=True)
        if difference > 1e-8:
            raise SystemExit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
