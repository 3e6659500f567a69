"""DistributedOptimizer: an optimizer whose gradients are combined over the ranks while the backward pass runs.

A hook on every parameter starts its allreduce as soon as its gradient is complete; `step` waits for all of them. What
is ready on all ranks at the same time travels together (collectives/engine.py).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import torch

from collectives import Communicator
from collectives.process_sets import ProcessSet, global_process_set
from frontends.horovod.errors import as_horovod
from frontends.horovod.gradients import predivided
from frontends.horovod.handles import Handle
from frontends.horovod.names import Adasum, Average, communicator_of
from frontends.torch import ops
from frontends.torch.compression import Compression, Compressor
from frontends.torch.gradients import GROUP_BYTES, Group, Parameter, can_lie, given_groups, lay_out, own_groups
from frontends.torch.passes import Waiting

Named: TypeAlias = Iterable[tuple[str, Parameter]]
_SPARSE: Final = "groups: has a parameter with sparse gradients; leave it out, or give sparse_as_dense"


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Named | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradient_as_bucket_view: bool = True,
) -> torch.optim.Optimizer:
    """`optimizer`, so that `step` uses gradients combined over the ranks. Its state and parameter groups are kept.

    named_parameters           usually model.named_parameters(); all parameters of the optimizer, with unique names
    compression                Compression.none, .fp16, .bf16, or any with their two functions
    backward_passes_per_step   gradients of so many backward passes add up before they are combined; another one before
                               `step` raises AssertionError
    op                         Average, Sum, Min, Max, Product; Adasum combines the steps rather than the gradients
    gradient_predivide_factor  Average divides by it before the sum and by size / it after
    groups                     lists of parameters that travel together, or how many such groups to make; those that
                               need no gradient are left out
    num_groups                 the same, as an int; deprecated
    sparse_as_dense            make sparse gradients dense before they are combined
    gradient_as_bucket_view    gradients lie in memory that all ranks map, where there is such, and are combined where
                               they lie. The next step overwrites them: clone those that are to be kept. Not with
                               compression

    Raises ValueError for bad names, groups or numbers.
    """
    factors = predivided(op, gradient_predivide_factor)
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step!r}: must be 1 or more")
    if num_groups:
        warnings.warn("num_groups: deprecated, use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = _names(optimizer, named_parameters)
    base = _Adasum if op == Adasum else _Reducing
    kind = type(type(optimizer).__name__, (base, type(optimizer)), {})
    distributed: Any = object.__new__(kind)
    # a scheduler that was made before has put a `step` there, which is that of the plain optimizer
    distributed.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    distributed._begin(
        names=names,
        compression=compression,
        passes=backward_passes_per_step,
        op=op,
        factors=factors,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        as_view=gradient_as_bucket_view,
    )
    return distributed


def _names(optimizer: torch.optim.Optimizer, named: Named | None) -> dict[Parameter, str]:
    """Parameter -> name, of all parameters of an optimizer, in its order."""
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named is None:
        return {parameter: f"allreduce.noname.{index}" for index, parameter in enumerate(own)}
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters: must be pairs of name and parameter, such as model.named_parameters()")
    repeated = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if repeated:
        raise ValueError(f"named_parameters: names must be unique; there are several {', '.join(repeated)}")
    known = {parameter: name for name, parameter in pairs}
    unnamed = [tuple(parameter.shape) for parameter in own if parameter not in known]
    if unnamed:
        raise ValueError(f"named_parameters: lacks parameters of the optimizer, of shapes {unnamed}")
    return {parameter: known[parameter] for parameter in own}


class _Pending:
    """A combination under way."""

    __slots__ = ("finish", "parameters")

    def __init__(self, parameters: Sequence[Parameter], finish: Callable[[], object]) -> None:
        self.parameters = parameters
        self.finish = finish


class _Reducing(Waiting):
    """Combines gradients. Mixed with the class of the user's optimizer, which follows it in the order of methods."""

    def _begin(
        self,
        *,
        names: dict[Parameter, str],
        compression: type[Compressor],
        passes: int,
        op: str,
        factors: tuple[float, float],
        groups: int | Sequence[Sequence[Parameter]] | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        as_view: bool,
    ) -> None:
        self._names = {parameter: name for parameter, name in names.items() if parameter.requires_grad}
        self._compression = compression
        self._passes = passes
        self._op = op
        self._factors = factors
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._wanted = groups if groups is None or isinstance(groups, int) else self._moving(groups, names)
        self._as_view = as_view and compression is Compression.none
        self._laid_out: tuple[Communicator, int] | None = None
        self._sparse: set[Parameter] = set()
        self._pending: list[_Pending] = []
        self._begun: set[Parameter] = set()
        self._use(given_groups(self._names, self._wanted))
        self._begin_counting()

    def synchronize(self) -> None:
        """Wait until all gradients are combined, after starting those whose parameters took no part in the backward
        pass: other ranks may have used them. Raises HorovodInternalError if an operation failed."""
        if self._pending or not self._alone:
            self._start([parameter for parameter in self._names if parameter not in self._begun])
            pending, self._pending = self._pending, []
            for one in reversed(pending):  # the last is over last, as a rule; so this thread is woken but once
                one.finish()
        self._start_over()
        self._combined = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Combine the gradients, unless that is done, and let the optimizer step."""
        if self._combines_in_step:
            if self._combined:
                text = "step() after synchronize(), without skip_synchronize(): the gradients are combined twice"
                warnings.warn(text, stacklevel=3)
            self.synchronize()
        self._combined = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Raises AssertionError between backward() and step() or synchronize(): gradients are being combined."""
        if self._pending:
            raise AssertionError("zero_grad() was called after backward() and before step() or synchronize()")
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also forgets what backward passes have begun."""
        self._pending.clear()
        self._start_over()
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def _start_over(self) -> None:
        self._begun = set()
        for group in self._groups:
            group.start_over()
        self._combined = False
        super()._start_over()

    def _one_is_complete(self, parameter: Parameter) -> None:
        super()._one_is_complete(parameter)
        if self._left[parameter] == 0:
            self._start([parameter])
        elif parameter in self._group_of:
            self._group_of[parameter].take_early(parameter)

    def _start(self, parameters: Sequence[Parameter]) -> None:
        if self._as_view and not self._begun:
            self._lay_out()
        for parameter in parameters:
            self._begun.add(parameter)
            group = self._group_of.get(parameter)
            if group is None:
                self._combine_one(parameter)
                continue
            if group.slots:
                self._put_into(group, parameter)
            group.ready += 1
            if group.ready == len(group.parameters):
                self._combine_group(group)

    def _use(self, groups: list[Group]) -> None:
        self._groups = groups
        self._group_of = {parameter: group for group in groups for parameter in group.parameters}

    def _moving(self, groups: Iterable[Iterable[Parameter]], names: Iterable[Parameter]) -> list[list[Parameter]]:
        """The groups without what needs no gradient."""
        frozen = {parameter for parameter in names if parameter not in self._names}
        return [[parameter for parameter in group if parameter not in frozen] for group in groups]

    def _lay_out(self) -> None:
        """Have gradients lie in windows, where they do not. All ranks come here when a step's first gradient is
        complete, and have seen the same gradients be sparse."""
        comm = communicator_of(self._process_set)
        if self._laid_out == (comm, len(self._sparse)) or not comm.maps:
            return
        given = given_groups(self._names, self._wanted)
        self._use(given)  # and so drop the memory that there was
        apart = self._sparse.union(self._group_of)
        free = {one: name for one, name in self._names.items() if one not in apart and can_lie(one)}
        own = own_groups(free, min(GROUP_BYTES, comm.config.fusion_bytes))
        able = [group for group in given if all(map(can_lie, group.parameters))]
        with as_horovod():
            if lay_out(comm, [*able, *own], self._names):
                self._laid_out = comm, len(self._sparse)
        self._use([*given, *(group for group in own if group.slots)])

    def _gradient(self, parameter: Parameter) -> torch.Tensor:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.is_sparse and self._sparse_as_dense:
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad

    def _combine_one(self, parameter: Parameter) -> None:
        gradient, name = self._gradient(parameter), self._names[parameter]
        if gradient.is_sparse:
            self._sparse.add(parameter)
            wait = ops.sparse_allreduce_async(gradient, name, self._op, self._process_set)

            def replace() -> None:
                parameter.grad = wait()

            self._pending.append(_Pending([parameter], replace))
            return
        small, ctx = self._compression.compress(gradient)
        handle = ops.allreduce_async_(small, None, name, self._op, *self._factors, self._process_set)

        def finish() -> None:
            handle.synchronize()
            self._put(gradient, small, ctx)

        self._pending.append(_Pending([parameter], finish))

    def _put_into(self, group: Group, parameter: Parameter) -> None:
        """Bring a gradient to where the others of its group lie."""
        gradient, slot = self._gradient(parameter), group.slots[parameter]
        if not gradient.is_sparse:
            if not slot.take(parameter, gradient):
                group.outside.append(parameter)
        elif group.given:
            raise ValueError(_SPARSE)
        else:  # it was dense, or missing, when that was laid out
            slot.view().zero_()
            self._combine_one(parameter)

    def _combine_group(self, group: Group) -> None:
        if group.slots:
            handle = ops.combine_arrays_async(group.arrays, group.name, self._op, *self._factors, self._process_set)
            self._pending.append(_Pending(group.parameters, lambda: self._finish_group(group, handle)))
        else:
            self._combine_given(group)

    def _finish_group(self, group: Group, handle: Handle) -> None:
        handle.synchronize()
        for parameter in group.outside:
            assert parameter.grad is not None
            parameter.grad.detach().copy_(group.slots[parameter].view())

    def _combine_given(self, group: Group) -> None:
        parameters = group.parameters
        gradients = [self._gradient(parameter) for parameter in parameters]
        if any(gradient.is_sparse for gradient in gradients):
            raise ValueError(_SPARSE)
        compressed = [self._compression.compress(gradient) for gradient in gradients]
        smalls = [small for small, _ in compressed]
        handle = ops.grouped_allreduce_async_(smalls, None, group.name, self._op, *self._factors, self._process_set)

        def finish() -> None:
            handle.synchronize()
            for gradient, (small, ctx) in zip(gradients, compressed, strict=True):
                self._put(gradient, small, ctx)

        self._pending.append(_Pending(parameters, finish))

    def _put(self, gradient: torch.Tensor, small: torch.Tensor, ctx: Any) -> None:
        if small is not gradient:
            gradient.copy_(self._compression.decompress(small, ctx))


class _Adasum(Waiting):
    """Steps on the own gradients, and combines by Adasum what the steps of all ranks have changed.

    As in Horovod that is once for `backward_passes_per_step` passes, or at `step` if that comes earlier. Horovod lets
    the optimizer step for each parameter by itself while backward runs; here it does in `step`, for all at once.
    """

    _stepping = False

    def _begin(
        self,
        *,
        names: dict[Parameter, str],
        compression: type[Compressor],
        passes: int,
        process_set: ProcessSet,
        **_: Any,
    ) -> None:
        self._names = {parameter: name for parameter, name in names.items() if parameter.requires_grad}
        self._compression = compression
        self._passes = passes
        self._process_set = process_set
        self._begin_counting()

    def synchronize(self) -> None:
        """Nothing: it is the steps that are combined."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step, and combine what that has changed."""
        with torch.no_grad():
            before = {} if self._alone else {parameter: parameter.detach().clone() for parameter in self._names}
        self._stepping = True
        try:
            loss = super().step(closure)  # type: ignore[misc]
        finally:
            self._stepping = False
            self._start_over()
        with torch.no_grad():
            begun = []
            for parameter, old in before.items():
                small, ctx = self._compression.compress(parameter - old)
                handle = ops.allreduce_async_(small, None, self._names[parameter], Adasum, 1.0, 1.0, self._process_set)
                begun.append((parameter, handle, ctx))
            for parameter, handle, ctx in begun:
                change = self._compression.decompress(handle.synchronize(), ctx)
                parameter.copy_(before[parameter] + change)
        return loss

    def _one_is_complete(self, parameter: Parameter) -> None:
        if not self._stepping:  # what the closure of a step computes is the step's own
            super()._one_is_complete(parameter)
