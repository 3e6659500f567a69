"""What differs between Keras's backends. Only the module of the backend that Keras runs on is ever imported.

Each module has

    SPARSE                 the types of sparse gradients that are combined as they are
    FAILURES               what a compiled step raises when a call to other ranks fails in it
    init(...)              Horovod's init
    combine(tensors, way)  several gradients over the ranks, inside the backend's compiled steps and outside; one wait
    dense(gradient)        a sparse gradient as a dense tensor
    prepare(model)         what a model needs so that `combine` works in its compiled steps
    forget()               what was compiled for other ranks, after the world has changed
    settle(model)          what a callback does to see the model's variables while `fit` runs
    take_turn(...)         a step that happens in some passes only
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import keras

from collectives.process_sets import ProcessSet

NAMES = ("tensorflow", "jax", "torch")


@dataclass(frozen=True)
class Way:
    """How tensors are combined: what Horovod's allreduce takes beside them."""

    name: str
    op: str
    prescale: float
    postscale: float
    process_set: ProcessSet


class Backend(Protocol):
    """The functions of a backend's module."""

    SPARSE: tuple[type, ...]
    FAILURES: tuple[type[Exception], ...]

    def init(self, comm: Any, process_sets: Any) -> None:
        """Find the other ranks."""

    def combine(self, tensors: list[Any], way: Way) -> list[Any]:
        """allreduce of all tensors, which may be changed in place. Raises HorovodInternalError."""

    def dense(self, gradient: Any) -> Any:
        """The gradient, dense."""

    def prepare(self, model: keras.Model) -> None:
        """Change how `model` compiles its steps, where that is needed."""

    def forget(self) -> None:
        """Nothing that was compiled is to be used again: there are other ranks now."""

    def settle(self, model: keras.Model) -> None:
        """Give the model's variables the values that the last step of a running `fit` has made."""

    def take_turn(
        self,
        now: Any,
        totals: list[Any],
        combine: Callable[[list[Any]], list[Any]],
        step: Callable[[list[Any]], None],
        variables: Sequence[Any],
    ) -> None:
        """step(combine(totals)) if the tensor `now` is true. `variables` are all that `step` may assign to."""


def chosen() -> Backend:
    """The module of the backend that Keras runs on. Raises ValueError for another one."""
    name = keras.backend.backend()
    if name not in NAMES:
        raise ValueError(f"KERAS_BACKEND={name!r}: must be one of {', '.join(NAMES)}")
    return cast(Backend, importlib.import_module(f"frontends.keras.backends.{name}"))
