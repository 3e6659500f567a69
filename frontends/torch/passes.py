"""When a distributed optimizer combines: after so many backward passes, in `step` or before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from collectives.process_sets import ProcessSet
from frontends.horovod.names import alone_in
from frontends.torch.gradients import Parameter


class Waiting:
    """What all distributed optimizers have in common: when to combine, and that `step` does so."""

    _names: dict[Parameter, str]
    _passes: int
    _left: dict[Parameter, int]
    _process_set: ProcessSet
    _combined = False
    _combines_in_step = True

    @property
    def _alone(self) -> bool:
        return alone_in(self._process_set)

    def _begin_counting(self) -> None:
        """Have every parameter's gradient counted, if there is anybody to combine it with."""
        self._start_over()
        if not self._alone:
            for parameter in self._names:
                parameter.register_post_accumulate_grad_hook(self._one_is_complete)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on combine gradients after so many backward passes."""
        if passes < 1:
            raise ValueError(f"passes={passes!r}: must be 1 or more")
        self._passes = passes
        self._start_over()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step` does not combine, because `synchronize` was called before:

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        self._combines_in_step = False
        try:
            yield
        finally:
            self._combines_in_step = True

    def _start_over(self) -> None:
        """Count backward passes from the beginning."""
        self._left = dict.fromkeys(self._names, self._passes)

    def _one_is_complete(self, parameter: Parameter) -> None:
        """A backward pass has added to a gradient."""
        if self._left[parameter] <= 0:
            raise AssertionError(
                "gradients were computed more than backward_passes_per_step times before step(); increase "
                "backward_passes_per_step to add them up"
            )
        self._left[parameter] -= 1
