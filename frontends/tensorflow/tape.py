"""DistributedGradientTape: a tf.GradientTape whose gradients are combined over the ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from collectives import OpName, ProcessSet, global_process_set
from collectives.arrays import type_name
from frontends.horovod import AnyCompression, Average
from frontends.tensorflow.reducing import Groups, Reducer
from frontends.tensorflow_ops import Compression, no_autograph


class _DistributedTape:
    """The methods of a distributed tape. DistributedGradientTape makes a class of it and of the class of the user's
    tape."""

    def _attach(self, reducer: Reducer) -> None:
        self._reducer = reducer

    def register_local_source(self, source: Any) -> None:
        """Do not combine the gradient of a variable."""
        self._reducer.register_local_source(source)

    @no_autograph
    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False, **options: Any
    ) -> Any:
        """tf.GradientTape's gradients, combined over the ranks. Raises as allreduce.

        use_generic_names   match gradients by their positions in `sources`: for ranks whose variables have different
                            names, for example because only some of them have created another model before
        """
        gradients = super().gradient(target, sources, output_gradients, **options)  # type: ignore[misc]
        return self._combined(gradients, sources, use_generic_names)

    @no_autograph
    def jacobian(self, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        """tf.GradientTape's jacobians, combined as gradients are."""
        return self._combined(self._alone().jacobian(target, sources, *args, **options), sources)

    @no_autograph
    def batch_jacobian(self, target: Any, source: Any, *args: Any, **options: Any) -> Any:
        """tf.GradientTape's jacobians of the rows, combined as gradients are."""
        return self._combined(self._alone().batch_jacobian(target, source, *args, **options), source)

    def _alone(self) -> Any:
        """The tape as the user's class, with the same contents: its jacobians are many gradients in a loop, which are
        not to be combined one by one."""
        kind = type(self).__bases__[1]
        tape: Any = object.__new__(kind)
        tape.__dict__ = self.__dict__
        return tape

    def _combined(self, gradients: Any, sources: Any, use_generic_names: bool = False) -> Any:
        flat = self._reducer.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources), use_generic_names)
        return tf.nest.pack_sequence_as(gradients, flat)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    op: OpName = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Return `gradtape` with a `gradient` that combines over the ranks, eager and in functions.

    compression                Compression.none, .fp16, .bf16, any Compressor, or with loss and a memory of its own
                               Compression.int8(), .topk(0.01), .powersgd(2): make it once, not for each tape
    sparse_as_dense            make IndexedSlices dense before they are combined
    op                         Average, Sum, Adasum, Min, Max, Product
    gradient_predivide_factor  Average divides by it before the sum and by size / it after
    groups                     lists of variables whose gradients travel together, or the number of such groups
    num_groups                 the same, as an int; deprecated
    scale_local_gradients      divide the gradients of local sources (`register_local_source`) by the number of ranks
    device_dense, device_sparse  accepted for Horovod's sake and ignored

    Gradients are matched by the names of their variables, so ranks may list them in different orders. Variables of the
    same name must be listed in the same order by all ranks. `gradient` raises ValueError on every rank, with the name
    of the variable, if they are not, or if a gradient is missing, dense or sparse on some ranks only. Raises ValueError
    or TypeError for bad arguments.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"gradtape={gradtape!r:.60}: must be a tf.GradientTape, not {type_name(gradtape)}")
    kind = type(type(gradtape).__name__, (_DistributedTape, type(gradtape)), {})
    distributed: Any = object.__new__(kind)
    distributed.__dict__.update(gradtape.__dict__)
    scaling = gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients
    name = "DistributedGradientTape_Allreduce"
    distributed._attach(Reducer(name, compression, sparse_as_dense, op, *scaling))
    return distributed


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    op: OpName = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """DistributedGradientTape that does not combine the gradients of some layers.

    local_layers   a Keras layer, or several
    """
    options = dict(locals())
    del options["local_layers"]
    tape: Any = DistributedGradientTape(**options)
    for variable in variables_of(local_layers):
        tape.register_local_source(variable)
    return tape


def variables_of(layers: Any) -> list[Any]:
    """Return the variables of one layer or several, also those that are frozen: they may be unfrozen later.

    Raises TypeError for an object that is not a layer.
    """
    if layers is None:
        return []
    chosen = list(layers) if isinstance(layers, Iterable) else [layers]
    strange = [layer for layer in chosen if not hasattr(layer, "weights")]
    if strange:
        raise TypeError(f"local_layers: must be Keras layers, not {type(strange[0]).__name__}")
    return [variable for layer in chosen for variable in layer.weights]
