"""`jit` for programs that contain collectives, with the same dispatch time as other programs; and eager calls.

JAX dispatches a program with ordered effects in Python, in about 15 us for each argument and result. A program of this
`jit` has no such effect: it receives the token that orders calls as an argument and returns the next one as a result,
and orders its calls inside. The token is JAX's own, so programs of both kinds run in one order. Each eager call is such
a program.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, ParamSpec, TypeVar

import jax
import numpy as np
from jax._src import core, dispatch
from jax.extend.core import Jaxpr, Primitive
from jax.interpreters import mlir

from frontends.jax.primitive import COLLECTIVE, EFFECT

P = ParamSpec("P")
R = TypeVar("R")

_enclosed: Final = Primitive("ronde_program")
_enclosed.multiple_results = True
_passing: Final = Primitive("ronde_token")


def jit(
    function: Callable[P, R],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
) -> Callable[P, R]:
    """`jax.jit` with less time per call, above all with many arrays; for the outermost function of a training step.

    Results, order of calls, errors and options are those of jax.jit. Within another transformation (`grad`, another
    `jit`) it is jax.jit.
    """
    options: dict[str, Any] = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    plain = jax.jit(function, **options)

    @functools.wraps(function)
    def enclosing(*args: Any, ronde_token: jax.Array, **kwargs: Any) -> tuple[Any, Any]:
        return _enclose(function, ronde_token, args, kwargs)

    compiled = jax.jit(enclosing, **options)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if jax.config.jax_disable_jit or not core.trace_state_clean():
            return plain(*args, **kwargs)  # type: ignore[no-any-return]
        held = _held()
        try:
            token, result = compiled(*args, ronde_token=held, **kwargs)
        except ValueError as error:  # the dispatch in C++ turns errors of a program into ValueError, too
            compiled.trace(*args, ronde_token=held, **kwargs).lower()  # raises if it is the call that is wrong
            raise jax.errors.JaxRuntimeError(str(error)) from error
        _latest.token = core.Token(token)
        dispatch.runtime_tokens.set_token_result(EFFECT, _latest.token)
        return result  # type: ignore[no-any-return]

    return call


class _Latest(threading.local):
    """The token returned by this thread's last program of `jit`."""

    token: Any = None


_latest: Final = _Latest()


def _held() -> jax.Array:
    """Return the token of this thread's last call as an array."""
    token = dispatch.runtime_tokens.current_tokens.get(EFFECT)
    if token is not None and token is _latest.token:
        return token._buf
    return _converted()  # that of another program has a form in which it can be given to none of `jit`


@functools.partial(jax.jit)
def _converted() -> jax.Array:
    """Return a token of this thread's earlier calls in the form of an array."""
    return _passing.bind()


def _enclose(
    function: Callable[..., Any], token: jax.Array, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[jax.Array, Any]:
    """Return the next token and the function's result. Arguments that are not tracers are static."""
    leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
    traced = [index for index, leaf in enumerate(leaves) if isinstance(leaf, core.Tracer)]

    def of_arrays(*arrays: Any) -> Any:
        filled = list(leaves)
        for index, array in zip(traced, arrays, strict=True):
            filled[index] = array
        args, kwargs = jax.tree_util.tree_unflatten(tree, filled)
        return function(*args, **kwargs)

    given = [leaves[index] for index in traced]
    program, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*given)
    token, *results = _enclosed.bind(token, *program.consts, *given, program=program.jaxpr)
    return token, jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), results)


def _trace(token: Any, *_: Any, program: Jaxpr) -> tuple[list[Any], set[Any]]:
    return [token, *(variable.aval for variable in program.outvars)], set(program.effects) - {EFFECT}


def _lower(ctx: Any, token: Any, *operands: Any, program: Jaxpr) -> Sequence[Any]:
    """Lower the program with its calls ordered among themselves; the program as a whole is ordered by the token.

    Raises ValueError for a program of several devices, as JAX does for ordered effects, which it does not see here:
    nothing orders the calls of one device among those of another, so ranks would combine parts that are not the same.
    """
    devices = ctx.module_context.axis_context.num_devices
    if devices > 1:
        raise ValueError(
            f"a program with calls of Ronde is for {devices} devices; it must be for one: call Ronde outside of "
            "shard_map and pmap, with arrays that are on one device, such as x.addressable_data(0)"
        )
    results, tokens = mlir.jaxpr_subcomp(
        ctx.module_context,
        program,
        ctx.name_stack,
        mlir.TokenSet(dict(ctx.tokens_in.items()) | dict(mlir.TokenSet.create([EFFECT]).items())),
        operands[: len(program.constvars)],
        *operands[len(program.constvars) :],
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=ctx.traceback,
    )
    ctx.set_tokens_out(mlir.TokenSet({effect: tokens.get(effect) for effect, _ in ctx.tokens_in.items()}))
    return [token, *results]


def _lower_passing(ctx: Any) -> Sequence[Any]:
    ctx.set_tokens_out(ctx.tokens_in)
    return [mlir.ir_constant(np.zeros(0, bool))]


# calls outside of programs


@functools.partial(jit, static_argnames=("request", "path", "in_place"))
def _alone(*arrays: jax.Array, **how: Any) -> list[jax.Array]:
    return list(COLLECTIVE.bind(*arrays, **how))


def _run(*arrays: jax.Array, **how: Any) -> list[jax.Array]:
    with jax.disable_jit(False):
        return _alone(*arrays, **how)


COLLECTIVE.def_impl(_run)
_enclosed.def_effectful_abstract_eval(_trace)
_passing.def_effectful_abstract_eval(lambda: (core.ShapedArray((0,), np.dtype(bool)), {EFFECT}))
mlir.register_lowering(_enclosed, _lower, cacheable=False)
mlir.register_lowering(_passing, _lower_passing, cacheable=False)
