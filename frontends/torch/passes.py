"""Counting of backward passes: a gradient is complete after `backward_passes_per_step` of them."""

from __future__ import annotations

from collections.abc import Iterable

from frontends.torch.gradients import Parameter


class PassCounter:
    """The number of backward passes that each parameter's gradient still needs in this step."""

    def __init__(self, parameters: Iterable[Parameter], passes: int) -> None:
        self._parameters = list(parameters)
        self._passes = passes
        self.restart()

    def set_passes(self, passes: int) -> None:
        """Change the number of passes per step, and begin a step. Raises ValueError."""
        if passes < 1:
            raise ValueError(f"passes={passes!r}: must be 1 or more")
        self._passes = passes
        self.restart()

    def restart(self) -> None:
        """Begin a step."""
        self._left = dict.fromkeys(self._parameters, self._passes)

    def count(self, parameter: Parameter) -> bool:
        """Count a pass that has added to a gradient. True if the gradient is complete.

        Raises AssertionError if it was complete before.
        """
        if self._left[parameter] <= 0:
            raise AssertionError(
                "gradients were computed more than backward_passes_per_step times before step(); increase "
                "backward_passes_per_step to add them up"
            )
        self._left[parameter] -= 1
        return self._left[parameter] == 0
