"""Train the models with which Lightning tests itself, on the process group that there is, or on Lightning's own."""

from __future__ import annotations

import lightning
import torch.distributed as dist
from lightning.pytorch.demos.boring_classes import BoringModel, ManualOptimBoringModel


def main() -> None:
    """Train both models on 2 ranks, and say on which backend."""
    for model in (BoringModel(), ManualOptimBoringModel()):
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=1,
            limit_train_batches=4,
            limit_val_batches=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model)
        assert trainer.global_step == 4
        print(f"{type(model).__name__} on {trainer.world_size} ranks, backend {dist.get_backend()}")


if __name__ == "__main__":
    main()
