"""A sampler that remembers the processed samples of an epoch, for a changing set of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any

import torch

from collectives import is_initialized, rank, size


class ElasticSampler(torch.utils.data.Sampler):  # type: ignore[misc]
    """Divides the unprocessed samples of an epoch among the ranks, again at every `reset`.

    All ranks draw the same order from `seed` and epoch. All ranks get the same number of samples; some samples are
    repeated for that.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: no sample of it is processed."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record the batch of this number, counted from the last `reset`, as processed."""
        self.record_indices(set(self.get_indices(batch_idx, batch_size)))

    def record_indices(self, indices: set[int]) -> None:
        """Record samples as processed."""
        self.processed_indices |= indices

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the samples of a batch of this rank."""
        start = batch_idx * batch_size
        return self.indices[start : start + batch_size]

    def reset(self) -> None:
        """Divide the unprocessed samples among the current ranks."""
        self.rank, self.num_replicas = (rank(), size()) if is_initialized() else (0, 1)
        left = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            left = [left[place] for place in torch.randperm(len(left), generator=generator).tolist()]
        self.remaining_indices = left
        self.num_samples = math.ceil(len(left) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        repeated = left * math.ceil(self.total_size / max(len(left), 1))
        self.indices = repeated[: self.total_size][self.rank :: self.num_replicas]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and its processed samples."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at the state of `state_dict`."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
