"""The base of the backends, and the options of a reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from collectives import ProcessSet
from frontends import horovod
from frontends.horovod import ErrorFeedback, Fact, Reduction


@dataclass(frozen=True)
class ReductionOptions:
    """Arguments of the allreduce of a step's gradients.

    label   by which the ranks match the agreement on `facts` before it; `reserved` if it is one of `Backend.reserve`
    facts   about all gradients, those that are missing as well
    memory  names of the gradients that are there, in the memory of `lossy`; none without it
    lossy   compresses dense ones; None leaves them as they are
    """

    how: Reduction
    label: str
    facts: Sequence[Fact]
    memory: Sequence[str]
    lossy: ErrorFeedback | None = None
    reserved: bool = False


class Backend:
    """The library that Keras runs on. The methods here are right for one that runs steps eagerly.

    SPARSE     types of sparse gradients that the backend reduces without making them dense
    FAILURES   exceptions that a compiled step raises when a collective fails in it
    """

    SPARSE: tuple[type, ...] = ()
    FAILURES: tuple[type[Exception], ...] = ()

    def init(self, comm: Any, process_sets: Any) -> None:
        """Horovod's `init` for the backend."""
        horovod.init(comm, process_sets)

    def combine(self, tensors: list[Any], options: ReductionOptions) -> list[Any]:
        """Allreduce all tensors with one wait, inside the backend's compiled steps or outside. May change them in
        place. The ranks agree on their facts before, also if there are no tensors.

        Raises HorovodInternalError; ValueError on every rank, or an exception of the compiled step, if the facts
        differ.
        """
        raise NotImplementedError

    def reserve(self, label: str) -> str:
        """Return a label for `combine` in `step_if`, by which ranks that combine outside of it know it, too."""
        return label

    def dense(self, gradient: Any) -> Any:
        """Return the gradient as a dense tensor."""
        return gradient

    def alone(self, process_set: ProcessSet) -> bool:
        """True if this rank has no other rank to combine with: now, and whenever the step runs that is compiled."""
        return horovod.alone_in(process_set)

    def divided(self, gradient: Any, process_set: ProcessSet) -> Any:
        """Return the gradient as a dense tensor, divided by the number of ranks."""
        return self.dense(gradient) / process_set.size()

    def prepare(self, model: keras.Model) -> None:
        """Change how `model` compiles its steps, if `combine` needs that."""

    def forget(self) -> None:
        """Discard compiled steps, after the set of ranks has changed."""

    def sync_variables(self, model: keras.Model) -> None:
        """Give the model's variables the values of the last step of a running `fit`."""

    def step_if(
        self,
        due: Any,
        totals: list[Any],
        combine: Callable[[list[Any]], list[Any]],
        step: Callable[[list[Any]], None],
        variables: Sequence[Any],
    ) -> bool:
        """Run step(combine(totals)) if the tensor `due` is true. Returns True if it has been run; False in a step that
        is being compiled.

        variables   all variables that `step` may assign to
        """
        if due:
            step(combine(totals))
        return bool(due)
