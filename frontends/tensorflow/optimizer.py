"""DistributedOptimizer: an optimizer of `tf.compat.v1.train` whose gradients are combined over the ranks."""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from collectives.process_sets import ProcessSet, global_process_set
from frontends.horovod.names import Average
from frontends.tensorflow.aggregation import Aggregation
from frontends.tensorflow.compression import Compression, Compressor
from frontends.tensorflow.ops import as_it_is
from frontends.tensorflow.reducing import Groups, Reducer
from frontends.tensorflow.tape import variables_of


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Combines what `compute_gradients` of another optimizer gives."""

    def __init__(
        self, optimizer: Any, name: str, use_locking: bool, reducer: Reducer, aggregation: Aggregation | None
    ) -> None:
        super().__init__(use_locking=use_locking, name=name)
        self._optimizer = optimizer
        self._reducer = reducer
        self._aggregation = aggregation

    def register_local_var(self, variable: Any) -> None:
        """The gradient of a variable is not combined, but this rank's own."""
        self._reducer.register_local_source(variable)

    @as_it_is
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As the other optimizer's, then combined over the ranks. Raises as allreduce."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if self._aggregation is None:
            reduced = self._reducer.reduce(gradients, variables)
        else:
            present = [variable for gradient, variable in pairs if gradient is not None]
            reduced = self._aggregation.add(gradients, lambda totals: self._reducer.reduce(totals, present))
        return list(zip(reduced, variables, strict=True))

    @as_it_is
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """As the other optimizer's; with backward_passes_per_step in every so many passes only."""
        if self._aggregation is None:
            return self._optimizer.apply_gradients(grads_and_vars, global_step, name)
        pairs = list(grads_and_vars)
        return self._aggregation.apply(lambda: self._optimizer.apply_gradients(pairs, global_step, name))

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
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that applies gradients combined over the ranks.

    optimizer                     of `tf.compat.v1.train`, eager or in a graph; one of Keras becomes
                                  frontends.keras.DistributedOptimizer with the same arguments
    compression                   Compression.none, .fp16, .bf16, or any with their two functions
    sparse_as_dense               make IndexedSlices dense before they are combined
    backward_passes_per_step      gradients of so many passes add up (IndexedSlices as dense ones) before they are
                                  combined and applied; other passes change nothing, nor the global step
    average_aggregated_gradients  divide these sums by the number of passes
    op                            Average, Sum, Adasum (of the gradients), Min, Max, Product
    gradient_predivide_factor     Average divides by it before the sum and by size / it after
    groups                        lists of variables whose gradients travel together, or how many such groups to make
    num_groups                    the same, as an int; deprecated
    scale_local_gradients         divide the gradients of local variables by the number of ranks

    Raises ValueError for bad arguments, TypeError for something that is no optimizer.
    """
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step!r}: must be 1 or more")
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _of_keras(
            "DistributedOptimizer",
            optimizer,
            name=name,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            average_aggregated_gradients=average_aggregated_gradients,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    label = name or f"Distributed{type(optimizer).__name__}"
    reducer = Reducer(
        f"{label}_Allreduce",
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    several = backward_passes_per_step > 1
    aggregation = Aggregation(backward_passes_per_step, average_aggregated_gradients) if several else None
    return _DistributedOptimizer(optimizer, label, use_locking, reducer, aggregation)


def PartialDistributedOptimizer(optimizer: Any, *, local_layers: Any = None, **options: Any) -> Any:
    """DistributedOptimizer, with its arguments, that leaves out the variables of some layers: each rank has its own.

    local_layers   a Keras layer or several
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _of_keras("PartialDistributedOptimizer", optimizer, local_layers=local_layers, **options)
    distributed = DistributedOptimizer(optimizer, **options)
    for variable in variables_of(local_layers):
        distributed.register_local_var(variable)
    return distributed


def _of_keras(kind: str, optimizer: Any, **options: Any) -> Any:
    """What frontends.keras has by a name, made for a Keras optimizer."""
    keras = importlib.import_module("keras")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"optimizer: must be of tf.compat.v1.train or of Keras, not {type(optimizer).__name__}")
    return getattr(importlib.import_module("frontends.keras"), kind)(optimizer, **options)
