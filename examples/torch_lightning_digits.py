"""Lightning on the torch.distributed backend "ronde": a small network learns scikit-learn's handwritten digits.

    python examples/torch_lightning_digits.py                 # Lightning starts 2 ranks

The only line that is specific to Ronde is DDPStrategy(process_group_backend="ronde").
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    """A network for images of 64 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        """Log the accuracy, averaged over the ranks."""
        images, labels = batch
        right = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.004)


def main() -> None:
    """Train on 2 ranks, and print the accuracy on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ronde", help="of torch.distributed (default: ronde)")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    train, test = torch.utils.data.random_split(data, [1500, 297], torch.Generator().manual_seed(0))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=options.backend),
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(), DataLoader(train, batch_size=30, shuffle=True), DataLoader(test, batch_size=99))
    if trainer.is_global_zero:
        accuracy = 100 * float(trainer.callback_metrics["accuracy"])
        print(f"accuracy {accuracy:.1f}% on {trainer.world_size} ranks, backend {dist.get_backend()}")


if __name__ == "__main__":
    main()
