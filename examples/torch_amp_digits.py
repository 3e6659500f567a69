"""Mixed precision with torch.autocast and GradScaler, and gradient clipping, on scikit-learn's handwritten digits.

    ronde run -np 2 python examples/torch_amp_digits.py                        # float16, with a scaled loss
    ronde run -np 2 python examples/torch_amp_digits.py --dtype bfloat16       # needs no scaling

`synchronize` ends the averaging, so that unscaling and clipping see the gradients of all ranks. If one rank's gradients
overflow, those of all ranks do: all skip the step and halve the scale, and stay together. `--overflow STEP` shows it.
"""

from __future__ import annotations

import argparse
import hashlib

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import ronde.torch as hvd

BATCH = 30


def main() -> None:
    """Train on this rank's share of the data, and report the accuracy of the common model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--overflow", type=int, default=-1, metavar="STEP", help="rank 0's loss is infinite there")
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1500], order[1500:]

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=options.dtype == "float16", init_scale=1024.0)
    step = 0
    for epoch in range(options.epochs):
        shuffled = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))]
        for batch in shuffled[hvd.rank() :: hvd.size()].split(BATCH):
            optimizer.zero_grad()
            with torch.autocast("cpu", getattr(torch, options.dtype)):
                loss = cross_entropy(model(images[batch]), labels[batch])
            if step == options.overflow and hvd.rank() == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            step += 1

    hits = (model(images[test]).argmax(1) == labels[test]).sum().item()
    state = [hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for p in model.parameters()]
    equal = len(set(map(str, hvd.allgather_object((state, scaler.get_scale()))))) == 1
    if hvd.rank() == 0:
        same = "identical" if equal else "DIFFER"
        print(f"accuracy {hits / len(test):.1%} on {hvd.size()} ranks, scale {scaler.get_scale():g}, parameters {same}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
