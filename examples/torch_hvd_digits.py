"""Horovod-style training of a small network on scikit-learn's handwritten digits.

    ronde run -np 2 python examples/torch_hvd_digits.py
    ronde run -np 2 python examples/torch_hvd_digits.py --checkpoint digits.pt --epochs 10     # resumes from it
    torchrun --nproc-per-node 2 examples/torch_hvd_digits.py

Only the import differs from the same script for Horovod. Every rank trains on its share of every batch; gradients are
averaged while the backward pass runs. Rank 0 saves a checkpoint after each epoch, and all ranks resume from it.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
from pathlib import Path

import torch
from sklearn.datasets import load_digits

import ronde.torch as hvd

BATCH = 30


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="epochs in total, with those of the checkpoint")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of one rank; scaled by the size")
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes per step")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16 where torch.autocast can")
    parser.add_argument(
        "--compression", choices=("none", "fp16", "bf16"), default="none", help="type of sent gradients"
    )
    parser.add_argument("--checkpoint", type=Path, help="file to save each epoch, and to resume from")
    return parser.parse_args()


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    options = parse()
    hvd.init()
    torch.manual_seed(hvd.rank())
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1500], order[1500:]

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr * hvd.size() * options.accumulate)
    first = 0
    if options.checkpoint is not None and hvd.broadcast_object(options.checkpoint.exists()) and hvd.rank() == 0:
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
    first = hvd.broadcast_object(first)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, options.compression),
        backward_passes_per_step=options.accumulate,
    )
    sampler = torch.utils.data.DistributedSampler(train, hvd.size(), hvd.rank(), shuffle=True)
    loader = torch.utils.data.DataLoader(train, batch_size=BATCH, sampler=sampler, drop_last=True)
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        batches = len(loader) // options.accumulate * options.accumulate
        for step, batch in enumerate(itertools.islice(loader, batches)):
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            (loss / options.accumulate).backward()
            if (step + 1) % options.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        loss = hvd.allreduce(total / batches, name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)
            if options.checkpoint is not None:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
                torch.save(state, options.checkpoint)
    mine = test[hvd.rank() :: hvd.size()]
    with torch.no_grad():
        hits = (model(images[mine]).argmax(1) == labels[mine]).sum()
    hits = hvd.allreduce(hits, op=hvd.Sum, name="hits").item()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    equal = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        print(f"accuracy {hits / len(test):.1%} on {hvd.size()} ranks, parameters {'identical' if equal else 'DIFFER'}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
