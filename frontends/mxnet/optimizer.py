"""DistributedOptimizer: an optimizer that averages gradients over the ranks before it updates parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from collectives import ProcessSet, global_process_set
from frontends.mxnet.compression import Compression
from frontends.mxnet.gradients import GradientReduction
from frontends.mxnet.library import mx

_OWN: Final = ("_optimizer", "_reduction")


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """An optimizer of MXNet that averages the gradients over the ranks in every update.

    optimizer                  the optimizer; its attributes are read and set through this one
    gradient_predivide_factor  gradients are divided by it before the sum, and multiplied by it / size after
    num_groups                 number of operations in which the gradients of an update travel; 0: one for every 25 MB
    process_set                ranks that average; others update with their own gradients

    For Module, and for loops that call an Updater. With Gluon use DistributedTrainer, which sends gradients while the
    backward pass still computes others. It can be pickled, as Trainer.save_states does.

    Raises TypeError if `optimizer` is no optimizer of MXNet, ValueError for a bad number.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(f"optimizer={optimizer!r}: must be an optimizer of MXNet: mx.optimizer.create('sgd')")
        self._optimizer = optimizer
        self._reduction = GradientReduction(Compression.none, gradient_predivide_factor, num_groups, process_set)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not set yet, while the object is unpickled
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def wrapped(self) -> Any:
        """The optimizer that was given."""
        return self._optimizer

    def create_state(self, index: Any, weight: Any) -> Any:
        """The optimizer's state for a parameter."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The optimizer's state for a parameter, with a float32 copy of a float16 one if it is to use one."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradients in place, then update the parameters. Collective in the process set.

        index   the number of a parameter, or a list; the other arguments fit it

        Raises HorovodInternalError if the ranks disagree or a rank is lost; no parameter is changed then.
        """
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """`update` that uses the float32 copies of float16 parameters."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate. Raises UserWarning if the optimizer has a scheduler."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """Set factors of the learning rate for single parameters."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """Set factors of the weight decay for single parameters."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _average(self, index: Any, grad: Any) -> None:
        several = isinstance(index, Sequence) and not isinstance(index, str)
        pairs = zip(index, grad, strict=True) if several else [(index, grad)]
        names = getattr(self._optimizer, "idx2name", {})
        self._reduction.run([(str(number), str(names.get(number, number)), grad) for number, grad in pairs])
