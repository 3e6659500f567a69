"""The average of gradients over the ranks, in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from collectives import ProcessSet
from frontends.horovod import (
    DENSE,
    MISSING,
    SPARSE,
    Average,
    Fact,
    Reduction,
    agree,
    alone_in,
    as_horovod,
    buckets,
    check_process_set,
    communicator_of,
    divided,
    is_lossy,
    numberless,
    option_facts,
    predivided,
    title_of,
)
from frontends.mxnet.compression import AnyCompression
from frontends.mxnet.tensors import LIBRARY, dtype_of


class GradientReduction:
    """Averages gradients while MXNet still computes others.

    compression   Compression.none, .fp16, .bf16, any Compressor, or with loss and a memory of its own
                  Compression.int8(), .topk(0.01), .powersgd(2)
    predivide     the sum is of gradients that are divided by it; the result is multiplied by it
    groups        number of groups that travel as one operation each; 0: as many as have about 25 MB
    process_set   ranks that average. Others keep their gradients

    Raises ValueError for a bad number, and for a lossy compression with `predivide`; TypeError for a bare compressor.
    """

    def __init__(self, compression: AnyCompression, predivide: float, groups: int, process_set: ProcessSet) -> None:
        if isinstance(groups, bool) or not isinstance(groups, int) or groups < 0:
            raise ValueError(f"num_groups={groups!r}: must be an int, 0 or more")
        check_process_set(process_set)
        if is_lossy(compression):
            compression.check(Average, predivide, 1.0)
        self._compression = compression
        self._factors = predivided(Average, predivide)
        self._groups = groups
        self._process_set = process_set

    def run(self, gradients: Sequence[tuple[str, str, Any]], stale: Collection[str] = ()) -> None:
        """Replace gradients by their averages. Collective in the process set.

        gradients   triples of a name by which the ranks match operations, the name of the parameter, and the gradient
                    or None, in the order of the layers. The backward pass ends with the first layer, so the last
                    gradients are waited for and sent first
        stale       names of gradients that no backward pass has computed since the last step

        Raises ValueError on every rank, before anything is changed, if the ranks have different gradients, TypeError
        for sparse ones, HorovodInternalError if a rank is lost; the gradients are undefined then.
        """
        if alone_in(self._process_set):
            return
        with as_horovod():
            given = option_facts(
                gradient_predivide_factor=self._factors[1],
                compression=title_of(self._compression),
                num_groups=self._groups,
            )
            facts = [*given, *(_fact(*gradient, gradient[0] in stale) for gradient in gradients)]
            agree(communicator_of(self._process_set), "gradients", facts)
        sparse = [fact.name for fact in facts if fact.kind == SPARSE]
        if sparse:
            raise TypeError(f"the gradients of {', '.join(sparse)} are sparse; must be dense: sparse_grad=False")
        order = [(name, gradient) for name, _, gradient in gradients if gradient is not None][::-1]
        if self._groups:
            groups = divided(order, self._groups)
        else:
            groups = buckets(order, (gradient.size * dtype_of(gradient).itemsize for _, gradient in order))
        begun = [self._begin(group) for group in groups]
        for finish in begun:
            finish()

    def _begin(self, group: Sequence[tuple[str, Any]]) -> Callable[[], None]:
        """Begin the operation of a group; the returned function ends it."""
        names, tensors = [name for name, _ in group], [tensor for _, tensor in group]
        label = names[0] if len(names) == 1 else f"{names[0]}:{names[-1]}"
        compression, how = self._compression, Reduction(Average, label, *self._factors, self._process_set)
        if is_lossy(compression):
            handle = LIBRARY.compressed(tensors, tensors, how, names, compression)
            return lambda: handle.synchronize() and None
        packed = [compression.compress(tensor) for tensor in tensors]
        sent = [tensor for tensor, _ in packed]
        handle = LIBRARY.grouped_allreduce(sent, sent, how)

        def finish() -> None:
            handle.synchronize()
            for tensor, (reduced, context) in zip(tensors, packed, strict=True):
                result = compression.decompress(reduced, context)
                if result is not tensor:
                    tensor[:] = result

        return finish


def _fact(name: str, parameter: str, gradient: Any, stale: bool) -> Fact:
    key = f"{name} {numberless(parameter)}"
    if gradient is None:
        return Fact(parameter, key, "", MISSING)
    kind = DENSE if getattr(gradient, "stype", "default") == "default" else SPARSE
    form = f"{tuple(gradient.shape)} {dtype_of(gradient).name}" + ", stale" * stale
    return Fact(parameter, key, form, kind)
