"""Reduction of gradients over the ranks, during the backward pass."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

from collectives import Communicator, OpName, ProcessSet, world
from collectives.negotiation import MemoryInFlightError, NameInFlightError
from frontends.horovod import (
    ARRAYS,
    DENSE,
    MISSING,
    SPARSE,
    Compressor,
    ErrorFeedback,
    HorovodInternalError,
    Reduction,
    alone_in,
    as_horovod,
    communicator_of,
    option_facts,
    title_of,
)
from frontends.torch import ops
from frontends.torch.compression import AnyCompression, Compression
from frontends.torch.gradients import (
    COPIED_BYTES,
    GROUP_BYTES,
    Gradient,
    Group,
    can_lie,
    give_back,
    given_groups,
    lay_out,
    own_groups,
    take_together,
)
from frontends.torch.parameters import Hooks, Parameter, Roster, gradient_dtype
from frontends.torch.passes import PassCounter
from frontends.torch.tensors import LIBRARY
from frontends.torch.works import eager

_KNOWN: Final = 4
"""Bit beside the kinds of gradients: a rank has had a dense gradient in an earlier step."""
_LAY_OUT: Final = 1
"""A wish: to make the groups anew."""
_CHECK_ALIKE: Final = 2
"""A wish: `Roster.check_alike`."""


class _Pending:
    """A reduction in flight. `wait` returns its result; `store` gives that to the parameters; `over` is True when it
    does not use the gradients' memory any more."""

    __slots__ = ("over", "store", "wait")

    def __init__(self, wait: Callable[[], Any], store: Callable[[Any], object], over: Callable[[], bool]) -> None:
        self.wait = wait
        self.store = store
        self.over = over

    def finish(self) -> None:
        """Wait for it and store its result."""
        self.store(self.wait())


@eager
class GradientReduction:
    """Reduces the gradients of a distributed optimizer while the backward pass runs.

    A hook on every parameter starts the reduction of its gradient, or of its group of gradients when all of them are
    complete, if the gradient is dense. The others, which are sparse or missing, wait until `synchronize`, where the
    ranks agree on the kinds of gradients that there are:

        backward:   hook -> _on_gradients -> _start -> _reduce_one or _reduce_group     (operations in flight: _pending)
        step:       synchronize: _unite, starts the others, and waits for all of them
    """

    def __init__(
        self,
        *,
        roster: Roster,
        compression: AnyCompression,
        passes: int,
        op: OpName,
        factors: tuple[float, float],
        groups: int | Sequence[Sequence[Parameter]] | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        as_view: bool,
    ) -> None:
        self._roster = roster
        self._feedback = compression if isinstance(compression, ErrorFeedback) else None
        self._compression: type[Compressor] = (
            Compression.none if isinstance(compression, ErrorFeedback) else compression
        )
        self._op = op
        self._factors = factors
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._wanted = groups if groups is None or isinstance(groups, int) else [list(group) for group in groups]
        self._as_view = as_view
        self._own_memory = compression is Compression.none
        """True if gradients may travel in memory of the optimizer's; a compressor takes them one by one."""
        self._laid_out: Communicator | None = None
        """The communicator for which the groups are made."""
        self._gradients: list[Gradient] = []
        self._of: dict[int, Gradient] = {}
        self._groups: list[Group] = []
        self._grouped: Communicator | None = None
        """The communicator whose ranks use the groups."""
        self._pending: list[_Pending] = []
        self._left: list[_Pending] = []
        """The reductions of steps that were interrupted."""
        self._checked: Communicator | None = None
        """The world for which the groups are known to be right, in this step."""
        self._combined = False
        self._settled = False
        """True if `step` finds the gradients combined by `settle`."""
        self._may_differ = False
        """True if the other ranks may have made a step that this one has not."""
        self._same_order = True
        """True if all ranks list the parameters in the same order."""
        self._counter = PassCounter(0, passes)
        self._hooks = Hooks(self._on_gradients)
        names = dict(zip(roster.parameters, roster.names, strict=True))
        given_groups(names, self._wanted)
        named: Any = self._wanted
        if not isinstance(named, int | None):
            named = [[names[parameter] for parameter in group] for group in named]
        title = title_of(compression)
        roster.compare(option_facts(op=op, compression=title, groups=named, gradient_as_bucket_view=as_view))
        if self._feedback is not None:
            self._feedback.belong_to(roster.names, roster.parameters)
        self._take_parameters()
        self._watch()

    def close(self) -> None:
        """Leave the parameters' gradients alone: the optimizer is gone."""
        self._hooks.close()

    @property
    def in_flight(self) -> bool:
        """True from the first complete gradient until `synchronize`."""
        self._hooks.hand_over()
        return bool(self._pending)

    def synchronize(self, param_groups: Sequence[dict[str, Any]]) -> None:
        """Wait until all gradients are combined. A gradient that this rank does not have, and others have, is zeros.

        Raises HorovodInternalError if an operation failed, ValueError on every rank if the ranks' parameters differ, or
        on this one if the program has changed a gradient on its way (no gradient is on its way then, all are to be
        discarded), and until the other ranks have made a step that was interrupted here; then on every rank, until the
        ranks' parameters have the same values.
        """
        try:
            self._hooks.hand_over()
            self._combine(param_groups)
        except BaseException:
            self.discard()
            raise
        self._restart()
        self._combined = True

    def _combine(self, param_groups: Sequence[dict[str, Any]]) -> None:
        if self._pending or not alone_in(self._process_set):
            self._check_left()
            self._leave_old_groups()
            if self._roster.follow(param_groups):
                self._take_parameters()
            without = [gradient for gradient in self._gradients if gradient.parameter.grad is None]
            changed = [gradient.name for gradient in self._gradients if gradient.changed]
            lay_out = self._unite()
            for group in self._groups:
                if any(gradient.kind for gradient in group.members):
                    for gradient in group.members:
                        if not gradient.begun:
                            self._start(gradient)
            for gradient in self._gradients:
                if gradient.kind and not gradient.begun:
                    self._start(gradient)
            for one in reversed(self._pending):  # usually the last one ends last, so this thread wakes only once
                one.finish()
            self._pending.clear()
            for gradient in without:
                gradient.give_kind()
            if lay_out:
                self._arrange()
            self._watch()
            if changed:
                raise ValueError(
                    f"gradient of {changed[0]!r}, of {len(changed)}: the program has changed it while it was combined, "
                    "or another DistributedOptimizer of it has: discard the gradients; call optimizer.synchronize() "
                    "after backward() and before GradScaler.unscale_, clip_grad_norm_ and the like, and "
                    "optimizer.step() in optimizer.skip_synchronize()"
                )
            self._may_differ = False

    def step(
        self,
        plain_step: Callable[[Any], Any],
        closure: Callable[[], Any] | None,
        synchronize: bool,
        param_groups: Sequence[dict[str, Any]],
    ) -> Any:
        """Reduce the gradients if `synchronize` is set, and let the plain optimizer step. With a closure, also those
        that each of its calls computes."""
        if self._settled:
            self._settled = False
        elif synchronize:
            if self._combined:
                text = (
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are combined twice"
                )
                warnings.warn(text, stacklevel=3)
            self.synchronize(param_groups)
            if closure is not None:
                closure = partial(self._evaluate, closure, param_groups)
        self._combined = False
        try:
            return plain_step(closure)
        except BaseException:
            self._may_differ = True
            raise

    def settle(self, param_groups: Sequence[dict[str, Any]]) -> None:
        """Reduce the gradients for a caller that looks at them first and then calls `step`, or skips that."""
        if not self._combined:
            self.synchronize(param_groups)
            self._settled = True

    def _evaluate(self, closure: Callable[[], Any], param_groups: Sequence[dict[str, Any]]) -> Any:
        """Call a step's closure, and combine the gradients unless it has done so."""
        loss = closure()
        if not self._combined:
            self.synchronize(param_groups)
        self._combined = False
        return loss

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes per step: of this step unless gradients are on their way already, and of
        those after it. Raises ValueError."""
        self._counter.set_passes(passes)
        if not self._pending:
            self._restart()

    def drain(self) -> None:
        """Wait until the reductions in flight have ended, forget their results and errors, and begin a step."""
        for one in self._pending:
            with contextlib.suppress(HorovodInternalError):
                one.wait()
        self.discard()

    def start_over(self) -> None:
        """Begin a step anew if passes have added to gradients that are not on their way. Raises ValueError."""
        self._check_left()
        if self._counter.counting:
            self._restart()

    def discard(self) -> None:
        """Forget the reductions in flight, and begin a step."""
        self._left = [one for one in (*self._left, *self._pending) if not one.over()]
        self._pending.clear()
        self._restart()

    def _check_left(self) -> None:
        """Raise ValueError while reductions of a step that was interrupted use the memory of gradients."""
        self._left = [one for one in self._left if not one.over()]
        if self._left:
            raise ValueError(
                "optimizer: gradients of a step that was interrupted are still being combined; go on when the other "
                "ranks have made that step, or call shutdown"
            )

    def _restart(self) -> None:
        self._hooks.forget()
        self._counter.restart()
        for gradient in self._gradients:
            gradient.start_over()
        for group in self._groups:
            group.start_over()
        self._checked = None
        self._combined = self._settled = False

    def _take_parameters(self) -> None:
        """Take the parameters of the roster. Groups stay as they are until the end of the step."""
        before = self._of
        self._gradients = []
        for number, (parameter, name) in enumerate(zip(self._roster.parameters, self._roster.names, strict=True)):
            gradient = before.get(id(parameter)) or Gradient(number, parameter, name)
            gradient.number = number
            self._gradients.append(gradient)
        self._of = {id(gradient.parameter): gradient for gradient in self._gradients}
        self._counter.resize(len(self._gradients))
        self._laid_out = None

    def _watch(self) -> None:
        if not alone_in(self._process_set):
            self._hooks.follow(self._roster.parameters)

    def _unite(self) -> bool:
        """Set the kinds of gradients that the ranks have together. True if groups are to be made. Collective."""
        wish = _LAY_OUT if self._laid_out is not communicator_of(self._process_set) else 0
        wish |= _CHECK_ALIKE if self._may_differ else 0
        self._may_differ = True  # until the end of the step
        own = [(DENSE if one.begun else self._kind_of(one)) | (_KNOWN if one.dense else 0) for one in self._gradients]
        united = self._roster.unite(own, self._process_set, wish)
        if united.wishes & _CHECK_ALIKE:
            self._roster.check_alike(self._process_set)
        self._same_order = united.same_order
        lay_out = bool(united.wishes & _LAY_OUT)
        for gradient, kind in zip(self._gradients, united.kinds, strict=True):
            gradient.kind = kind & (DENSE | SPARSE)
            lay_out = lay_out or kind & (DENSE | _KNOWN) == DENSE
            gradient.dense = bool(kind & (DENSE | _KNOWN))
        return lay_out

    def _kind_of(self, gradient: Gradient) -> int:
        own = gradient.parameter.grad
        if own is None:
            return MISSING
        return SPARSE if own.is_sparse and not self._sparse_as_dense else DENSE

    def _on_gradients(self, parameters: Sequence[Parameter]) -> None:
        """Hook: a backward pass has added to the gradients of these parameters."""
        self._check_left()
        self._combined = self._settled = False  # also if the step before was skipped
        self._leave_old_groups()
        for parameter in parameters:
            gradient = self._of.get(id(parameter))
            if gradient is None:  # the parameter is no longer the optimizer's
                continue
            try:
                complete = self._counter.count(gradient.number)
            except AssertionError:
                for one in self._gradients:
                    one.forget()
                raise
            if complete:
                if self._kind_of(gradient) == DENSE:
                    self._start(gradient)
            elif self._as_view and gradient.slot is not None and not gradient.small:  # so that later passes add to it
                early = parameter.grad
                if early is not None and not early.is_sparse:
                    gradient.slot.take(early)

    def _start(self, gradient: Gradient) -> None:
        """Begin to reduce a complete gradient. After an error it counts as not begun. Raises ValueError for a name by
        which another optimizer has begun to reduce one, and for memory in which one is reduced."""
        gradient.begun = True
        try:
            self._begin(gradient)
        except BaseException as error:
            gradient.begun = False
            gradient.forget()
            if isinstance(error, NameInFlightError):
                raise ValueError(
                    f"optimizer: cannot combine the gradient of {gradient.name!r}, as another DistributedOptimizer "
                    "combines one of that name; let it step first, or give each its own names, such as "
                    'named_parameters=[(f"critic.{name}", p) for name, p in critic.named_parameters()]'
                ) from error
            if isinstance(error, MemoryInFlightError):
                raise ValueError(
                    f"optimizer: cannot combine the gradient of {gradient.name!r}, as the program or an older "
                    "DistributedOptimizer of these parameters combines it; wait for that, or delete the optimizer"
                ) from error
            raise

    def _begin(self, gradient: Gradient) -> None:
        group = gradient.group
        if group is None or not self._as_view:
            gradient.note()
        if group is None:
            self._reduce_one(gradient)
            return
        if gradient.slot is not None:
            if gradient.small:
                group.waiting.append(gradient)
            else:
                self._move_to_slot(gradient)
        if group.ready + 1 == len(group.parameters):
            for late in take_together(group):
                self._move_to_slot(late)
            if self._as_view:  # the views of a group are of one tensor, so that a move changes the versions of all
                for member in group.members:
                    member.note()
            self._reduce_group(group)
        group.ready += 1

    def _leave_old_groups(self) -> None:
        """After a change of the ranks, use no groups until all ranks make new ones: newcomers have none. The same after
        a change of a parameter, such as by `model.bfloat16()`, which shows at the first gradient of a step."""
        if not self._groups or self._checked is world():
            return
        self._checked = world()
        if self._grouped is not communicator_of(self._process_set):
            self._use([])
        elif not all(slot.fits for group in self._groups for slot in group.slots.values()):
            self._use([])
            self._roster.forget()

    def _use(self, groups: list[Group]) -> None:
        self._groups, self._grouped = groups, communicator_of(self._process_set)
        for gradient in self._gradients:
            gradient.lie_in(None)
        for group in groups:
            group.members = [self._of[id(parameter)] for parameter in group.parameters]
            for gradient in group.members:
                gradient.lie_in(group)

    def _arrange(self) -> None:
        """Make groups of the gradients that are dense, and give memory to them. Collective.

        If gradients are no views, or without memory that all ranks map, large gradients get no groups: they are best
        sent from where they are.

        All ranks call it at the end of a step, and know the same gradients to be dense.
        """
        comm = communicator_of(self._process_set)
        self._use([])  # releases the memory of the old groups
        dense = [gradient for gradient in self._gradients if gradient.dense]
        if not self._same_order:
            dense.sort(key=lambda gradient: gradient.name)
        names = {gradient.parameter: gradient.name for gradient in dense}
        wanted = self._wanted
        if not isinstance(wanted, int | None):
            wanted = [[parameter for parameter in group if parameter in names] for group in wanted]
        given = given_groups(names, wanted)
        if self._feedback is None and not self._own_memory:
            self._laid_out = comm
            self._use(given)
            return
        grouped = {parameter for group in given for parameter in group.parameters}
        views = self._as_view and comm.maps
        large = views or self._feedback is not None
        free = {
            parameter: name
            for parameter, name in names.items()
            if parameter not in grouped and can_lie(parameter) and (large or parameter.nbytes <= COPIED_BYTES)
        }
        own = own_groups(free, min(GROUP_BYTES, comm.config.fusion_bytes))
        if self._feedback is not None:
            self._laid_out = comm
            self._use([*given, *own])
            return
        able = [group for group in given if views and all(map(can_lie, group.parameters))]
        with as_horovod():
            if lay_out(comm, [*able, *own], names, as_view=self._as_view):
                self._laid_out = comm
        self._use([*given, *(group for group in own if group.slots)])

    def _gradient(self, parameter: Parameter) -> torch.Tensor:
        """Return the gradient to reduce as a dense tensor: zeros if it is missing."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, dtype=gradient_dtype(parameter))
        return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad

    def _give_back(self, parameter: Parameter, reduced: torch.Tensor) -> None:
        """Store a reduced gradient in a parameter that keeps its own tensor: as sparse as that is. A parameter that has
        lost its own on the way gets it, too, as all ranks have it."""
        own = parameter.grad
        if own is None:
            parameter.grad = reduced
        elif own.is_sparse:
            parameter.grad = reduced.to_sparse(own.sparse_dim())
        elif own is not reduced:
            own.detach().copy_(reduced)

    def _how(self, name: str) -> Reduction:
        return Reduction(self._op, name, *self._factors, self._process_set)

    def _await(self, handle: Any, store: Callable[[Any], object]) -> None:
        self._pending.append(_Pending(handle.synchronize, store, handle.poll))

    def _reduce_one(self, one: Gradient) -> None:
        parameter, name = one.parameter, one.name
        if one.kind == SPARSE:
            own = _empty_sparse(parameter) if parameter.grad is None else parameter.grad

            def replace(reduced: torch.Tensor) -> None:
                parameter.grad = reduced

            wait = ops.sparse_allreduce_async(own, name, self._op, self._process_set)
            self._pending.append(_Pending(wait, replace, lambda: True))  # sparse gradients are not written to
            return
        gradient = self._gradient(parameter)
        if self._feedback is not None:
            self._compress([parameter], [gradient], name)
            return
        small, ctx = self._compression.compress(gradient)

        def store(reduced: torch.Tensor) -> None:
            self._give_back(parameter, self._compression.decompress(reduced, ctx))

        handle = LIBRARY.allreduce(small, small, self._how(name))
        self._await(handle, store)

    def _compress(self, parameters: Sequence[Parameter], gradients: Sequence[torch.Tensor], label: str) -> None:
        """Reduce dense gradients with a lossy compression."""
        assert self._feedback is not None
        names = [self._of[id(parameter)].name for parameter in parameters]

        def store(reduced: Sequence[torch.Tensor]) -> None:
            for parameter, one in zip(parameters, reduced, strict=True):
                self._give_back(parameter, one)

        handle = LIBRARY.compressed(gradients, gradients, self._how(label), names, self._feedback)
        self._await(handle, store)

    def _move_to_slot(self, one: Gradient) -> None:
        """Move a gradient into the memory of its group."""
        assert one.slot is not None
        one.slot.take(self._gradient(one.parameter))

    def _reduce_group(self, group: Group) -> None:
        if group.slots:
            handle = ARRAYS.grouped_allreduce(group.arrays, group.arrays, self._how(group.name))
            self._await(handle, lambda _: give_back(group))
        else:
            self._reduce_without_slots(group)

    def _reduce_without_slots(self, group: Group) -> None:
        parameters = group.parameters
        gradients = [self._gradient(parameter) for parameter in parameters]
        if self._feedback is not None:
            self._compress(parameters, gradients, group.name)
            return
        compressed = [self._compression.compress(gradient) for gradient in gradients]
        smalls = [small for small, _ in compressed]

        def store(reduced: Sequence[torch.Tensor]) -> None:
            for parameter, small, (_, ctx) in zip(parameters, reduced, compressed, strict=True):
                self._give_back(parameter, self._compression.decompress(small, ctx))

        handle = LIBRARY.grouped_allreduce(smalls, smalls, self._how(group.name))
        self._await(handle, store)


def _empty_sparse(parameter: Parameter) -> torch.Tensor:
    """Return a sparse gradient without elements."""
    device = parameter.device
    rows = torch.empty((1, 0), dtype=torch.int64, device=device)
    dtype = gradient_dtype(parameter) or parameter.dtype
    values = torch.empty((0, *parameter.shape[1:]), dtype=dtype, device=device)
    kept = {"is_coalesced": True, "check_invariants": True}
    return torch.sparse_coo_tensor(rows, values, parameter.shape, device=device, **kept)
