"""The samples of an epoch, divided among ranks whose number may change between any two batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.numeric import is_integer
from collectives.world_communicator import is_initialized, world


class Sampler:
    """The numbers of the samples for this rank, batch by batch. Keep it in a State, which restores it with the rest.

    All ranks draw the same order of samples. Every batch of all ranks takes the next ones, divided among the ranks that
    there are. So no sample is left out and none is repeated, except that the last batch of an epoch repeats some to
    give all ranks the same number.

    count    number of samples
    shuffle  True for a random order, another one in each epoch
    seed     of the random order

    epoch    the current epoch, from 0
    done     samples of the epoch that all ranks have taken
    """

    def __init__(self, count: int, *, shuffle: bool = True, seed: int = 0) -> None:
        """Raises TypeError or ValueError if `count` or `seed` is no int, 0 or more."""
        for name, value in (("count", count), ("seed", seed)):
            if not is_integer(value):
                raise TypeError(f"{name}={value!r}: must be an int")
            if value < 0:
                raise ValueError(f"{name}={value!r}: must be 0 or more")
        self.count = count
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.done = 0
        self._order: tuple[tuple[int, int, int, bool], NDArray[np.int64]] | None = None

    def take(self, batch: int) -> NDArray[np.int64]:
        """The next `batch` samples of this rank, or fewer at the end of the epoch, the same number on all ranks; none
        after it. All ranks call it with the same `batch`, and commit between two calls.

        Raises TypeError if `batch` is no int, ValueError if it is not positive.
        """
        if not is_integer(batch):
            raise TypeError(f"batch={batch!r}: must be an int")
        if batch < 1:
            raise ValueError(f"batch={batch!r}: must be 1 or more")
        rank, size = (world().rank, world().size) if is_initialized() else (0, 1)
        taken = self.order()[self.done : self.done + batch * size]
        self.done += len(taken)
        each = math.ceil(len(taken) / size)
        return np.resize(taken, each * size)[rank::size] if each else taken

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.done = 0

    def order(self) -> NDArray[np.int64]:
        """The order of all samples in this epoch, the same on all ranks."""
        drawn = self.seed, self.epoch, self.count, self.shuffle
        if self._order is None or self._order[0] != drawn:
            generator = np.random.default_rng((self.seed, self.epoch))
            order = generator.permutation(self.count) if self.shuffle else np.arange(self.count)
            self._order = drawn, order.astype(np.int64)
        return self._order[1]

    def __getstate__(self) -> dict[str, Any]:
        """Without the order, which every rank can draw."""
        return {**self.__dict__, "_order": None}
