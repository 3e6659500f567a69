"""A sampler that remembers how many samples of an epoch are processed, for a changing set of ranks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from collectives import is_initialized, rank, size
from collectives.arrays import type_name


class ElasticSampler(torch.utils.data.Sampler):  # type: ignore[misc]
    """Divides the unprocessed samples of an epoch among the ranks, again at every `reset`.

    processed_num       number of samples of the epoch that all ranks together have processed
    remaining_indices   the samples after them, in the order of the epoch

    All ranks draw the same order from `seed` and epoch, the order that Horovod draws. All ranks get the same number of
    samples; some samples are repeated for that.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        if not isinstance(dataset, Sized):
            raise TypeError(f"dataset={dataset!r:.60}: must have a length, which a {type_name(dataset)} has not")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: no sample of it is processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record a batch as processed. All ranks process batches of this size; `batch_idx` is ignored."""
        self.processed_num += batch_size * self.num_replicas

    def reset(self) -> None:
        """Divide the unprocessed samples among the current ranks."""
        self.rank, self.num_replicas = (rank(), size()) if is_initialized() else (0, 1)
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = left = order[self.processed_num :]
        self.num_samples = math.ceil(len(left) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        repeated = left * math.ceil(self.total_size / max(len(left), 1))
        self.indices = repeated[: self.total_size][self.rank :: self.num_replicas]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of its processed samples."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at the state of `state_dict`."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
