"""Counting of backward passes: a gradient is complete after `backward_passes_per_step` of them."""

from __future__ import annotations

from frontends.horovod import check_passes


class PassCounter:
    """The number of backward passes that each gradient still needs in this step. Gradients are numbered: a parameter as
    the key of a dict takes longer than all the rest, since torch hashes it in Python.

    counting   True from the first pass of a step on
    """

    def __init__(self, count: int, passes: int) -> None:
        """Raises ValueError."""
        self._count = count
        self._passes = 1
        self.set_passes(passes)
        self.restart()

    def set_passes(self, passes: int) -> None:
        """Change the number of passes of the steps that begin from now on. Raises ValueError."""
        check_passes(passes)
        self._passes = passes

    def resize(self, count: int) -> None:
        """Count for another number of gradients, and begin a step."""
        self._count = count
        self.restart()

    def restart(self) -> None:
        """Begin a step."""
        self._left = [self._passes] * self._count
        self.counting = False

    def count(self, number: int) -> bool:
        """Count a pass that has added to a gradient. True if the gradient is complete.

        Raises AssertionError if it was complete before.
        """
        left = self._left[number] - 1
        if left < 0:
            raise AssertionError(
                "gradients were computed more than backward_passes_per_step times before step(); increase "
                "backward_passes_per_step to add them up, or delete an older DistributedOptimizer of these parameters"
            )
        self._left[number] = left
        self.counting = True
        return left == 0
