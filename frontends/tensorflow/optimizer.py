"""DistributedOptimizer: an optimizer of `tf.compat.v1.train` whose gradients are combined over the ranks."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from collectives import OpName, ProcessSet, global_process_set
from frontends.horovod import AnyCompression, Average, check_passes
from frontends.tensorflow.reducing import Groups, Reducer
from frontends.tensorflow.tape import variables_of
from frontends.tensorflow_ops import Aggregation, Compression, no_autograph


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Combines the gradients of another optimizer's `compute_gradients`."""

    def __init__(
        self, optimizer: Any, name: str, use_locking: bool, reducer: Reducer, aggregation: Aggregation | None
    ) -> None:
        super().__init__(use_locking=use_locking, name=name)
        self._optimizer = optimizer
        self._reducer = reducer
        self._aggregation = aggregation

    def register_local_var(self, variable: Any) -> None:
        """Do not combine the gradient of a variable."""
        self._reducer.register_local_source(variable)

    @no_autograph
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The other optimizer's gradients, combined over the ranks. Raises as allreduce."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if self._aggregation is None:
            reduced = self._reducer.reduce(gradients, variables)
        else:
            reduced = self._reducer.reduce_sums(self._aggregation, gradients, variables)
        return list(zip(reduced, variables, strict=True))

    @no_autograph
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """The other optimizer's method; with several passes per step, in the last pass only."""
        if self._aggregation is None:
            return self._optimizer.apply_gradients(grads_and_vars, global_step, name)
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        return self._aggregation.apply(lambda: self._optimizer.apply_gradients(pairs, global_step, name), variables)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The other optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The other optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The other optimizer's."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: OpName = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer that applies gradients combined over the ranks.

    optimizer                     of `tf.compat.v1.train`, eager or in a graph. For a Keras optimizer the result is
                                  ronde.keras.DistributedOptimizer with the same arguments
    compression                   Compression.none, .fp16, .bf16, any Compressor, or with loss and a memory of its own
                                  Compression.int8(), .topk(0.01), .powersgd(2), one for each optimizer
    sparse_as_dense               make IndexedSlices dense before they are combined
    backward_passes_per_step      number of passes whose gradients are summed (IndexedSlices as dense tensors) before
                                  they are combined and applied; other passes change neither variables nor the global
                                  step
    average_aggregated_gradients  divide these sums by backward_passes_per_step
    op                            Average, Sum, Adasum (of the gradients), Min, Max, Product
    gradient_predivide_factor     Average divides by it before the sum and by size / it after
    groups                        lists of variables whose gradients travel together, or the number of such groups
    num_groups                    the same, as an int; deprecated
    scale_local_gradients         divide the gradients of local variables by the number of ranks
    device_dense, device_sparse   accepted for Horovod's sake and ignored

    Raises ValueError for bad arguments, TypeError for an object that is not an optimizer.
    """
    options = dict(locals())
    check_passes(backward_passes_per_step)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        del options["use_locking"]
        return _keras_for(optimizer).DistributedOptimizer(**options)
    label = name or f"Distributed{type(optimizer).__name__}"
    scaling = gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients
    passes = backward_passes_per_step, average_aggregated_gradients
    reducer = Reducer(f"{label}_Allreduce", compression, sparse_as_dense, op, *scaling, *passes)
    aggregation = Aggregation(*passes) if backward_passes_per_step > 1 else None
    return _DistributedOptimizer(optimizer, label, use_locking, reducer, aggregation)


def PartialDistributedOptimizer(optimizer: Any, *, local_layers: Any = None, **options: Any) -> Any:
    """DistributedOptimizer, with its arguments, that does not combine the gradients of `local_layers`.

    local_layers   a Keras layer, or several
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _keras_for(optimizer).PartialDistributedOptimizer(optimizer, local_layers=local_layers, **options)
    distributed = DistributedOptimizer(optimizer, **options)
    for variable in variables_of(local_layers):
        distributed.register_local_var(variable)
    return distributed


def _keras_for(optimizer: Any) -> ModuleType:
    """Import and return frontends.keras for an optimizer of Keras. Raises TypeError for another object."""
    if not hasattr(optimizer, "apply_gradients"):
        raise TypeError(f"optimizer: must be of tf.compat.v1.train or of Keras, not {type(optimizer).__name__}")
    from frontends import keras  # many programs of TensorFlow have no Keras model

    return keras
