"""Reduction of gradients over the ranks, during the backward pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch

from collectives import Communicator, OpName, ProcessSet
from frontends.horovod import ErrorFeedback, alone_in, as_horovod, communicator_of
from frontends.torch import ops
from frontends.torch.compression import AnyCompression, Compression, Compressor
from frontends.torch.gradients import (
    COPIED_BYTES,
    GROUP_BYTES,
    Gradient,
    Group,
    Parameter,
    can_lie,
    give_back,
    given_groups,
    lay_out,
    own_groups,
    take_together,
)
from frontends.torch.passes import PassCounter

_SPARSE: Final = "groups: has a parameter with sparse gradients; leave it out, or give sparse_as_dense"


class _Pending:
    """A reduction in flight. `finish` waits for it and stores its result."""

    __slots__ = ("finish", "parameters")

    def __init__(self, parameters: Sequence[Parameter], finish: Callable[[], object]) -> None:
        self.parameters = parameters
        self.finish = finish


class GradientReduction:
    """Reduces the gradients of a distributed optimizer while the backward pass runs.

    A hook on every parameter starts the reduction of its gradient, or of its group of gradients when all of them are
    complete:

        backward:   hook -> _on_gradient -> _start -> _reduce_one or _reduce_group     (operations in flight: _pending)
        step:       synchronize waits for all of them
    """

    def __init__(
        self,
        *,
        names: dict[Parameter, str],
        compression: AnyCompression,
        passes: int,
        op: OpName,
        factors: tuple[float, float],
        groups: int | Sequence[Sequence[Parameter]] | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        as_view: bool,
    ) -> None:
        self._names = {parameter: name for parameter, name in names.items() if parameter.requires_grad}
        self._feedback = compression if isinstance(compression, ErrorFeedback) else None
        self._compression: type[Compressor] = (
            Compression.none if isinstance(compression, ErrorFeedback) else compression
        )
        self._gradients = [Gradient(at, parameter, name) for at, (parameter, name) in enumerate(self._names.items())]
        self._counter = PassCounter(len(self._gradients), passes)
        self._op = op
        self._factors = factors
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._wanted = groups if groups is None or isinstance(groups, int) else self._trainable(groups, names)
        self._as_view = as_view
        self._own_memory = compression is Compression.none
        """True if gradients may travel in memory of the optimizer's; a compressor takes them one by one."""
        self._laid_out: tuple[Communicator, int] | None = None
        self._sparse: set[Parameter] = set()
        self._pending: list[_Pending] = []
        self._in_step = False
        """True from the first complete gradient of a step."""
        self._combined = False
        self._use(given_groups(self._names, self._wanted))
        if not alone_in(process_set):
            for gradient in self._gradients:
                gradient.parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, gradient))

    @property
    def in_flight(self) -> bool:
        """True from the first complete gradient until `synchronize`."""
        return bool(self._pending)

    def synchronize(self) -> None:
        """Wait until all gradients are combined. Parameters without a gradient contribute zeros: other ranks may have
        used them.

        Raises HorovodInternalError if an operation failed.
        """
        if self._pending or not alone_in(self._process_set):
            for gradient in self._gradients:
                if not gradient.begun:
                    self._start(gradient)
            pending, self._pending = self._pending, []
            for one in reversed(pending):  # usually the last one ends last, so this thread wakes only once
                one.finish()
        self._restart()
        self._combined = True

    def step(self, plain_step: Callable[[Any], Any], closure: Callable[[], Any] | None, synchronize: bool) -> Any:
        """Reduce the gradients if `synchronize` is set, and let the plain optimizer step."""
        if synchronize:
            if self._combined:
                text = (
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are combined twice"
                )
                warnings.warn(text, stacklevel=4)
            self.synchronize()
        self._combined = False
        return plain_step(closure)

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes per step, and begin a step. Raises ValueError."""
        self._counter.set_passes(passes)
        self._restart()

    def discard(self) -> None:
        """Forget the reductions in flight, and begin a step."""
        self._pending.clear()
        self._restart()

    def _restart(self) -> None:
        self._counter.restart()
        self._in_step = False
        for gradient in self._gradients:
            gradient.begun = False
        for group in self._groups:
            group.start_over()
        self._combined = False

    def _on_gradient(self, gradient: Gradient, parameter: Parameter) -> None:
        """Hook: a backward pass has added to a gradient."""
        if self._counter.count(gradient.number):
            self._start(gradient)
        elif self._as_view and gradient.slot is not None and not gradient.small:  # so that later passes add to it there
            early = parameter.grad
            if early is not None and not early.is_sparse:
                gradient.slot.take(early, as_view=True)

    def _start(self, gradient: Gradient) -> None:
        if not self._in_step:
            self._in_step = True
            if self._own_memory or self._feedback is not None:
                self._arrange()
        gradient.begun = True
        group = gradient.group
        if group is None:
            self._reduce_one(gradient.parameter)
            return
        if gradient.slot is not None:
            if gradient.small:
                group.waiting.append(gradient)
            else:
                self._move_to_slot(group, gradient)
        group.ready += 1
        if group.ready == len(group.parameters):
            for late in take_together(group, as_view=self._as_view):
                self._move_to_slot(group, late)
            self._reduce_group(group)

    def _use(self, groups: list[Group]) -> None:
        self._groups = groups
        self._group_of = {parameter: group for group in groups for parameter in group.parameters}
        for gradient in self._gradients:
            group = gradient.group = self._group_of.get(gradient.parameter)
            gradient.slot = None if group is None else group.slots.get(gradient.parameter)

    def _trainable(self, groups: Iterable[Iterable[Parameter]], names: Iterable[Parameter]) -> list[list[Parameter]]:
        """Return the groups without parameters that need no gradient."""
        frozen = {parameter for parameter in names if parameter not in self._names}
        return [[parameter for parameter in group if parameter not in frozen] for group in groups]

    def _arrange(self) -> None:
        """Make groups, and give memory to them, unless that is done. Collective.

        If gradients are no views, or without memory that all ranks map, large gradients get no groups: they are best
        sent from where they are.

        All ranks call it when the first gradient of a step is complete; they have seen the same gradients be sparse.
        """
        comm = communicator_of(self._process_set)
        if self._laid_out == (comm, len(self._sparse)):
            return
        given = given_groups(self._names, self._wanted)
        self._use(given)  # releases the memory of the old groups
        apart = self._sparse.union(self._group_of)
        views = self._as_view and comm.maps
        large = views or self._feedback is not None
        free = {
            gradient.parameter: gradient.name
            for gradient in self._gradients
            if gradient.parameter not in apart
            and can_lie(gradient.parameter)
            and (large or gradient.parameter.nbytes <= COPIED_BYTES)
        }
        own = own_groups(free, min(GROUP_BYTES, comm.config.fusion_bytes))
        if self._feedback is not None:
            self._laid_out = comm, len(self._sparse)
            self._use([*given, *own])
            return
        able = [group for group in given if views and all(map(can_lie, group.parameters))]
        with as_horovod():
            if lay_out(comm, [*able, *own], self._names):
                self._laid_out = comm, len(self._sparse)
        self._use([*given, *(group for group in own if group.slots)])

    def _gradient(self, parameter: Parameter) -> torch.Tensor:
        """Return the gradient to reduce; with `sparse_as_dense`, a dense copy of a sparse one."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.is_sparse and self._sparse_as_dense:
            return parameter.grad.to_dense()
        return parameter.grad

    def _give_back(self, parameter: Parameter, reduced: torch.Tensor) -> None:
        """Store a reduced gradient in a parameter that keeps its own tensor: as sparse as that is."""
        own = parameter.grad
        assert own is not None
        if own.is_sparse:
            parameter.grad = reduced.to_sparse(own.sparse_dim())
        elif own is not reduced:
            own.detach().copy_(reduced)

    def _reduce_one(self, parameter: Parameter) -> None:
        gradient, name = self._gradient(parameter), self._names[parameter]
        if gradient.is_sparse:
            self._sparse.add(parameter)
            wait = ops.sparse_allreduce_async(gradient, name, self._op, self._process_set)

            def replace() -> None:
                parameter.grad = wait()

            self._pending.append(_Pending([parameter], replace))
            return
        if self._feedback is not None:
            self._compress([parameter], [gradient], name)
            return
        small, ctx = self._compression.compress(gradient)
        handle = ops.allreduce_async_(small, None, name, self._op, *self._factors, self._process_set)

        def finish() -> None:
            handle.synchronize()
            self._give_back(parameter, self._compression.decompress(small, ctx))

        self._pending.append(_Pending([parameter], finish))

    def _compress(self, parameters: Sequence[Parameter], gradients: Sequence[torch.Tensor], label: str) -> None:
        """Reduce dense gradients with a lossy compression."""
        assert self._feedback is not None
        names = [self._names[parameter] for parameter in parameters]
        handle = ops.compressed_async(gradients, gradients, self._op, label, names, self._feedback, self._process_set)
        sparse = {parameter for parameter in parameters if parameter in self._sparse}

        def finish() -> None:
            for parameter, reduced in zip(parameters, handle.synchronize(), strict=True):
                if parameter not in sparse:
                    self._give_back(parameter, reduced)

        self._pending.append(_Pending(parameters, finish))

    def _move_to_slot(self, group: Group, one: Gradient) -> None:
        """Move a gradient into the memory of its group."""
        parameter, slot = one.parameter, one.slot
        assert slot is not None
        gradient = self._gradient(parameter)
        if gradient is not parameter.grad:
            slot.view().copy_(gradient)
            group.outside.append(parameter)
        elif not gradient.is_sparse:
            if not slot.take(gradient, as_view=self._as_view):
                group.outside.append(parameter)
        elif group.given:
            raise ValueError(_SPARSE)
        else:  # it was dense or missing when the slots were allocated
            slot.view().zero_()
            self._reduce_one(parameter)

    def _reduce_group(self, group: Group) -> None:
        if group.slots:
            handle = ops.combine_arrays_async(group.arrays, group.name, self._op, *self._factors, self._process_set)

            def finish() -> None:
                handle.synchronize()
                give_back(group)

            self._pending.append(_Pending(group.parameters, finish))
        else:
            self._reduce_without_slots(group)

    def _reduce_without_slots(self, group: Group) -> None:
        parameters = group.parameters
        gradients = [self._gradient(parameter) for parameter in parameters]
        for index, gradient in enumerate(gradients):
            if gradient.is_sparse and group.given:
                raise ValueError(_SPARSE)
            if gradient.is_sparse:  # it was dense or missing when the groups were made
                self._reduce_one(parameters[index])
                gradients[index] = torch.zeros_like(parameters[index])
        if self._feedback is not None:
            self._compress(parameters, gradients, group.name)
            return
        compressed = [self._compression.compress(gradient) for gradient in gradients]
        smalls = [small for small, _ in compressed]
        handle = ops.grouped_allreduce_async_(smalls, None, group.name, self._op, *self._factors, self._process_set)

        def finish() -> None:
            handle.synchronize()
            for parameter, (small, ctx) in zip(parameters, compressed, strict=True):
                self._give_back(parameter, self._compression.decompress(small, ctx))

        self._pending.append(_Pending(parameters, finish))
