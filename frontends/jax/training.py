"""Training: broadcast of parameters, and an optax optimizer that combines gradients over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from collectives import OpName, ProcessSet, global_process_set
from collectives.arrays import type_name
from frontends.horovod import (
    DENSE,
    MISSING,
    VALUE,
    Fact,
    broadcast_object,
    check_number,
    check_passes,
    check_process_set,
    choose_op,
    is_lossy,
    numberless,
    option_facts,
    root_in,
    title_of,
)
from frontends.jax.compression import AnyCompression, Compression
from frontends.jax.ops import allreduce_gradients, broadcast_parts, is_sparse
from frontends.jax.primitive import settle

if TYPE_CHECKING:
    import optax


def broadcast_parameters(params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the tree of `root_rank`, a rank of the world, as one operation: parameters, optimizer state, random keys.

    Python's numbers stay Python's, and NumPy's integers of 64 bits NumPy's while JAX has none (`jax_enable_x64`). Other
    leaves that are not arrays are returned unchanged. JAX arrays are immutable: use the returned tree. Raises
    ValueError for a bad root; JaxRuntimeError on every rank if the trees differ in keys, shape or type.
    """
    root_in(process_set, root_rank)
    named, tree = jax.tree_util.tree_flatten_with_path(params)
    leaves = [leaf for _, leaf in named]
    objects = [index for index, leaf in enumerate(leaves) if _is_object(leaf)]
    places = [
        index
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, jax.Array | np.ndarray | np.generic) and not _is_object(leaf)
    ]
    keys = {index: leaves[index] for index in places if jnp.issubdtype(leaves[index].dtype, jax.dtypes.prng_key)}
    given = [jax.random.key_data(leaves[index]) if index in keys else leaves[index] for index in places]
    arrays = dict(zip(places, given, strict=True))
    facts = [
        _fact(named[index][0], arrays[index])._replace(kind=VALUE)
        if index in arrays
        else _object_fact(named[index][0], leaves[index])
        for index in sorted([*places, *objects])
    ]
    if facts:
        for index, found in zip(places, broadcast_parts(given, facts, root_rank, process_set), strict=True):
            if index in keys:
                found = jax.random.wrap_key_data(found, impl=jax.random.key_impl(keys[index]))
            leaves[index] = found
    if objects:
        settle()  # raises if the trees differ: then ranks may have no objects, or others
        held = broadcast_object([leaves[index] for index in objects], root_rank, None, process_set)
        for index, value in zip(objects, held, strict=True):
            leaves[index] = value
    return jax.tree_util.tree_unflatten(tree, leaves)


def _is_object(leaf: Any) -> bool:
    """True for a number of Python, and for integers that JAX would cut to 32 bits."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in "iu" and bool(jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype)
    return type(leaf) in (bool, int, float, complex)


def _object_fact(path: Any, leaf: Any) -> Fact:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    form = f"{leaf.shape} {leaf.dtype.name}" if isinstance(leaf, np.ndarray | np.generic) else "a number of Python"
    return Fact(name, numberless(name), form, VALUE)


def distributed(
    optimizer: optax.GradientTransformation,
    op: OpName | None = None,
    compression: AnyCompression = Compression.none,
    process_set: ProcessSet = global_process_set,
    backward_passes_per_step: int = 1,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> optax.GradientTransformationExtraArgs:
    """Return an optax optimizer whose `update` combines the gradients of all ranks, as one operation, before
    `optimizer`.

    op                         Average by default; Sum, Adasum
    compression                type in which gradients travel: Compression.none, .fp16, .bf16; with loss and a memory of
                               its own: Compression.int8(), .topk(0.01), .powersgd(2), one for each optimizer, which
                               then serves one tree of parameters
    backward_passes_per_step   number of this rank's gradients that are averaged before they are combined and a step is
                               taken (optax.MultiSteps); `update` returns zeros before that

    Gradients are matched by their places in the tree; a sparse one is made dense. If ranks have different gradients, or
    None in other places, JaxRuntimeError names them on every rank.

    An optimizer that clips by global norm clips the combined gradients, and one that skips steps, such as
    optax.apply_if_finite, decides by them; around `distributed` it would decide on each rank alone. The state is the
    optimizer's own, so checkpoints fit with and without `distributed`. Raises ValueError for a bad argument; otherwise
    as `allreduce`.
    """
    import optax

    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        text = f"must be an optimizer of optax, such as optax.sgd(0.1), not {type_name(optimizer)}"
        raise TypeError(f"optimizer={optimizer!r:.60}: {text}")
    op = choose_op(op)
    check_passes(backward_passes_per_step)
    check_process_set(process_set)
    scales = (
        check_number(prescale_factor, "prescale_factor"),
        check_number(postscale_factor, "postscale_factor"),
    )
    if is_lossy(compression):
        compression.check(op, *scales)
    inner = optax.with_extra_args_support(optimizer)
    arguments = option_facts(
        op=op, compression=title_of(compression), scales=scales, backward_passes_per_step=backward_passes_per_step
    )

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        found, tree = jax.tree_util.tree_flatten_with_path(gradients, is_leaf=_is_gradient)
        leaves = [leaf.todense() if is_sparse(leaf) else leaf for _, leaf in found]
        facts = [_fact(path, leaf) for (path, _), leaf in zip(found, leaves, strict=True)]
        given = [leaf for leaf in leaves if leaf is not None]
        kept = [fact.name or "gradient" for fact in facts if fact.kind != MISSING]  # a bare array has no path
        if is_lossy(compression):
            compression.belong_to(kept, [update] * len(kept))
        told = [*arguments, *facts]
        reduced = iter(allreduce_gradients(given, told, kept, "optax", op, None, *scales, process_set, compression))
        combined = tree.unflatten([None if leaf is None else next(reduced) for leaf in leaves])
        return inner.update(combined, state, params, **extra)  # type: ignore[no-any-return]

    result = optax.GradientTransformationExtraArgs(inner.init, update)
    if backward_passes_per_step == 1:
        return result
    return optax.MultiSteps(result, backward_passes_per_step).gradient_transformation()


def _is_gradient(leaf: Any) -> bool:
    return leaf is None or is_sparse(leaf)


def _fact(path: Any, leaf: Any) -> Fact:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if leaf is None:
        return Fact(name, numberless(name), "", MISSING)
    try:
        form = f"{jnp.shape(leaf)} {jnp.result_type(leaf).name}"
    except TypeError as error:
        raise TypeError(f"{name!r}: must be an array of numbers, not {leaf!r:.60}") from error
    return Fact(name, numberless(name), form, DENSE)
