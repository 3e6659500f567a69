"""KerasEstimator: fits a Keras model to a dataframe, on ranks in the tasks of a Spark cluster."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any

import cloudpickle
import numpy as np

import frontends.keras as hvd

# After ronde.keras, which tells how Keras and its backend are installed.
import keras  # isort: skip

from frontends.spark.data import Batch, Reader
from frontends.spark.estimator import Fitted, FrameEstimator, FrameModel, Plan, Predict
from frontends.spark.store import Store

__all__ = ["KerasEstimator", "KerasModel"]


class KerasEstimator(FrameEstimator):
    """Fits a Keras 3 model to the rows of a dataframe: `KerasEstimator(...).fit(df)` returns a KerasModel.

    model                 built keras.Model with an input for each feature column and an output for each label. Columns
                          are given the shapes of the inputs
    optimizer             Keras optimizer, or its name. The training begins with a new one of its options
    loss                  as in `model.compile`
    metrics               as in `model.compile`
    custom_objects        classes and functions that the model needs and Keras does not know, by name
    callbacks             Keras callbacks, called on each rank. They see averages over all ranks, and so decide alike
    gradient_compression  Compression of ronde.keras; by default none

    The other arguments are those of TorchEstimator. The workers' Keras has the backend of the driver's.

    `fit` raises as that of TorchEstimator.
    """

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Any,
        loss: Any,
        feature_cols: Sequence[str],
        label_cols: Sequence[str],
        store: Store,
        num_proc: int | None = None,
        loss_weights: Sequence[float] | None = None,
        metrics: Sequence[Any] = (),
        custom_objects: Mapping[str, Any] | None = None,
        callbacks: Sequence[Any] = (),
        sample_weight_col: str | None = None,
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
        verbose: int = 1,
        start_timeout: float = 120.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(locals())

    def _check(self) -> None:
        super()._check()
        model = self._get("model")
        if not isinstance(model, keras.Model):
            raise TypeError(f"model: must be a model of Keras 3, not {type(model).__name__}")
        if not model.built:
            raise ValueError("model: must be built; call model.build(shape), or begin with keras.Input")
        for title, names in (("input", "feature_cols"), ("output", "label_cols")):
            parts = getattr(model, f"{title}s", None)
            if parts is not None and len(parts) != len(self._get(names)):
                raise ValueError(f"{names}={self._get(names)!r}: must be a column for each of {len(parts)} {title}s")
        if not all(isinstance(one, keras.callbacks.Callback) for one in self._get("callbacks")):
            raise TypeError(f"callbacks={self._get('callbacks')!r}: must be Keras callbacks")
        keras.optimizers.get(self._get("optimizer"))  # which raises ValueError

    def _environment(self) -> dict[str, str]:
        return _environment()

    def _task(self, plan: Plan) -> Callable[[], None]:
        optimizer = keras.saving.serialize_keras_object(keras.optimizers.get(self._get("optimizer")))
        given = {name: self._get(name) for name in ("loss", "metrics", "callbacks")}
        return partial(_train, plan, self._described(), optimizer, cloudpickle.dumps(given))

    def _described(self, state: bytes | None = None) -> _Described:
        model = self._get("model")
        weights = model.get_weights() if state is None else _loaded(state)[0]
        config = keras.saving.serialize_keras_object(model)
        config.pop("compile_config", None)  # this estimator's loss and optimizer count
        return _Described(config, weights, dict(self._get("custom_objects") or {}))

    def _transformer(self, fitted: Fitted) -> KerasModel:
        return KerasModel(self._described(fitted.checkpoint.state), fitted)


class KerasModel(FrameModel):
    """A trained Keras model as a transformer of Spark's: `transform(df)` adds a column LABEL__output for each label.

    It is a number, or a vector if the model returns several for a row. KerasEstimator makes it.
    """

    def __init__(self, described: _Described, fitted: Fitted) -> None:
        super().__init__(fitted)
        self._described = described

    def getModel(self) -> Any:
        """A new keras.Model with the trained weights. It is not compiled."""
        return self._described.build()

    def getHistory(self) -> dict[str, list[float]]:
        """The averages over all ranks, as in Keras's history: a list with a number of each epoch, by name."""
        logs = [
            {**epoch["train"], **{f"val_{name}": value for name, value in epoch.get("validation", {}).items()}}
            for epoch in self._history
        ]
        return {
            name: [log[name] for log in logs if name in log] for name in dict.fromkeys(n for log in logs for n in log)
        }

    def _environment(self) -> dict[str, str]:
        return _environment()

    def _predictor(self) -> Predict:
        return _Predictor(self._described, self._features)


def _environment() -> dict[str, str]:
    return {"KERAS_BACKEND": keras.config.backend()}


@dataclass(frozen=True)
class _Described:
    """A model without variables of a backend's: its configuration and its weights."""

    config: dict[str, Any]
    weights: list[np.ndarray[Any, Any]]
    custom_objects: dict[str, Any]
    backend: str = field(default_factory=keras.config.backend)

    def build(self) -> Any:
        """The model. Raises RuntimeError if this process has loaded Keras with another backend."""
        if keras.config.backend() != self.backend:
            raise RuntimeError(f"this worker has loaded Keras on {keras.config.backend()}, not on {self.backend}")
        model = keras.saving.deserialize_keras_object(self.config, self.custom_objects, safe_mode=False)
        model.set_weights(self.weights)
        return model


@dataclass
class _Predictor:
    """The prediction; the model is made where it is called first."""

    described: _Described
    features: Sequence[str]

    @cached_property
    def model(self) -> Any:
        return self.described.build()

    def __call__(self, batch: Batch) -> list[np.ndarray[Any, Any]]:
        found = self.model.predict_on_batch(_inputs(self.model, batch, self.features))
        return [np.asarray(output) for output in (found if isinstance(found, list | tuple) else [found])]


def _inputs(model: Any, batch: Batch, features: Sequence[str]) -> Any:
    """The feature columns in the shapes of the model's inputs, in a tuple if there are several."""
    columns = [_column(batch[name]) for name in features]
    if getattr(model, "inputs", None) is not None:
        columns = [
            column.reshape(len(column), *(-1 if n is None else n for n in one.shape[1:]))
            for column, one in zip(columns, model.inputs, strict=True)
        ]
    return _one_or_all(columns)


def _column(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Floats and booleans in Keras's type of floats, integers as they are."""
    return values if values.dtype.kind in "iu" else values.astype(keras.config.floatx())


def _one_or_all(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(parts)


def _saved(weights: Sequence[Any], slots: Sequence[Any]) -> bytes:
    """The values of the model's and of the optimizer's variables, as bytes."""
    parts = {f"{kind}{n}": value for kind, values in (("w", weights), ("o", slots)) for n, value in enumerate(values)}
    buffer = io.BytesIO()
    np.savez(buffer, **parts)
    return buffer.getvalue()


def _loaded(state: bytes) -> tuple[list[Any], list[Any]]:
    """The values of the model's and of the optimizer's variables, from the bytes of `_saved`."""
    with np.load(io.BytesIO(state), allow_pickle=False) as parts:
        weights, slots = (
            [parts[f"{kind}{n}"] for n in range(sum(name[0] == kind for name in parts.files))] for kind in "wo"
        )
    return weights, slots


class _Validation(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches for validation, by number. `fit` asks for the first ones again to see their shapes; a generator would
    lose them then."""

    def __init__(self, plan: Plan, model: Any, reader: Reader, steps: int) -> None:
        super().__init__()
        self._fed: Callable[[int], Iterator[Any]] = lambda first: _fed(plan, model, reader.stream(first))
        self._steps, self._next = steps, 0
        self._batches = self._fed(0)

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> Any:
        if index != self._next:
            self._batches = self._fed(index)
        self._next = index + 1
        return next(self._batches)


class _Checkpoints(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves a checkpoint after each epoch, on rank 0. It comes last, and so sees the averages."""

    def __init__(self, plan: Plan, shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self._plan, self._shapes = plan, shapes
        self._history = list(plan.history)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        logs = {name: float(value) for name, value in (logs or {}).items()}
        numbers: dict[str, Any] = {
            "epoch": epoch + 1,
            "train": {name: value for name, value in logs.items() if not name.startswith("val_")},
        }
        checked = {name.removeprefix("val_"): value for name, value in logs.items() if name.startswith("val_")}
        if checked:
            numbers["validation"] = checked
        self._history.append(numbers)
        if hvd.rank():
            return
        model = self.model
        slots = [keras.ops.convert_to_numpy(variable) for variable in model.optimizer.variables]
        self._plan.keep(self._history, _saved(model.get_weights(), slots), self._shapes)
        if self._plan.verbose:
            self._plan.report(numbers)


def _train(plan: Plan, described: _Described, optimizer: dict[str, Any], pickled: bytes) -> None:
    """Train on this rank. Collective."""
    hvd.init()
    keras.utils.set_random_seed((plan.random_seed + hvd.rank()) % 2**32)
    with keras.saving.custom_object_scope(described.custom_objects):
        model, given = described.build(), cloudpickle.loads(pickled)
        distributed = hvd.DistributedOptimizer(
            keras.saving.deserialize_keras_object(optimizer),
            compression=plan.gradient_compression,
            backward_passes_per_step=plan.backward_passes_per_step,
        )
        several = len(plan.label_cols) > 1
        weights = list(plan.loss_weights) if several else None
        model.compile(distributed, given["loss"], loss_weights=weights, metrics=list(given["metrics"]))
        if plan.history and hvd.rank() == 0:
            _restore(plan, model)
        batches, steps = plan.training()
        first = next(batches)
        outputs = model.predict_on_batch(_inputs(model, first, plan.feature_cols))
        shapes = [output.shape[1:] for output in (outputs if isinstance(outputs, list | tuple) else [outputs])]
        reader, checked = plan.validating()
        model.fit(
            _fed(plan, model, chain([first], batches)),
            steps_per_epoch=steps,
            epochs=plan.epochs,
            initial_epoch=len(plan.history),
            validation_data=_Validation(plan, model, reader, checked) if checked else None,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
                *given["callbacks"],
                _Checkpoints(plan, shapes),
            ],
            shuffle=False,  # the reader does
            verbose=0,
        )


def _restore(plan: Plan, model: Any) -> None:
    """Give the model and its optimizer the values of the last checkpoint. The broadcast takes them to the others."""
    checkpoint = plan.store.load_checkpoint(plan.run_id)
    assert checkpoint is not None  # plan.history is of it
    weights, slots = _loaded(checkpoint.state)
    model.set_weights(weights)
    model.optimizer.build(model.trainable_variables)
    for variable, value in zip(model.optimizer.variables, slots, strict=True):
        variable.assign(value)


def _fed(plan: Plan, model: Any, batches: Iterator[Batch]) -> Iterator[Any]:
    """Batches as `fit` takes them: inputs, labels, and weights of the rows."""
    for batch in batches:
        labels = [_column(batch[name]) for name in plan.label_cols]
        parts = [_inputs(model, batch, plan.feature_cols), _one_or_all(labels)]
        if plan.sample_weight_col is not None:
            weight = _column(batch[plan.sample_weight_col]).reshape(-1)
            parts.append(_one_or_all([weight] * len(labels)))
        yield tuple(parts)
