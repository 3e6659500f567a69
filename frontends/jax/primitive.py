"""The JAX primitive of all collectives: tracing, order, lowering and derivatives.

It has an ordered effect: JAX passes a token through all calls, within a program in the order of tracing, and from one
program to the next in the order of the programs' calls. So one call is in flight at a time, and ranks that run the same
program cannot deadlock. https://docs.jax.dev/en/latest/jep/10657-sequencing-effects.html
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core, dispatch, effects  # an ordered effect of one's own cannot be had otherwise
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from frontends.horovod import root_in
from frontends.jax.call_sites import CallSite
from frontends.jax.handler import TARGET, path
from frontends.jax.requests import Request, perform


class _RondeEffect(effects.Effect):  # type: ignore[misc]
    """Effect that makes JAX keep the order of calls."""

    def __repr__(self) -> str:
        return "calls of Ronde"


EFFECT: Final = _RondeEffect()
"""The effect of all of Ronde's calls."""

for _kind in (
    effects.ordered_effects,
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _kind.add_type(_RondeEffect)

_IN_PLACE: Final = ("allreduce", "broadcast", "compressed")
"""The operations that work in the operands' memory within a program, where XLA knows if these are needed later."""

COLLECTIVE: Final = Primitive("ronde")
"""All operations; programs.py implements them outside of programs."""
COLLECTIVE.multiple_results = True


def bind(request: Request, *arrays: jax.Array) -> list[jax.Array]:
    """Return the results of a request, one for each array. In a trace it becomes part of the program."""
    return list(COLLECTIVE.bind(*arrays, request=request, path=path(), in_place=request.kind in _IN_PLACE))


def settle() -> None:
    """Wait for all calls of this thread.

    Raises JaxRuntimeError if one has failed. An error stays in the token that orders the thread's calls, and fails all
    later ones; `settle` removes it.
    """
    try:
        jax.effects_barrier()
    finally:
        dispatch.runtime_tokens.clear()


def begin_anew() -> None:
    """Forget the calls that have failed, and all compiled functions: rank and size are constants in them."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # that of a call before
        settle()
    jax.clear_caches()


def _trace(*arrays: Any, request: Request, path: str, in_place: bool) -> tuple[list[Any], set[Any]]:
    return [core.ShapedArray(request.result(array.shape), array.dtype) for array in arrays], {EFFECT}


COLLECTIVE.def_effectful_abstract_eval(_trace)


# lowering


def _lower(ctx: Any, *operands: Any, request: Request, path: str, in_place: bool) -> Sequence[Any]:
    token = ctx.tokens_in.get(EFFECT)
    lower = _lower_call if path == "ffi" else _lower_callback
    token, results = lower(ctx, token, operands, request, in_place)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({EFFECT: token})))
    return results


def _lower_call(
    ctx: Any, token: Any, operands: Sequence[Any], request: Request, in_place: bool
) -> tuple[Any, Sequence[Any]]:
    """Lower to a call of the handler, with the token as first operand and result."""
    aliases = {index: index for index, one in enumerate(operands, 1) if in_place and not _is_kept(one)}
    lower = jax.ffi.ffi_lowering(TARGET, has_side_effect=True, operand_output_aliases=aliases)
    avals_in, avals_out = [core.abstract_token, *ctx.avals_in], [core.abstract_token, *ctx.avals_out]
    around = ctx.replace(avals_in=avals_in, avals_out=avals_out)
    site = CallSite(
        request, *([(aval.shape, aval.dtype.name) for aval in avals] for avals in (ctx.avals_in, ctx.avals_out))
    )
    token, *results = lower(around, token, *operands, call=site.encode())
    return token, results


def _is_kept(operand: Any) -> bool:
    """True for an argument of the program that is not donated: XLA would copy it before an in-place operation."""
    owner = operand.owner
    around = owner.owner.attributes if isinstance(owner, mlir.ir.Block) else {}
    if "sym_name" not in around or mlir.ir.StringAttr(around["sym_name"]).value != "main":
        return False  # a result of a program or a loop, or an argument of a function in it
    marks = around["arg_attrs"][operand.arg_number] if "arg_attrs" in around else {}
    return "jax.buffer_donor" not in marks and "tf.aliasing_output" not in marks


def _lower_callback(
    ctx: Any, token: Any, operands: Sequence[Any], request: Request, in_place: bool
) -> tuple[Any, Sequence[Any]]:
    """Lower like `io_callback(ordered=True)`, with Ronde's token."""
    shapes = [(aval.shape, aval.dtype) for aval in ctx.avals_out]

    def call(*arrays: Any) -> tuple[Any, ...]:
        targets = [np.empty(shape, dtype) for shape, dtype in shapes]
        perform(request, [np.asarray(array) for array in arrays], targets)
        return tuple(targets)

    results, token, _ = mlir.emit_python_callback(
        ctx, call, token, list(operands), ctx.avals_in, ctx.avals_out, has_side_effect=True, returns_token=True
    )
    return token, results


def _lower_elsewhere(ctx: Any, *operands: Any, request: Request, **_: Any) -> NoReturn:
    raise NotImplementedError(
        f"{request.kind}: compiled programs can call Ronde on the CPU only, not on {ctx.module_context.platforms}. "
        "Outside of jit, ronde.allreduce takes arrays on a GPU by DLPack; or set JAX_PLATFORMS=cpu"
    )


mlir.register_lowering(COLLECTIVE, _lower_elsewhere)
mlir.register_lowering(COLLECTIVE, _lower, platform="cpu", cacheable=False)


# derivatives


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, request: Request, path: str, in_place: bool
) -> tuple[list[Any], list[Any]]:
    if request.op not in ("sum", "average"):
        raise NotImplementedError(f"op={request.op!r}: has no derivative here; only sum and average have")
    results = COLLECTIVE.bind(*primals, request=request, path=path, in_place=in_place)
    own = [jnp.issubdtype(primal.dtype, jnp.inexact) for primal in primals]
    given = [ad.instantiate_zeros(tangent) for tangent, one in zip(tangents, own, strict=True) if one]
    changed = iter(bind(_unnamed(request), *given) if given else ())
    return results, [
        next(changed) if one else ad.Zero(core.typeof(result).to_tangent_aval())
        for result, one in zip(results, own, strict=True)
    ]


def _transpose(
    cotangents: Sequence[Any], *operands: Any, request: Request, path: str, in_place: bool
) -> list[jax.Array | None]:
    given = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    shapes = [operand.aval.shape if ad.is_undefined_primal(operand) else operand.shape for operand in operands]
    back = _back(_unnamed(request), given, shapes)
    return [one if ad.is_undefined_primal(operand) else None for one, operand in zip(back, operands, strict=True)]


def _back(request: Request, given: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[jax.Array]:
    """Return the gradients of the operands, as Horovod defines them; docs/jax.md has the table.

    shapes   of the operands
    """
    match request.kind:
        case "allreduce":
            return bind(request, *given)
        case "broadcast":
            reduced = bind(_average(request), *given)
            root = root_in(request.process_set, request.root)
            return reduced if request.rank == root else [jnp.zeros_like(one) for one in reduced]
        case "allgather":
            reduced = bind(_average(request), *given)
            return [
                jax.lax.dynamic_slice_in_dim(whole, _first_row(request, shape), (shape or (1,))[0]).reshape(shape)
                for whole, shape in zip(reduced, shapes, strict=True)
            ]
        case "reducescatter":
            return _gather(request, given, shapes)
    assert request.kind == "alltoall"
    table = request.table
    back = None if table is None else tuple(zip(*table, strict=True))
    return bind(replace(request, table=back), *given)


def _gather(request: Request, given: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[jax.Array]:
    """Gradient of a reduce_scatter: the allgather of all gradients, times the number of ranks for a sum."""
    factor = request.prescale * request.postscale * (request.size if request.op == "sum" else 1)
    results = []
    for one, shape in zip(given, shapes, strict=True):
        least, more = divmod(shape[0], request.size)
        rows = tuple(least + (rank < more) for rank in range(request.size))
        how = Request("allgather", None, request.ranks, size=request.size, rank=request.rank, rows=rows)
        results.append(bind(how, one)[0] * jnp.asarray(factor, one.dtype))
    return results


def _first_row(request: Request, shape: tuple[int, ...]) -> int:
    own = (shape or (1,))[0]
    return request.rank * own if request.rows is None else sum(request.rows[: request.rank])


def _average(request: Request) -> Request:
    return Request("allreduce", None, request.ranks, "average", size=request.size, rank=request.rank)


def _unnamed(request: Request) -> Request:
    """Return the request of a derivative: without name and compression, which belong to the operation itself."""
    return replace(request, name=None, kind="allreduce" if request.kind == "compressed" else request.kind)


ad.primitive_jvps[COLLECTIVE] = _differentiate
ad.primitive_transposes[COLLECTIVE] = _transpose


# vmap


def _batch(
    operands: Sequence[Any], axes: Sequence[int | None], *, request: Request, path: str, in_place: bool
) -> tuple[list[jax.Array], list[int | None]]:
    """One operation on the arrays of all members of the batch. Rows are of the first axis, so the batch is the second
    one where rows are counted."""
    if request.op == "adasum" or request.kind == "compressed":
        what = "Adasum" if request.op == "adasum" else "a compression with loss"
        raise NotImplementedError(
            f"allreduce: {what} takes an array as a whole, not its members within vmap; call it on the batched "
            "array, outside of vmap"
        )
    if request.kind in ("allreduce", "broadcast"):
        return COLLECTIVE.bind(*operands, request=request, path=path, in_place=in_place), list(axes)
    moved = [
        one if axis is None else _second(jnp.moveaxis(one, axis, 0)) for one, axis in zip(operands, axes, strict=True)
    ]
    results = COLLECTIVE.bind(*moved, request=request, path=path, in_place=in_place)
    return results, [None if axis is None else 1 for axis in axes]


def _second(batched: jax.Array) -> jax.Array:
    """Move the first axis behind that of rows; a number has one row."""
    return batched[None] if batched.ndim == 1 else jnp.moveaxis(batched, 0, 1)


batching.primitive_batchers[COLLECTIVE] = _batch
