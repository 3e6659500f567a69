"""DistributedOptimizer for tf-keras 2: both of its classes of optimizers combine gradients in `apply_gradients`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from frontends.keras.library import library, refuse_loss_scaling
from frontends.tensorflow_ops import Aggregation

Combine = Callable[[Sequence[Any], Sequence[Any], str | None], list[Any]]


def distribute(optimizer: Any, combine: Combine, name: str, local: set[int], passes: int, average: bool) -> Any:
    """Return an optimizer of the same class, options and state that combines gradients before it applies them.

    combine   called with the gradients, their variables, and the name of the agreement, of `reserve`, in a tf.cond;
              returns the gradients combined over the ranks
    name      of the agreement
    local     ids of the variables whose gradients stay in their rank; the optimizer adds some
    passes    number of calls of `apply_gradients` whose gradients are summed before they are combined and applied
    average   divide the sums by `passes`
    """
    scaling = library.mixed_precision
    wrapped = isinstance(optimizer, (_Combining, scaling.LossScaleOptimizer))
    if scaling.global_policy().name == "mixed_float16" and not wrapped:
        optimizer = scaling.LossScaleOptimizer(optimizer)  # as model.compile does, but inside
    kind = type(optimizer)
    if issubclass(kind, _Combining):
        kind = kind.__bases__[1]
    distributed: Any = object.__new__(type(kind.__name__, (_Combining, kind), {"__module__": kind.__module__}))
    distributed.__dict__.update(vars(optimizer))
    vars(distributed).update(
        _ronde_combine=combine,
        _ronde_name=name,
        _ronde_local=local,
        _ronde_passes=Aggregation(passes, average) if passes > 1 else None,
    )
    return distributed


class _Combining:
    """The methods by which an optimizer combines gradients. `distribute` makes a class of it and of the user's
    class."""

    def register_local_var(self, var: Any) -> None:
        """Do not combine the gradient of a variable."""
        given: Any = self
        given._ronde_local.add(id(var))

    @property
    def _is_wrapped_by_loss_scale_optimizer(self) -> bool:
        """Set by a LossScaleOptimizer that is made of an optimizer."""
        return False

    @_is_wrapped_by_loss_scale_optimizer.setter
    def _is_wrapped_by_loss_scale_optimizer(self, wrapped: bool) -> None:
        refuse_loss_scaling("_is_wrapped_by_loss_scale_optimizer")

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Combine the gradients and apply them; with several passes per step, after the last pass only."""
        given: Any = self
        pairs = list(grads_and_vars)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]

        def apply(reduced: Sequence[Any]) -> Any:
            return super(_Combining, self).apply_gradients(  # type: ignore[misc]
                zip(reduced, variables, strict=True), *args, **kwargs
            )

        if given._ronde_passes is None:
            return apply(given._ronde_combine(gradients, variables, None))
        totals = given._ronde_passes.add(gradients, variables, given._ronde_name, given._ronde_combine)
        return given._ronde_passes.apply(lambda: apply(totals), variables)
