"""Asynchronous SGD in PyTorch on scikit-learn's handwritten digits: workers push changes to parameter servers.

    ronde run -np 3 python examples/torch_parameter_server_digits.py
    ronde run -np 5 python examples/torch_parameter_server_digits.py --servers 2

The last ranks are servers. Each worker has an optimizer of its own, here with momentum, and pushes the change that a
step of it makes.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits

import ronde
from ronde.parameter_server import Synchronizer

ROWS, HIDDEN, RATE, MOMENTUM = 128, 128, 0.2, 0.8


def main() -> None:
    """Train, and report the accuracy of the final parameters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=150, help="changes per worker on the average")
    options = parser.parse_args()

    ronde.init()
    workers = ronde.size() - options.servers
    torch.manual_seed(0)
    found, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(found / 16, dtype=torch.float32), torch.tensor(labels)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    numbers = np.random.default_rng(ronde.rank())

    model = torch.nn.Sequential(torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10))
    optimizer = torch.optim.SGD(model.parameters(), momentum=MOMENTUM)
    params = dict(model.named_parameters())

    def assign(values: dict[str, np.ndarray]) -> None:
        with torch.no_grad():
            for name, param in params.items():
                param.copy_(torch.from_numpy(values[name]))

    # The servers count the changes in a parameter of their own.
    sync = Synchronizer(
        {name: param.detach().numpy() for name, param in params.items()} | {"changes": np.zeros(1)},
        servers=options.servers,
    )
    sync.start()
    pushed = 0
    while sync.role == "worker":
        values = sync.pull_all()
        done = float(values["changes"][0]) / (options.steps * workers)
        if done >= 1:
            break
        assign(values)
        rows = numbers.choice(train, ROWS)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[rows]), targets[rows]).backward()
        # It falls to 0, so that the order of the last changes does not matter.
        optimizer.param_groups[0]["lr"] = RATE * (1 - done) / workers
        optimizer.step()
        changes = {name: param.detach().numpy() - values[name] for name, param in params.items()}
        sync.push_all(changes | {"changes": np.ones(1)})
        pushed += 1
    final = sync.finish()
    assign(final)
    print(f"rank {ronde.rank()} of {ronde.size()} was a {sync.role} and pushed {pushed} changes", flush=True)
    if ronde.rank() == 0:
        with torch.no_grad():
            accuracy = float((model(images[test]).argmax(1) == targets[test]).float().mean())
        print(f"accuracy {accuracy:.1%} after {int(final['changes'][0])} changes", flush=True)
    ronde.shutdown()


if __name__ == "__main__":
    main()
