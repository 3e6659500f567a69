"""TorchEstimator: fits a torch model to a dataframe, on ranks in the tasks of a Spark cluster."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

import frontends.torch as hvd

# After ronde.torch, which tells how torch is installed.
import torch  # isort: skip

from frontends.spark.data import Batch
from frontends.spark.estimator import Fitted, FrameEstimator, FrameModel, Plan, Predict
from frontends.spark.store import Store

__all__ = ["TorchEstimator", "TorchModel"]


class TorchEstimator(FrameEstimator):
    """Fits a torch model to the rows of a dataframe: `TorchEstimator(...).fit(df)` returns a TorchModel.

    model                       torch.nn.Module, called with one tensor for each feature column; it returns a tensor, or
                                one for each label in a tuple
    optimizer                   torch optimizer of the model's parameters
    loss                        function of output and label, or a list of such, one for each label
    feature_cols                names of columns of numbers, arrays of numbers of one length, or vectors
    label_cols                  names of such columns, one for each output
    store                       ronde.spark.store.Store, which the driver and the workers reach
    num_proc                    number of ranks; by default Spark's default parallelism
    loss_weights                factors of the losses in their sum, one for each label; by default 1
    metrics                     functions of output and label, by name, or a list of functions. An average over the rows
                                goes into the history; with several labels each has its own
    sample_weight_col           column of weights: a row's loss is multiplied by its weight. The loss takes
                                reduction="none", as those of torch do
    input_shapes                shapes of the tensors, one for each feature column, with -1 for the rows; by default
                                (rows,), or (rows, length) for arrays and vectors
    validation                  share of the rows that are kept for validation, or a column that is above 0 in them
    batch_size                  rows of a rank's batch
    val_batch_size              rows of a batch in validation and prediction; by default batch_size
    epochs                      number of times that the ranks go through the rows
    train_steps_per_epoch       number of batches of a rank in an epoch; by default those of its rows
    validation_steps_per_epoch  largest number of batches of a rank in a validation
    shuffle                     in each epoch, divide the row groups among the ranks anew, and shuffle rows in memory
    shuffle_buffer_size         rows that are shuffled in memory; by default as many as fit into 256 MiB
    random_seed                 seed of the shuffles, the split and torch; by default another one each time
    transformation_fn           function that returns a function, which changes each batch, a pandas.DataFrame
    backward_passes_per_step    batches whose gradients are summed before a step
    gradient_compression        Compression of ronde.torch; by default none
    run_id                      name of the run in the store; by default a new one. A run that was ended goes on after
                                its last epoch
    use_gpu                     train on a GPU where there is one
    verbose                     1: print the numbers of each epoch
    start_timeout, env          as in `ronde.spark.run`

    Floating-point columns become tensors of the dtype of the model's parameters, integers int64. A label with as many
    elements as its output gets the output's shape.

    `fit` raises ValueError and TypeError for bad arguments, columns that do not exist, of other types or with null, and
    too few rows; the error of the rank that failed first, with its traceback; and otherwise as `ronde.spark.run`.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[..., Any] | Sequence[Callable[..., Any]],
        feature_cols: Sequence[str],
        label_cols: Sequence[str],
        store: Store,
        num_proc: int | None = None,
        loss_weights: Sequence[float] | None = None,
        metrics: Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]] = (),
        sample_weight_col: str | None = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
        validation: float | str | None = None,
        batch_size: int = 32,
        val_batch_size: int | None = None,
        epochs: int = 1,
        train_steps_per_epoch: int | None = None,
        validation_steps_per_epoch: int | None = None,
        shuffle: bool = True,
        shuffle_buffer_size: int | None = None,
        random_seed: int | None = None,
        transformation_fn: Callable[[], Callable[[Any], Any]] | None = None,
        backward_passes_per_step: int = 1,
        gradient_compression: Any = hvd.Compression.none,
        run_id: str | None = None,
        use_gpu: bool = True,
        verbose: int = 1,
        start_timeout: float = 120.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(locals())

    def _check(self) -> None:
        super()._check()
        model, optimizer, shapes = self._get("model"), self._get("optimizer"), self._get("input_shapes")
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: must be a torch.nn.Module, not {type(model).__name__}")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer: must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
        own = {id(parameter) for parameter in model.parameters()}
        if any(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError("optimizer: has parameters that are not the model's")
        if shapes is not None and len(shapes) != len(self._get("feature_cols")):
            raise ValueError(f"input_shapes={shapes!r}: must have a shape for each of feature_cols")
        losses = self._losses()
        if len(losses) != len(self._get("label_cols")) or not all(map(callable, losses)):
            raise ValueError(
                f"loss={self._get('loss')!r}: must be a function, or a list with one for each of label_cols"
            )
        if not all(map(callable, self._metrics().values())):
            raise TypeError(f"metrics={self._get('metrics')!r}: must be functions of output and label")

    def _losses(self) -> list[Callable[..., Any]]:
        loss = self._get("loss")
        return list(loss) if isinstance(loss, list | tuple) else [loss]

    def _metrics(self) -> dict[str, Callable[..., Any]]:
        metrics = self._get("metrics") or ()
        if isinstance(metrics, Mapping):
            return dict(metrics)
        return {getattr(metric, "__name__", type(metric).__name__): metric for metric in metrics}

    def _task(self, plan: Plan) -> Callable[[], None]:
        losses = self._losses()
        if plan.sample_weight_col is not None:
            losses = [_by_row(loss) for loss in losses]
        net = _Net(self._get("model"), self._get("input_shapes"))
        return partial(_train, plan, net, self._get("optimizer"), losses, self._metrics(), self._get("use_gpu"))

    def _transformer(self, fitted: Fitted) -> TorchModel:
        model = copy.deepcopy(self._get("model")).cpu()
        model.load_state_dict(_loaded(fitted.checkpoint.state, torch.device("cpu"))["model"])
        return TorchModel(model.eval(), self._get("input_shapes"), fitted)


class TorchModel(FrameModel):
    """A trained torch model as a transformer of Spark's: `transform(df)` adds a column LABEL__output for each label.

    It is a number, or a vector if the model returns several for a row. TorchEstimator makes it.
    """

    def __init__(self, model: torch.nn.Module, input_shapes: Sequence[Sequence[int]] | None, fitted: Fitted) -> None:
        super().__init__(fitted)
        self._net = _Net(model, input_shapes)

    def getModel(self) -> torch.nn.Module:
        """The trained model, on the CPU and in evaluation mode."""
        return self._net.model

    def getHistory(self) -> list[dict[str, Any]]:
        """The averages of each epoch over all ranks:
        `[{"epoch": 1, "train": {"loss": ...}, "validation": {...}}, ...]`.
        """
        return [dict(epoch) for epoch in self._history]

    def _predictor(self) -> Predict:
        return partial(_outputs, self._net, self._features)


@dataclass
class _Net:
    """A model and the shapes of its inputs."""

    model: torch.nn.Module
    shapes: Sequence[Sequence[int]] | None

    def __call__(self, features: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs of the model for a tensor of each feature column."""
        if self.shapes is not None:
            features = [tensor.reshape(*shape) for tensor, shape in zip(features, self.shapes, strict=True)]
        found = self.model(*features)
        return tuple(found) if isinstance(found, list | tuple) else (found,)

    def tensor(self, values: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
        """A column as a tensor: floats and booleans in the dtype of the model's parameters, integers as int64."""
        dtypes = (parameter.dtype for parameter in self.model.parameters() if parameter.is_floating_point())
        whole = values.dtype.kind in "iu"
        dtype = torch.int64 if whole else next(dtypes, torch.get_default_dtype())
        return torch.from_numpy(values).to(device, dtype)


def _outputs(net: _Net, features: Sequence[str], batch: Batch) -> list[np.ndarray[Any, Any]]:
    """The outputs for some rows, without gradients."""
    with torch.no_grad():
        found = net([net.tensor(batch[name], torch.device("cpu")) for name in features])
    return [output.double().numpy() for output in found]


def _by_row(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss of each row: of a module with another `reduction`, or of a function with this argument."""
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        by_row: Any = copy.copy(loss)
        by_row.reduction = "none"
        return by_row  # type: ignore[no-any-return]
    return partial(loss, reduction="none")


def _loaded(state: bytes, device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(state), map_location=device, weights_only=True)
    return found


def _train(
    plan: Plan,
    net: _Net,
    optimizer: torch.optim.Optimizer,
    losses: Sequence[Callable[..., Any]],
    metrics: Mapping[str, Callable[..., Any]],
    use_gpu: bool,
) -> None:
    """Train on this rank. Collective."""
    hvd.init()
    first = hvd.rank() == 0
    torch.manual_seed(plan.random_seed + hvd.rank())
    device = torch.device("cpu")
    if use_gpu and torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    model = net.model.to(device)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if first and plan.history:
        checkpoint = plan.store.load_checkpoint(plan.run_id)
        assert checkpoint is not None  # plan.history is of it
        state = _loaded(checkpoint.state, device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])  # also without a checkpoint: it moves the state to the device
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        model.named_parameters(),
        compression=plan.gradient_compression,
        backward_passes_per_step=plan.backward_passes_per_step,
    )
    rank = _Rank(plan, net, losses, metrics, device)
    history = list(plan.history)
    batches, steps = plan.training()
    reader, checked = plan.validating()
    for epoch in range(len(history), plan.epochs):
        numbers = {"epoch": epoch + 1, "train": rank.train(batches, steps, optimizer)}
        if checked:
            numbers["validation"] = rank.validate(islice(reader.stream(), checked))
        history.append(numbers)
        if first:
            buffer = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
            plan.keep(history, buffer.getvalue(), rank.shapes)
            if plan.verbose:
                plan.report(numbers)


class _Rank:
    """The loops over the batches of a rank. `shapes` has the shape of each output for one row, after a batch."""

    def __init__(
        self,
        plan: Plan,
        net: _Net,
        losses: Sequence[Callable[..., Any]],
        metrics: Mapping[str, Callable[..., Any]],
        device: torch.device,
    ) -> None:
        self._plan, self._net, self._losses, self._metrics, self._device = plan, net, losses, metrics, device
        several = len(plan.label_cols) > 1
        self._names = ["loss"] + [
            f"{label}_{name}" if several else name for label in plan.label_cols for name in metrics
        ]
        self.shapes: list[tuple[int, ...]] = []

    def train(self, batches: Iterator[Batch], steps: int, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        """Train on `steps` batches. Returns the averages over all ranks. Collective."""
        self._net.model.train()
        total = self._zeros()
        for step in range(1, steps + 1):
            loss, numbers = self._batch(next(batches))
            loss.backward()
            if step % self._plan.backward_passes_per_step == 0 or step == steps:
                optimizer.step()
                optimizer.zero_grad()
            total += numbers
        return self._averages(total)

    def validate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """The averages over the batches of all ranks. Collective."""
        self._net.model.eval()
        total = self._zeros()
        with torch.no_grad():
            for batch in batches:
                total += self._batch(batch)[1]
        return self._averages(total)

    def _batch(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of a batch, and its numbers times its rows with the number of rows at the end."""
        plan, net = self._plan, self._net
        tensors = {name: net.tensor(values, self._device) for name, values in batch.items()}
        outputs = net([tensors[name] for name in plan.feature_cols])
        if len(outputs) != len(plan.label_cols):
            raise ValueError(f"model: returned {len(outputs)} tensors for {len(plan.label_cols)} label_cols")
        rows = len(next(iter(batch.values())))
        if any(len(output) != rows for output in outputs):
            raise ValueError(
                f"model: returned tensors of shapes {[tuple(one.shape) for one in outputs]} for {rows} rows"
            )
        self.shapes = [tuple(output.shape[1:]) for output in outputs]
        loss, values = torch.zeros((), device=self._device), []
        parts = zip(outputs, plan.label_cols, self._losses, plan.loss_weights, strict=True)
        for output, name, function, weight in parts:
            label = tensors[name]
            if label.numel() == output.numel():
                label = label.reshape(output.shape)
            one = function(output, label)
            if plan.sample_weight_col is not None:
                one = (one.reshape(rows, -1).mean(1) * tensors[plan.sample_weight_col].reshape(rows)).mean()
            loss = loss + weight * one
            with torch.no_grad():
                values += [float(metric(output.detach(), label)) for metric in self._metrics.values()]
        numbers = torch.tensor([float(loss.detach()), *values, 1.0], dtype=torch.float64, device="cpu") * rows
        return loss, numbers

    def _zeros(self) -> torch.Tensor:
        return torch.zeros(len(self._names) + 1, dtype=torch.float64, device="cpu")

    def _averages(self, total: torch.Tensor) -> dict[str, float]:
        sums = hvd.allreduce(total, op=hvd.Sum, name="estimator.averages")
        return dict(zip(self._names, (sums[:-1] / sums[-1]).tolist(), strict=True))
