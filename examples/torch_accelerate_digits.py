"""Hugging Face's accelerate on the torch.distributed backend "ronde": a small network learns scikit-learn's digits.

    torchrun --nproc-per-node 2 examples/torch_accelerate_digits.py --backend ronde
    torchrun --nproc-per-node 2 -m ronde.torch.with_group examples/torch_accelerate_digits.py

accelerate makes process groups of the backends that it knows, and uses one that there is already. So the script, or
`ronde.torch.with_group`, makes the group first.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train as one rank, and print the accuracy on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", help="of torch.distributed; without it, the group that there is, or accelerate's")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    if options.backend:
        dist.init_process_group(options.backend)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    train, test = torch.utils.data.random_split(data, [1500, 297], torch.Generator().manual_seed(0))
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    network, optimizer, batches, tests = accelerator.prepare(
        network,
        torch.optim.Adam(network.parameters(), lr=0.004),
        DataLoader(train, batch_size=30, shuffle=True),
        DataLoader(test, batch_size=99),
    )
    for _ in range(options.epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(network(images), labels))
            optimizer.step()
    right = []
    for images, labels in tests:
        right.append(accelerator.gather_for_metrics(network(images).argmax(1) == labels))
    accuracy = 100 * torch.cat(right).float().mean().item()
    accelerator.print(f"accuracy {accuracy:.1f}% on {accelerator.num_processes} ranks, backend {dist.get_backend()}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
