"""DistributedOptimizer: a Keras optimizer that combines gradients over the ranks before it applies them.

The optimizer's class is subclassed, so it is still an instance of its class for Keras and the user, and is saved as
such. All gradients of a step travel as one operation with one name and one wait, so neither the order of a graph's
operations nor the order of variables can cause a deadlock.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import keras

from collectives import OpName, ProcessSet, global_process_set
from collectives.arrays import type_name
from frontends.horovod import (
    DENSE,
    MISSING,
    SPARSE,
    Average,
    ErrorFeedback,
    Fact,
    Reduction,
    Sum,
    check_groups,
    check_name,
    check_passes,
    check_process_set,
    is_lossy,
    numberless,
    option_facts,
    predivided,
    title_of,
)
from frontends.keras.backends import Backend, ReductionOptions, chosen
from frontends.keras.compression import AnyCompression, Compression
from frontends.keras.library import LEGACY, OPTIMIZERS, library, refuse_loss_scaling

_NOT_IN_THE_CONFIGURATION: Final = {"_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"}
"""The attributes that `exclude_from_weight_decay` sets; Keras has no other way to read them."""

Groups: TypeAlias = int | Sequence[Sequence[Any]] | None


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: OpName = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a new optimizer of the same class, options and state whose `apply` combines gradients over the ranks.

    name                          name of its operations, by default made of class and shapes. Needed only if several
                                  optimizers work at the same time on variables of the same shapes
    compression                   Compression.none, .fp16, .bf16, any Compressor, or with loss and a memory of its own
                                  Compression.int8(), .topk(0.01), .powersgd(2), one for each optimizer; applies to
                                  dense gradients
    sparse_as_dense               make TensorFlow's IndexedSlices dense before they are combined
    gradient_predivide_factor     Average divides by it before the sum and by size / it after
    op                            Average or Sum
    groups, num_groups            checked and then ignored: all gradients always travel together
    backward_passes_per_step      number of calls of `apply` whose gradients are summed before they are combined and
                                  applied
    average_aggregated_gradients  divide these sums by backward_passes_per_step
    scale_local_gradients         divide gradients of variables passed to `register_local_var` by the size
    device_dense, device_sparse   accepted for Horovod's sake and ignored

    With a global policy of mixed_float16 the optimizer is wrapped in a LossScaleOptimizer, as model.compile does, so
    that the ranks agree on the steps to skip.

    Raises TypeError for an object that is not a Keras optimizer, ValueError for bad options.
    """
    if not isinstance(optimizer, OPTIMIZERS):
        kinds = "tf-keras optimizer, because TF_USE_LEGACY_KERAS is set" if LEGACY else "Keras optimizer"
        raise TypeError(f"optimizer: must be a {kinds}, not {type(optimizer).__name__}")
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r}: must be Average or Sum")
    before, after = predivided(op, gradient_predivide_factor)
    if is_lossy(compression):
        compression.check(op, gradient_predivide_factor, 1.0)
    check_passes(backward_passes_per_step)
    check_process_set(process_set)
    check_name(name)
    check_groups(num_groups, "num_groups")
    check_groups(groups)
    if num_groups:
        warnings.warn("num_groups: deprecated, use groups", DeprecationWarning, stacklevel=2)
    settings = _Settings(
        name=name or f"Distributed{type(optimizer).__name__}",
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
        local=set(optimizer._ronde.local) if isinstance(optimizer, _Combining) else set(),
    )
    if LEGACY:
        return _distribute_tf_keras(optimizer, settings)
    scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    fresh = _copy(optimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scales_loss:
        fresh, scales_loss = keras.optimizers.LossScaleOptimizer(fresh), True
    if scales_loss and backward_passes_per_step > 1:
        raise ValueError("backward_passes_per_step: cannot be more than 1 with a LossScaleOptimizer")
    return distribute(fresh, settings)


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: OpName = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    local_layers: keras.layers.Layer | Sequence[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedOptimizer that does not combine the gradients of `local_layers`. The layers must be built.

    Raises as DistributedOptimizer; TypeError for what is no layer, ValueError for a layer without variables.
    """
    options = dict(locals())
    del options["local_layers"]
    distributed = DistributedOptimizer(**options)
    given = local_layers or ()
    layers = [given] if isinstance(given, library.layers.Layer) or not isinstance(given, Iterable) else list(given)
    for layer in layers:
        if not isinstance(layer, library.layers.Layer):
            raise TypeError(f"local_layers: must be Keras layers, not {type_name(layer)}")
        if not layer.built:
            raise ValueError(f"local_layers: {layer.name} has no variables yet; build the model before")
        for variable in layer.variables:  # also of a layer that is unfrozen later
            distributed.register_local_var(variable)
    return distributed


@dataclass(frozen=True)
class _Settings:
    """Options of a DistributedOptimizer, and the combination of gradients that follows from them."""

    name: str
    compression: AnyCompression
    sparse_as_dense: bool
    op: OpName
    prescale: float
    postscale: float
    passes: int
    share: float
    process_set: ProcessSet
    scales_local: bool
    named: bool
    local: set[int] = field(default_factory=set)
    """The ids of the variables whose gradients stay in their rank."""
    kept: dict[int, str] = field(default_factory=dict)
    """By the ids of the variables, the names of their gradients in the memory of a lossy compression."""

    def combine(
        self, backend: Backend, gradients: Sequence[Any], variables: Sequence[Any], reserved: str | None = None
    ) -> list[Any]:
        """Return the gradients combined over all ranks, in the same order; None stays None.

        reserved   name of the agreement, of `backend.reserve`, in a conditional step

        Raises as `backend.combine` if the ranks have different gradients, or list variables in different orders.
        """
        result = list(gradients)
        if backend.alone(self.process_set):
            return result
        lossy = self.compression if isinstance(self.compression, ErrorFeedback) else None
        chosen, contexts, tensors = [], [], []
        facts = option_facts(
            op=self.op,
            factors=(self.prescale, self.postscale),
            compression=title_of(self.compression),
            backward_passes_per_step=self.passes,
            average_aggregated_gradients=self.share != 1.0,
        )
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if id(variable) in self.local:
                if self.scales_local and gradient is not None:
                    result[index] = backend.divided(gradient, self.process_set)
                continue
            if gradient is None:
                facts.append(_fact(variable, MISSING))
                continue
            sparse = isinstance(gradient, backend.SPARSE) and not self.sparse_as_dense
            facts.append(_fact(variable, SPARSE if sparse else DENSE))
            tensor, context = (gradient if not self.sparse_as_dense else backend.dense(gradient)), None
            if not isinstance(tensor, backend.SPARSE):
                tensor = backend.dense(tensor)
                if lossy is None:
                    tensor, context = self.compression.compress(tensor)
            chosen.append(index)
            contexts.append(context)
            tensors.append(tensor)
        label = self._label(variables)
        how = Reduction(self.op, label, self.prescale, self.postscale, self.process_set)
        memory: list[str] = []
        if lossy is not None:
            for variable in variables:  # numbered on all ranks as the optimizer sees them first
                self.kept.setdefault(id(variable), f"{label}.{len(self.kept)}")
            lossy.belong_to([self.kept[id(variable)] for variable in variables], variables)
            memory = [self.kept[id(variables[index])] for index in chosen]
        given = ReductionOptions(how, reserved or self.name, facts, memory, lossy, reserved is not None)
        for index, context, tensor in zip(chosen, contexts, backend.combine(tensors, given), strict=True):
            whole = lossy is not None or isinstance(tensor, backend.SPARSE)
            result[index] = tensor if whole else self.compression.decompress(tensor, context)
        return result

    def _label(self, variables: Sequence[Any]) -> str:
        """Return the name of the operation, made of the variables' shapes.

        Names that Keras numbers would differ between ranks that have made different numbers of layers before, for
        example because only one of them loaded a model.
        """
        if self.named:
            return self.name
        shapes = [(tuple(variable.shape), keras.backend.standardize_dtype(variable.dtype)) for variable in variables]
        return f"{self.name}.{zlib.crc32(repr(shapes).encode()):08x}"


def _fact(variable: Any, kind: int) -> Fact:
    name = str(getattr(variable, "path", variable.name))
    form = f"{tuple(variable.shape)} {keras.backend.standardize_dtype(variable.dtype)}"
    own = "/".join(name.split("/")[-2:])  # a model that was loaded has another path in front of its layers
    return Fact(name, numberless(own), form, kind)


def _distribute_tf_keras(optimizer: Any, settings: _Settings) -> Any:
    from frontends.keras.tf_keras_optimizer import distribute

    backend = chosen()

    def combine(gradients: Sequence[Any], variables: Sequence[Any], reserved: str | None) -> list[Any]:
        return settings.combine(backend, gradients, variables, reserved)

    return distribute(optimizer, combine, settings.name, settings.local, settings.passes, settings.share != 1.0)


def distribute(optimizer: Any, settings: _Settings) -> Any:
    """Make an optimizer combine gradients, in place, by changing its class."""
    kind = type(optimizer)
    base = _LossScaling if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else _Combining
    title = keras.saving.get_registered_name(kind)  # by which Keras saves an object and finds its class when loading
    made: Any = type(title, (base, kind), {"__module__": kind.__module__})
    made._attach(settings)
    optimizer.__class__ = made
    if optimizer.built:
        optimizer._add_sums(optimizer._trainable_variables)
    return optimizer


def _copy(optimizer: Any) -> Any:
    """Return an optimizer of the same class, options and state, for the same variables."""
    kind = type(optimizer)
    if isinstance(optimizer, _Combining):
        kind = kind.__bases__[1]
    config = optimizer.get_config()
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        del config["inner_optimizer"]
        fresh = kind(_copy(optimizer.inner_optimizer), **config)
    else:
        if "learning_rate" in config and not isinstance(optimizer._learning_rate, keras.Variable):
            config["learning_rate"] = optimizer._learning_rate  # not all functions can be made of a configuration
        fresh = kind.from_config(config)
        for name in _NOT_IN_THE_CONFIGURATION & vars(optimizer).keys():
            setattr(fresh, name, getattr(optimizer, name))
    if optimizer.built:
        fresh.build(optimizer._trainable_variables)
    for new, old in zip(fresh.variables, optimizer.variables, strict=False):
        new.assign(old)
    return fresh


class _Combining:
    """The methods by which an optimizer combines gradients. `distribute` makes a class of it and of the user's
    class."""

    _ronde: _Settings

    @classmethod
    def _attach(cls, settings: _Settings) -> None:
        """Set them for the class: then its `from_config` makes optimizers that combine gradients, too."""
        cls._ronde = settings

    def __setattr__(self, name: str, value: Any) -> None:
        """A LossScaleOptimizer that is made of an optimizer takes its factor of the loss back."""
        if name == "loss_scale_factor" and value is None and name in vars(self):
            refuse_loss_scaling("loss_scale_factor=None")
        super().__setattr__(name, value)

    def register_local_var(self, var: Any) -> None:
        """Do not combine the gradient of a variable."""
        self._ronde.local.add(id(var))

    def build(self, variables: Sequence[Any]) -> None:
        """Create the optimizer's variables."""
        given: Any = self
        if not given.built:
            super().build(variables)  # type: ignore[misc]
            self._add_sums(variables)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Combine the gradients and apply them; with several passes per step, after the last pass only.

        Raises HorovodInternalError.
        """
        given: Any = self
        if trainable_variables is not None and not given.built:
            with keras.name_scope(given.name, caller=self):
                self.build(list(trainable_variables))
        variables = list(given._trainable_variables if trainable_variables is None else trainable_variables)
        backend = chosen()
        if self._ronde.passes == 1:
            super().apply(self._ronde.combine(backend, grads, variables), trainable_variables)  # type: ignore[misc]
        else:
            self._add_up(backend, grads, variables)

    def save_own_variables(self, store: Any) -> None:
        """Save the plain optimizer's variables. The sums of passes are left out, so that a file fits any setting."""
        for index, variable in enumerate(self._kept()):
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load variables saved by `save_own_variables` or by the plain optimizer. As Keras does, warn and load nothing
        if their number differs.
        """
        kept = self._kept()
        if len(store.keys()) != len(kept):
            text = f"the optimizer's state is not loaded: {len(store.keys())} variables for an optimizer of {len(kept)}"
            warnings.warn(text, stacklevel=2)
            return
        for index, variable in enumerate(kept):
            variable.assign(store[str(index)])

    def _add_sums(self, variables: Sequence[Any]) -> None:
        """Create the variables in which passes are summed, after all others."""
        if self._ronde.passes == 1:
            return
        given: Any = self
        self._ronde_sums = given.add_optimizer_variables(variables, "backward_passes")
        self._ronde_count = given.add_variable((), dtype="int32", name="backward_pass")
        self._ronde_used = set[int]()
        """The places of the variables that have a gradient in a pass of this step; in a graph, in any pass."""

    def _kept(self) -> list[Any]:
        given: Any = self
        extra = len(self._ronde_sums) + 1 if self._ronde.passes > 1 and given.built else 0
        variables: list[Any] = given.variables
        return variables[: len(variables) - extra]

    def _add_up(self, backend: Backend, grads: Sequence[Any], variables: list[Any]) -> None:
        given: Any = self
        for gradient, variable in zip(grads, variables, strict=True):
            if gradient is not None:
                place = given._get_variable_index(variable)
                self._ronde_sums[place].assign_add(backend.dense(gradient))
                self._ronde_used.add(place)
        used = sorted(self._ronde_used)
        sums, chosen_ones = [self._ronde_sums[place] for place in used], [given._trainable_variables[p] for p in used]
        self._ronde_count.assign(keras.ops.mod(self._ronde_count + 1, self._ronde.passes))

        name = backend.reserve(self._ronde.name)

        def combine(totals: list[Any]) -> list[Any]:
            return self._ronde.combine(backend, totals, chosen_ones, name)

        def step(gradients: list[Any]) -> None:
            super(_Combining, self).apply(gradients, chosen_ones)  # type: ignore[misc]
            for total in sums:
                total.assign(keras.ops.zeros(total.shape, dtype=total.dtype))

        totals = [keras.ops.convert_to_tensor(total) * self._ronde.share for total in sums]
        due = keras.ops.equal(self._ronde_count, 0)
        if backend.step_if(due, totals, combine, step, [*chosen_ones, *given.variables]):
            self._ronde_used.clear()


class _LossScaling(_Combining):
    """Combines gradients before the LossScaleOptimizer checks that they are finite, so that all ranks decide alike."""

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Keras's method, with combined gradients."""
        given: Any = self
        combined = self._ronde.combine(chosen(), grads, given._trainable_variables)
        return super().stateless_apply(optimizer_variables, combined, trainable_variables)  # type: ignore[misc]
