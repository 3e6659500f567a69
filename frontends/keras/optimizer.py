"""DistributedOptimizer: a Keras optimizer that combines gradients over the ranks before it applies them.

The optimizer's class is subclassed, so that it stays what it was for Keras and for the user, and is saved as what it
was. All gradients of a step travel as one operation with one name and one wait: no order of a graph's operations, and
no order of variables, can make ranks wait for each other in a circle.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import keras

from collectives.process_sets import ProcessSet, global_process_set
from frontends.horovod.gradients import predivided
from frontends.horovod.names import Average, Sum, alone_in
from frontends.keras.backends import Backend, Way, chosen
from frontends.keras.compression import Compression, Compressor

Groups: TypeAlias = int | Sequence[Sequence[Any]] | None


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: str = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A new optimizer of the same class, options and state whose `apply` combines gradients over the ranks first.

    name                          of its operations, for programs with several optimizers at work at the same time on
                                  variables of the same shapes; by default made of class and shapes
    compression                   Compression.none, .fp16, .bf16, or any with their two functions; of dense gradients
    sparse_as_dense               make TensorFlow's IndexedSlices dense before they are combined
    gradient_predivide_factor     Average divides by it before the sum and by size / it after
    op                            Average or Sum
    groups, num_groups            taken and checked: all gradients travel together here, whatever the groups
    backward_passes_per_step      gradients of so many calls of `apply` add up before they are combined and applied
    average_aggregated_gradients  then divide them by that number
    scale_local_gradients         divide gradients of variables that `register_local_var` was given by the size
    device_dense, device_sparse   there for Horovod's scripts, and mean nothing

    With a global policy of mixed_float16 the optimizer becomes the inner one of a LossScaleOptimizer, as model.compile
    would make it, so that the ranks agree on which steps to leave out.

    Raises TypeError for something else than a Keras optimizer, ValueError for bad options.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"optimizer: must be a Keras optimizer, not {type(optimizer).__name__}")
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r}: must be Average or Sum")
    before, after = predivided(op, gradient_predivide_factor)
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step!r}: must be 1 or more")
    if num_groups:
        warnings.warn("num_groups: deprecated, use groups", DeprecationWarning, stacklevel=2)
    for title, given in (("num_groups", num_groups), ("groups", groups)):
        if isinstance(given, int) and given < 0:
            raise ValueError(f"{title}={given}: must be 0 or more")
    scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    fresh = _copy(optimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scales_loss:
        fresh, scales_loss = keras.optimizers.LossScaleOptimizer(fresh), True
    if scales_loss and backward_passes_per_step > 1:
        raise ValueError("backward_passes_per_step: cannot be more than 1 with a LossScaleOptimizer")
    settings = _Settings(
        name=name or f"Distributed{type(fresh).__name__}",
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        prescale=before,
        postscale=after,
        passes=backward_passes_per_step,
        share=1.0 / backward_passes_per_step if average_aggregated_gradients else 1.0,
        process_set=process_set,
        scales_local=scale_local_gradients,
        named=name is not None,
    )
    return distribute(fresh, settings)


def PartialDistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: str = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    local_layers: keras.layers.Layer | Sequence[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedOptimizer that leaves the gradients of `local_layers` to their rank. The layers must be built.

    Raises as DistributedOptimizer; ValueError for a layer without variables.
    """
    distributed = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        num_groups,
        groups,
        backward_passes_per_step,
        average_aggregated_gradients,
        process_set,
        scale_local_gradients,
    )
    layers = [local_layers] if isinstance(local_layers, keras.layers.Layer) else list(local_layers or ())
    for layer in layers:
        if not layer.built:
            raise ValueError(f"local_layers: {layer.name} has no variables yet; build the model before")
        for variable in layer.trainable_variables:
            distributed.register_local_var(variable)
    return distributed


@dataclass(frozen=True)
class _Settings:
    """What DistributedOptimizer was told, in terms of what it does."""

    name: str
    compression: type[Compressor]
    sparse_as_dense: bool
    op: str
    prescale: float
    postscale: float
    passes: int
    share: float
    process_set: ProcessSet
    scales_local: bool
    named: bool
    local: set[int] = field(default_factory=set)
    """The ids of the variables whose gradients stay in their rank."""

    def combine(self, backend: Backend, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients over all ranks, in order; None stays None."""
        result = list(gradients)
        if alone_in(self.process_set):
            return result
        chosen, contexts, tensors = [], [], []
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if id(variable) in self.local:
                result[index] = backend.dense(gradient) / self.process_set.size() if self.scales_local else gradient
                continue
            tensor, context = (gradient if not self.sparse_as_dense else backend.dense(gradient)), None
            if not isinstance(tensor, backend.SPARSE):
                tensor, context = self.compression.compress(backend.dense(tensor))
            chosen.append(index)
            contexts.append(context)
            tensors.append(tensor)
        if not tensors:
            return result
        way = Way(self._label(variables), self.op, self.prescale, self.postscale, self.process_set)
        for index, context, tensor in zip(chosen, contexts, backend.combine(tensors, way), strict=True):
            sparse = isinstance(tensor, backend.SPARSE)
            result[index] = tensor if sparse else self.compression.decompress(tensor, context)
        return result

    def _label(self, variables: Sequence[Any]) -> str:
        """The name of the operation. Ranks may have made other numbers of layers and optimizers before (one that
        resumes loads a model), so automatic names would not do; shapes are the same everywhere."""
        if self.named:
            return self.name
        shapes = [(tuple(variable.shape), keras.backend.standardize_dtype(variable.dtype)) for variable in variables]
        return f"{self.name}.{zlib.crc32(repr(shapes).encode()):08x}"


def distribute(optimizer: Any, settings: _Settings) -> Any:
    """Make an optimizer combine gradients, in place."""
    kind = type(optimizer)
    base = _LossScaling if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else _Combining
    title = keras.saving.get_registered_name(kind)  # by which Keras saves an object and finds its class when loading
    optimizer.__class__ = type(title, (base, kind), {"__module__": kind.__module__})
    optimizer._ronde = settings
    if optimizer.built:
        optimizer._add_sums(optimizer._trainable_variables)
    return optimizer


def _copy(optimizer: Any) -> Any:
    """An optimizer of the same class, options and state, for the same variables."""
    kind = type(optimizer)
    if isinstance(optimizer, _Combining):
        kind = kind.__bases__[1]
    fresh = kind.from_config(optimizer.get_config())
    if optimizer.built:
        fresh.build(optimizer._trainable_variables)
        for new, old in zip(fresh.variables, optimizer.variables, strict=False):
            new.assign(old)
    return fresh


class _Combining:
    """Combines gradients in `apply`. Mixed with the class of the user's optimizer, which follows it in the order of
    methods."""

    _ronde: _Settings
    built: bool

    def register_local_var(self, var: Any) -> None:
        """Never combine the gradient of a variable: it stays in the rank that computed it."""
        self._ronde.local.add(id(var))

    def build(self, variables: Sequence[Any]) -> None:
        """Make the optimizer's variables."""
        if not self.built:
            super().build(variables)  # type: ignore[misc]
            self._add_sums(variables)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Combine the gradients and apply them, if enough passes have come. Raises HorovodInternalError."""
        given: Any = self
        if trainable_variables is not None and not self.built:
            with keras.name_scope(given.name, caller=self):
                self.build(list(trainable_variables))
        variables = list(given._trainable_variables if trainable_variables is None else trainable_variables)
        backend = chosen()
        if self._ronde.passes == 1:
            super().apply(self._ronde.combine(backend, grads, variables), trainable_variables)  # type: ignore[misc]
        else:
            self._add_up(backend, grads, variables)

    def save_own_variables(self, store: Any) -> None:
        """Keep what the optimizer has without Ronde: sums of passes are left out, so a file fits any setting."""
        for index, variable in enumerate(self._kept()):
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Take what `save_own_variables` or the plain optimizer has kept; warns and does nothing, as Keras, if that
        are other variables."""
        kept = self._kept()
        if len(store.keys()) != len(kept):
            text = f"the optimizer's state is not loaded: {len(store.keys())} variables for an optimizer of {len(kept)}"
            warnings.warn(text, stacklevel=2)
            return
        for index, variable in enumerate(kept):
            variable.assign(store[str(index)])

    def _add_sums(self, variables: Sequence[Any]) -> None:
        """The variables that passes add up in. They come last."""
        if self._ronde.passes == 1:
            return
        given: Any = self
        self._ronde_sums = given.add_optimizer_variables(variables, "backward_passes")
        self._ronde_count = given.add_variable((), dtype="int32", name="backward_pass")

    def _kept(self) -> list[Any]:
        given: Any = self
        extra = len(self._ronde_sums) + 1 if self._ronde.passes > 1 and self.built else 0
        variables: list[Any] = given.variables
        return variables[: len(variables) - extra]

    def _add_up(self, backend: Backend, grads: Sequence[Any], variables: list[Any]) -> None:
        given: Any = self
        used = [index for index, gradient in enumerate(grads) if gradient is not None]
        chosen_ones = [variables[index] for index in used]
        sums = [self._ronde_sums[given._get_variable_index(variable)] for variable in chosen_ones]
        for total, index in zip(sums, used, strict=True):
            total.assign_add(backend.dense(grads[index]))
        self._ronde_count.assign(keras.ops.mod(self._ronde_count + 1, self._ronde.passes))

        def combine(totals: list[Any]) -> list[Any]:
            return self._ronde.combine(backend, totals, chosen_ones)

        def step(gradients: list[Any]) -> None:
            super(_Combining, self).apply(gradients, chosen_ones)  # type: ignore[misc]
            for total in sums:
                total.assign(keras.ops.zeros(total.shape, dtype=total.dtype))

        totals = [keras.ops.convert_to_tensor(total) * self._ronde.share for total in sums]
        now = keras.ops.equal(self._ronde_count, 0)
        backend.take_turn(now, totals, combine, step, [*chosen_ones, *given.variables])


class _LossScaling(_Combining):
    """A LossScaleOptimizer combines gradients before it looks whether they are finite: all ranks see the same."""

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """As Keras's, of combined gradients."""
        given: Any = self
        combined = self._ronde.combine(chosen(), grads, given._trainable_variables)
        return super().stateless_apply(optimizer_variables, combined, trainable_variables)  # type: ignore[misc]
