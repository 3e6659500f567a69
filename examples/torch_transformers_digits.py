"""The Trainer of Hugging Face's transformers on the torch.distributed backend "ronde": a small vision transformer
learns scikit-learn's handwritten digits.

    torchrun --nproc-per-node 2 examples/torch_transformers_digits.py --backend ronde
    torchrun --nproc-per-node 2 -m ronde.torch.with_group examples/torch_transformers_digits.py

TrainingArguments(ddp_backend=...) refuses backends that accelerate does not know, and the Trainer uses a process group
that there is already. So the script, or `ronde.torch.with_group`, makes the group first.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed


def main() -> None:
    """Train as one rank, and print the accuracy on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", help="of torch.distributed; without it, the group that there is, or accelerate's")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    if options.backend:
        dist.init_process_group(options.backend)
    set_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    examples = [{"pixel_values": image, "labels": int(label)} for image, label in zip(images, labels, strict=True)]
    shape = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 10}
    network = ViTForImageClassification(
        ViTConfig(**shape, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    )

    def accuracy(found: Any) -> dict[str, float]:
        return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=15,
            learning_rate=0.003,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            network, arguments, train_dataset=examples[:1500], eval_dataset=examples[1500:], compute_metrics=accuracy
        )
        trainer.train()
        found = trainer.evaluate()["eval_accuracy"]
    if trainer.is_world_process_zero():
        print(f"accuracy {100 * found:.1f}% on {arguments.world_size} ranks, backend {dist.get_backend()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
