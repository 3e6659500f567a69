"""DistributedOptimizer: an optimizer whose gradients are combined over the ranks while the backward pass runs."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import torch

from collectives import OpName, ProcessSet, global_process_set
from frontends.horovod import Adasum, Average, ErrorFeedback, choose_op, is_lossy, predivided
from frontends.torch.adasum import StepReduction
from frontends.torch.compression import AnyCompression, Compression
from frontends.torch.parameters import Parameter, Roster
from frontends.torch.reduction import GradientReduction

Named: TypeAlias = Iterable[tuple[str, Parameter]]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Named | None = None,
    compression: AnyCompression = Compression.none,
    backward_passes_per_step: int = 1,
    op: OpName = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradient_as_bucket_view: bool = False,
) -> torch.optim.Optimizer:
    """Make `step` use gradients combined over the ranks. State and parameter groups of `optimizer` are kept.

    named_parameters           usually model.named_parameters(): all parameters of the optimizer, with unique names, by
                               which the ranks match them. Without it they are matched by their places in the optimizer
    compression                Compression.none, .fp16, .bf16, any Compressor, or with loss and a memory of its own
                               Compression.int8(), .topk(0.01), .powersgd(2): one for each optimizer
    backward_passes_per_step   number of backward passes whose gradients are summed before they are combined; one more
                               before `step` raises AssertionError
    op                         Average, Sum, Min, Max, Product; Adasum combines the steps in place of the gradients
    gradient_predivide_factor  Average divides by it before the sum and by size / it after
    groups                     lists of parameters that travel together, or the number of such groups; parameters that
                               need no gradient are left out. Sparse gradients travel as dense ones there
    num_groups                 the same, as an int; deprecated
    sparse_as_dense            make sparse gradients dense before they are combined
    gradient_as_bucket_view    as in DistributedDataParallel, True makes gradients views of memory of the optimizer's:
                               they are not copied back after they are combined, and if the transport has memory that
                               all ranks map, they are there, from the second step on. The next step overwrites them:
                               clone gradients to keep. Not with compression

    Parameters may be frozen, unfrozen, added (`add_param_group`) and replaced in the optimizer between two steps.
    A gradient that only some ranks have is zeros on the others; one that no rank has stays None. `step` raises
    ValueError on every rank, with their names, if the ranks' optimizers have different parameters or arguments, or if
    the parameters have different values since a step that failed or was interrupted on a rank.
    Gradients that are on their way then keep waiting for the others, so `shutdown` must follow.

    Raises TypeError or ValueError for bad arguments, and for an optimizer that is a distributed one.
    """
    if isinstance(optimizer, _Distributed):
        raise ValueError("optimizer: is a DistributedOptimizer; give the optimizer that it was made of")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    op = choose_op(op)
    factors = predivided(op, gradient_predivide_factor)
    if num_groups:
        warnings.warn("num_groups: deprecated, use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    roster = Roster(_names(optimizer, named_parameters), optimizer.param_groups)
    kind = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {})
    distributed: Any = object.__new__(kind)
    # a scheduler of the plain optimizer has replaced its `step` by an attribute of the object
    distributed.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    if is_lossy(compression):
        compression.check(op, gradient_predivide_factor, 1.0)
    if op == Adasum:
        assert not isinstance(compression, ErrorFeedback)  # check would have raised
        distributed._attach(StepReduction(roster, compression, backward_passes_per_step, process_set))
    else:
        distributed._attach(
            GradientReduction(
                roster=roster,
                compression=compression,
                passes=backward_passes_per_step,
                op=op,
                factors=factors,
                groups=groups,
                sparse_as_dense=sparse_as_dense,
                process_set=process_set,
                as_view=gradient_as_bucket_view,
            )
        )
    return distributed


def _names(optimizer: torch.optim.Optimizer, named: Named | None) -> dict[Parameter, str] | None:
    """Return the names that the user gave; None if there are none. Raises ValueError if they do not fit."""
    if named is None:
        return None
    pairs = list(named) if isinstance(named, Iterable) else [named]
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters: must be pairs of name and parameter, such as model.named_parameters()")
    repeated = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if repeated:
        raise ValueError(f"named_parameters: names must be unique; there are several {', '.join(repeated)}")
    known = {parameter: name for name, parameter in reversed(pairs)}  # of several names of a parameter, the first
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    unnamed = [tuple(parameter.shape) for parameter in own if parameter not in known]
    if unnamed:
        raise ValueError(f"named_parameters: lacks parameters of the optimizer, of shapes {unnamed}")
    return known


class _Distributed:
    """The methods of a distributed optimizer. DistributedOptimizer makes a class of it and of the user's class."""

    _synchronizes_in_step = True

    def _attach(self, reduction: GradientReduction | StepReduction) -> None:
        self._reduction = reduction
        weakref.finalize(self, reduction.close).atexit = False  # else the parameters would keep calling it

    def synchronize(self) -> None:
        """Wait until all gradients are combined. A gradient that this rank does not have, and others have, is zeros.

        Raises HorovodInternalError if an operation failed, ValueError if the ranks' parameters differ.
        """
        given: Any = self
        self._reduction.synchronize(given.param_groups)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Context in which `step` does not combine gradients, because `synchronize` was called before:

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        self._synchronizes_in_step = False
        try:
            yield
        finally:
            self._synchronizes_in_step = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Combine gradients after so many backward passes from now on. Raises ValueError."""
        self._reduction.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Combine the gradients, unless within `skip_synchronize`, and step. Returns the closure's result.

        With a closure, the gradients of each of its calls are combined, too. An optimizer that decides by the loss, as
        LBFGS does, needs the same loss on all ranks: let the closure return `allreduce(loss)`.
        """
        given: Any = self
        plain: Any = super().step  # type: ignore[misc]
        return self._reduction.step(plain, closure, self._synchronizes_in_step, given.param_groups)

    step.hooked = True  # type: ignore[attr-defined]  # torch calls hooks around the plain step, and not around this one

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """True if the plain optimizer looks at a GradScaler's factor itself. `GradScaler.step` asks this first, then
        looks at the gradients for infinities: they are combined before, so that all ranks skip the same steps."""
        if self._synchronizes_in_step:
            self._reduction.settle(cast("Any", self).param_groups)
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = supports

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The plain optimizer's method; also begins a step anew, if a backward pass has failed or is to be forgotten.
        Raises AssertionError between backward() and step() or synchronize(): gradients are being combined."""
        if self._reduction.in_flight:
            raise AssertionError("zero_grad() was called after backward() and before step() or synchronize()")
        self._reduction.start_over()
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The plain optimizer's method; also forgets gradients of passes before it, for which it waits if they are on
        their way."""
        self._reduction.drain()
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse a copy: a part of this object is the connection to the other ranks."""
        raise TypeError("a DistributedOptimizer can be neither copied nor pickled; its state_dict() can")
