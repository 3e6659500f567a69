"""torch.distributed training of a small network on scikit-learn's handwritten digits, on the backend "ronde".

    python examples/torch_ddp_digits.py --spawn 2                       # starts its own ranks
    torchrun --nproc-per-node 2 examples/torch_ddp_digits.py
    ronde run -np 2 python examples/torch_ddp_digits.py
    torchrun --nproc-per-node 2 examples/torch_ddp_digits.py --backend gloo

Nothing in this script is specific to Ronde, except for the backend's name: it uses DistributedDataParallel and
DistributedSampler as torch's tutorials do.
"""

from __future__ import annotations

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 30


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ronde", help="of torch.distributed (default: ronde)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--hidden", type=int, default=64, help="width of the network")
    parser.add_argument("--spawn", type=int, metavar="N", help="start N ranks with torch.multiprocessing")
    return parser.parse_args()


def train(options: argparse.Namespace) -> None:
    """Train as one rank."""
    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(images))
    train_set, test_set = order[:1500], order[1500:]
    network = torch.nn.Sequential(
        torch.nn.Linear(64, options.hidden), torch.nn.ReLU(), torch.nn.Linear(options.hidden, 10)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    sampler = DistributedSampler(train_set, shuffle=True)
    loader = DataLoader(train_set, batch_size=BATCH, sampler=sampler)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        began = time.perf_counter()
        total = torch.zeros(1)
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            seconds = time.perf_counter() - began
            print(f"epoch {epoch + 1}: loss {total.item() / len(loader) / size:.4f}, {seconds:.3f} s", flush=True)
    with torch.no_grad():
        mine = test_set[rank::size]
        hits = (model(images[mine]).argmax(1) == labels[mine]).sum()
    dist.all_reduce(hits)
    if rank == 0:
        print(f"accuracy {hits.item() / len(test_set):.1%} on {size} ranks, backend {dist.get_backend()}", flush=True)
    del model
    dist.destroy_process_group()


def spawned(rank: int, options: argparse.Namespace, port: int) -> None:
    """Train as a rank that torch.multiprocessing has started."""
    known = {"RANK": rank, "WORLD_SIZE": options.spawn, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in known.items()})
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.spawn))  # the ranks share this machine's cores
    train(options)


def main() -> None:
    """Train in this process, or start the ranks with --spawn."""
    options = parse()
    if options.spawn is None:
        train(options)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(spawned, (options, port), nprocs=options.spawn)


if __name__ == "__main__":
    main()
