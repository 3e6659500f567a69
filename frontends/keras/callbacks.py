"""Horovod's callbacks for `model.fit`. All ranks must pass the same callbacks in the same order."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

from collectives import ProcessSet, global_process_set, rank, size
from frontends.horovod import Min, average_metrics, check_number, check_process_set, check_root
from frontends.keras.backends import chosen
from frontends.keras.library import Callback, ModelCheckpoint, library, optimizer_variables
from frontends.keras.values import allreduce, broadcast_variables


class BroadcastGlobalVariablesCallback(Callback):  # type: ignore[misc]
    """Broadcasts model and optimizer of `root_rank` to all ranks: weights, slots, iterations and learning rate.

    The broadcast happens when training begins, or after the first batch if some rank's model is not built before. Seeds
    of dropout and similar layers stay different on each rank.

    device            accepted for Horovod's sake and ignored
    local_variables   variables that are not broadcast
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Sequence[Any] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        check_process_set(process_set)
        self.root_rank = check_root(root_rank)
        self._local = {id(variable) for variable in local_variables or ()}
        self._process_set = process_set
        self._done = False

    def set_model(self, model: Any) -> None:
        """Called by `fit` before it compiles the train step."""
        super().set_model(model)
        chosen().prepare(model)

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable from the broadcast."""
        self._local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast if the models of all ranks are built. Collective."""
        self._done = False
        if int(allreduce(int(self.model.built), op=Min, process_set=self._process_set)):
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast if it has not happened yet. Collective."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        model = self.model
        slots = optimizer_variables(model.optimizer, model.trainable_variables)
        variables = [variable for variable in model.weights if id(variable) not in self._local]
        broadcast_variables([*variables, *slots], self.root_rank, self._process_set)
        self._done = True


class MetricAverageCallback(Callback):  # type: ignore[misc]
    """Averages the epoch's metrics over the ranks.

    Callbacks after it in the list (ReduceLROnPlateau, TensorBoard, ModelCheckpoint, EarlyStopping) then see the same
    numbers on all ranks and take the same decisions.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        check_process_set(process_set)
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the numbers in `logs` by their averages. Collective. Raises on every rank, with the names, ValueError
        if the ranks have different metrics, TypeError if one is no number."""
        means = average_metrics(logs or {}, process_set=self._process_set)
        if logs is not None:
            logs.update(means)


class LearningRateScheduleCallback(Callback):  # type: ignore[misc]
    """Sets the learning rate to initial_lr * multiplier(epoch) for start_epoch <= epoch < end_epoch.

    initial_lr            the learning rate to multiply
    multiplier            a function of the epoch, or a number
    start_epoch           first epoch of the schedule, counted from 0
    end_epoch             first epoch after the schedule; None for no end
    staircase             True: set the rate once per epoch. False: before every batch, with a fractional epoch
    momentum_correction   scale the optimizer's velocity with the learning rate (Goyal et al., "Accurate, Large
                          Minibatch SGD", 2017, section 3), if the optimizer has a velocity
    steps_per_epoch       batches per epoch, if `fit` does not know them; needed with staircase=False

    Raises ValueError without initial_lr, or if the steps per epoch are unknown; TypeError for what is no number.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr: must be given")
        check_number(initial_lr, "initial_lr")
        if not callable(multiplier):
            check_number(multiplier, "multiplier")
        for name, value in (("start_epoch", start_epoch), ("end_epoch", end_epoch)):
            if value is not None:
                check_number(value, name)
        if steps_per_epoch is not None and not check_number(steps_per_epoch, "steps_per_epoch") >= 1:
            raise ValueError(f"steps_per_epoch={steps_per_epoch!r}: must be 1 or more")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier
        self._epoch = 0

    def multiplier(self, epoch: float) -> float:
        """Return the factor for an epoch."""
        return self._multiplier(epoch) if callable(self._multiplier) else self._multiplier

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the number of batches per epoch if the schedule needs it."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError("steps_per_epoch: is not known to fit; give it to the callback")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Store the number of the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate."""
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None
            self._set(self.initial_lr * self.multiplier(self._epoch + batch / self.steps_per_epoch))
        elif batch == 0:
            self._set(self.initial_lr * self.multiplier(self._epoch))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the learning rate to the logs, as `lr`."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _set(self, new: float) -> None:
        optimizer = self.model.optimizer
        old = float(optimizer.learning_rate)
        if new == old:
            return
        optimizer.learning_rate = new
        if self.momentum_correction and old:
            for velocity in _velocities(optimizer):
                velocity.assign(velocity * (new / old))


def _velocities(optimizer: Any) -> list[Any]:
    """Return the variables in which an optimizer accumulates momentum times learning rate.

    Keras 3 compiles the momentum into the train step as a constant, so a momentum correction changes these variables;
    the next step has the same result.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    built = getattr(inner, "built", getattr(inner, "_built", False))
    if not built or not isinstance(getattr(inner, "momentum", 0), float) or not inner.momentum:
        return []
    return list(inner.momentums if isinstance(inner, library.optimizers.SGD) else getattr(inner, "_momentums", []))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate batch by batch from initial_lr / size to initial_lr in the first `warmup_epochs` epochs
    (Goyal et al., 2017, section 2.2).

    initial_lr   the learning rate to reach: the rate of one rank times the size
    verbose      1: rank 0 prints a line at the end of the warm-up

    The other arguments are those of LearningRateScheduleCallback.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def warmer(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            # the last batch of the last epoch has the full rate, also where the warm-up ends within an epoch
            done = min(epoch + 1.0 / self.steps_per_epoch, warmup_epochs)
            return (done * (size() - 1) / warmup_epochs + 1) / size()

        if not 0 <= check_number(warmup_epochs, "warmup_epochs") < math.inf:
            raise ValueError(f"warmup_epochs={warmup_epochs!r}: must be 0 or more, finite")
        super().__init__(initial_lr, warmer, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add `lr` to the logs, and print a line after the last epoch of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch < self.end_epoch <= epoch + 1 and self.verbose and rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            sys.stdout.write(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.\n")


class BestModelCheckpoint(ModelCheckpoint):  # type: ignore[misc]
    """Saves the model on rank 0 whenever `monitor` improves.

    filepath   file to write; the other arguments are those of keras.callbacks.ModelCheckpoint

    Put a MetricAverageCallback before it in the list, so that `monitor` is the average over all ranks.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: Literal["auto", "min", "max"] = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: Any,
    ) -> None:
        super().__init__(filepath, monitor, verbose, save_best_only=True, mode=mode, save_freq=save_freq)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save on rank 0, if save_freq is a number of batches."""
        if rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save, on rank 0."""
        if rank() == 0:
            super().on_epoch_end(epoch, logs)
