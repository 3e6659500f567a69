"""Estimators for Spark's dataframes: the part that the frameworks share.

`fit` writes the columns of a dataframe into the store, runs the training on ranks, and makes a transformer of the last
checkpoint. A framework adds the training of a rank and the prediction for a batch.
"""

from __future__ import annotations

import inspect
import math
import os
import pickle
import secrets
import sys
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

import cloudpickle
import fsspec
import numpy as np
import pyarrow
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import Param
from pyspark.sql import SparkSession, functions, types

from collectives import rank, size
from frontends.spark.data import TRAINING, VALIDATION, Batch, Reader, Split, Table, find, of_arrow, readable, write
from frontends.spark.job import run
from frontends.spark.store import Checkpoint, Store

Predict = Callable[[Batch], list[np.ndarray[Any, Any]]]
"""The outputs of a model for some rows, an array for each label."""

_COUNTS: Final = ("batch_size", "epochs", "backward_passes_per_step")
_COUNTS_OR_NONE: Final = ("num_proc", "val_batch_size", "train_steps_per_epoch", "validation_steps_per_epoch")


@dataclass(frozen=True)
class Plan:
    """A training, as each rank gets it. The fields are those arguments of an estimator that frameworks share.

    train, validation  the tables; an empty one for no validation
    history            numbers of the epochs that a former run of the same name has done
    """

    store: Store
    run_id: str
    feature_cols: Sequence[str]
    label_cols: Sequence[str]
    sample_weight_col: str | None
    loss_weights: Sequence[float]
    batch_size: int
    val_batch_size: int
    epochs: int
    train_steps_per_epoch: int | None
    validation_steps_per_epoch: int | None
    shuffle_buffer_size: int | None
    random_seed: int
    transformation_fn: Callable[[], Callable[[Any], Any]] | None
    backward_passes_per_step: int
    gradient_compression: Any
    verbose: int
    train: Table = field(default_factory=lambda: Table(()))
    validation: Table = field(default_factory=lambda: Table(()))
    history: Sequence[Mapping[str, Any]] = ()

    @property
    def columns(self) -> list[str]:
        """All columns that the training reads."""
        weight = [] if self.sample_weight_col is None else [self.sample_weight_col]
        return list(dict.fromkeys([*self.feature_cols, *self.label_cols, *weight]))

    def training(self) -> tuple[Iterator[Batch], int]:
        """The batches of this rank from the first one that is left, without end, and their number in an epoch."""
        reader = self._reader(self.train, self.batch_size, self.shuffle_buffer_size)
        steps = self.train_steps_per_epoch or reader.steps
        return reader.stream(len(self.history) * steps), steps

    def validating(self) -> tuple[Reader, int]:
        """The reader for validation, and the number of its first batches that one validation takes; 0 without rows."""
        reader = self._reader(self.validation, self.val_batch_size, 0)
        steps = reader.steps
        if self.validation_steps_per_epoch is not None:
            steps = min(steps, self.validation_steps_per_epoch)
        return reader, steps

    def keep(self, history: Sequence[Mapping[str, Any]], state: bytes, shapes: Sequence[Sequence[int]]) -> None:
        """Save a checkpoint after an epoch, and once more if its loss is the lowest one. Rank 0 calls it."""
        checkpoint = Checkpoint(list(history), state, [list(shape) for shape in shapes])
        *before, last = map(_loss, history)
        if last < min((loss for loss in before if not math.isnan(loss)), default=math.inf):
            self.store.save_checkpoint(self.run_id, checkpoint, "best")
        self.store.save_checkpoint(self.run_id, checkpoint)

    def report(self, epoch: Mapping[str, Any]) -> None:
        """Print the numbers of an epoch."""
        parts = [("", epoch["train"]), ("validation ", epoch.get("validation", {}))]
        shown = ", ".join(f"{title}{name} {value:.4g}" for title, values in parts for name, value in values.items())
        sys.stdout.write(f"epoch {epoch['epoch']} of {self.epochs}: {shown}\n")

    def _reader(self, table: Table, batch_size: int, buffer: int | None) -> Reader:
        return Reader(
            self.store,
            table,
            self.columns,
            batch_size,
            rank(),
            size(),
            buffer,
            self.random_seed,
            self.transformation_fn,
        )


def _loss(epoch: Mapping[str, Any]) -> float:
    return float(epoch.get("validation", epoch["train"])["loss"])


@dataclass(frozen=True)
class Fitted:
    """A training's result, as a transformer gets it.

    batch_size  rows of a batch in predictions
    """

    run_id: str
    feature_cols: Sequence[str]
    label_cols: Sequence[str]
    checkpoint: Checkpoint
    batch_size: int


class FrameEstimator(Estimator):  # type: ignore[misc]
    """Base of the estimators. A subclass gives its constructor's arguments, which become Params of Spark ML."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        for name in inspect.signature(type(self)).parameters:
            setattr(self, name, Param(self, name, f"see {type(self).__name__}"))
            self._set(**{name: given[name]})

    def fit_on_parquet(self, params: Mapping[Any, Any] | None = None) -> Any:
        """Train on the Parquet that is at `store.get_train_data_path()`, and validate with that at
        `store.get_val_data_path()`, if there is some. Returns as `fit`.

        params  values of Params for this call

        Raises as `fit`; FileNotFoundError without the Parquet.
        """
        given = self.copy(dict(params or {}))
        plan, count = given._plan(SparkSession.builder.getOrCreate().sparkContext)
        store = plan.store
        train = find(store, store.get_train_data_path(), plan.columns)
        checked = store.fs.exists(store.get_val_data_path())
        validation = find(store, store.get_val_data_path(), plan.columns) if checked else Table(())
        return given._train(replace(plan, train=train, validation=validation), count, checked)

    def load_checkpoint(self, run_id: str, which: str = "last") -> Any:
        """The transformer of a run's checkpoint: the "last" one, or the "best", that with the lowest loss.

        The loss is that of the validation, if there was one. Raises FileNotFoundError if there is no checkpoint.
        """
        self._check()
        checkpoint = self._get("store").load_checkpoint(run_id, which)
        if checkpoint is None:
            raise FileNotFoundError(f"run_id={run_id!r}: the store has no checkpoint of this run")
        return self._transformer(self._fitted(checkpoint, run_id))

    def _fit(self, dataset: Any) -> Any:
        """Spark ML's `fit` calls it."""
        context = dataset.sparkSession.sparkContext
        plan, count = self._plan(context)
        validation = self._get("validation")
        split = Split(validation, plan.random_seed, keep=validation in plan.columns)
        folder = plan.store.path("intermediate", f"{plan.run_id}-{uuid.uuid4().hex}")
        try:
            tables = write(dataset, plan.columns, split, plan.store, folder)
            plan = replace(plan, train=tables[TRAINING], validation=tables[VALIDATION])
            return self._train(plan, count, validation is not None, context)
        finally:
            if plan.store.fs.exists(folder):
                plan.store.fs.rm(folder, recursive=True)

    def _train(self, plan: Plan, count: int, validated: bool, context: Any = None) -> Any:
        """Train on ranks, unless a former run has done so. Returns the transformer."""
        tables = {"rows": plan.train, "rows for validation": plan.validation}
        for title, table in tables.items():
            if table.rows < count and (validated or table is plan.train):
                raise ValueError(f"df: has {table.rows} {title}; num_proc={count} ranks need one each")
        done = plan.store.load_checkpoint(plan.run_id)
        if done is not None:
            plan = replace(plan, history=done.history)
        if done is None or done.epochs < plan.epochs:
            run(
                _call,
                [cloudpickle.dumps(self._task(plan))],
                num_proc=count,
                start_timeout=self._get("start_timeout"),
                env={**self._environment(), **(self._get("env") or {})},
                spark_context=context,
            )
            done = plan.store.load_checkpoint(plan.run_id)
            assert done is not None  # rank 0 has saved one after each epoch
        return self._transformer(self._fitted(done, plan.run_id))

    def _fitted(self, checkpoint: Checkpoint, run_id: str) -> Fitted:
        size = self._get("val_batch_size") or self._get("batch_size")
        return Fitted(run_id, self._get("feature_cols"), self._get("label_cols"), checkpoint, size)

    def _plan(self, context: Any) -> tuple[Plan, int]:
        """The training without its tables, and the number of ranks. Raises ValueError and TypeError."""
        self._check()
        given = {name: self._get(name) for name in Plan.__dataclass_fields__ if self.hasParam(name)}
        seed = given["random_seed"]
        weights = given["loss_weights"]
        plan = Plan(
            **given
            | {
                "run_id": given["run_id"] or f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}",
                "loss_weights": [1.0] * len(given["label_cols"]) if weights is None else list(weights),
                "val_batch_size": given["val_batch_size"] or given["batch_size"],
                "shuffle_buffer_size": given["shuffle_buffer_size"] if self._get("shuffle") else 0,
                "random_seed": secrets.randbits(32) if seed is None else seed,
            }
        )
        return plan, self._get("num_proc") or context.defaultParallelism

    def _check(self) -> None:
        """Raise TypeError or ValueError for arguments that are wrong whatever the framework is."""
        if not isinstance(self._get("store"), Store):
            raise TypeError(f"store={self._get('store')!r}: must be a ronde.spark.store.Store")
        for name in ("feature_cols", "label_cols"):
            columns = self._get(name)
            if not isinstance(columns, list | tuple) or not columns or not all(isinstance(one, str) for one in columns):
                raise ValueError(f"{name}={columns!r}: must be a list of names of columns, one or more")
        for name in (*_COUNTS, *_COUNTS_OR_NONE):
            value = self._get(name)
            if value is None and name in _COUNTS_OR_NONE:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                more = ", or None" if name in _COUNTS_OR_NONE else ""
                raise ValueError(f"{name}={value!r}: must be an integer, 1 or more{more}")
        buffer, seed = self._get("shuffle_buffer_size"), self._get("random_seed")
        for name, value in (("shuffle_buffer_size", buffer), ("random_seed", seed)):
            if value is not None and (not isinstance(value, int) or value < 0):
                raise ValueError(f"{name}={value!r}: must be an integer, 0 or more, or None")
        validation = self._get("validation")
        column = validation is None or isinstance(validation, str)
        if not column and not (isinstance(validation, float) and 0 < validation < 1):
            raise ValueError(f"validation={validation!r}: must be a share between 0 and 1, a name of a column, or None")
        run_id = self._get("run_id")
        if run_id is not None and (not isinstance(run_id, str) or not run_id or "/" in run_id):
            raise ValueError(f"run_id={run_id!r}: must be a name of a folder, or None")
        weights = self._get("loss_weights")
        if weights is not None and len(weights) != len(self._get("label_cols")):
            raise ValueError(f"loss_weights={weights!r}: must have a number for each of label_cols")

    def _get(self, name: str) -> Any:
        return self.getOrDefault(name)

    def _environment(self) -> dict[str, str]:
        """Variables that the framework needs in workers before it is imported."""
        return {}

    @abstractmethod
    def _task(self, plan: Plan) -> Callable[[], None]:
        """The training of a rank, which saves checkpoints by `plan.keep` on rank 0."""

    @abstractmethod
    def _transformer(self, fitted: Fitted) -> FrameModel:
        """The transformer of a checkpoint."""


def _call(task: bytes) -> None:
    """Unpickle a task and call it. A rank imports the framework here, in its own environment."""
    pickle.loads(task)()


class FrameModel(Model):  # type: ignore[misc]
    """Base of the transformers."""

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        self.run_id = fitted.run_id
        self._features = list(fitted.feature_cols)
        self._outputs = [f"{label}__output" for label in fitted.label_cols]
        self._shapes = [tuple(shape) for shape in fitted.checkpoint.shapes]
        self._history = fitted.checkpoint.history
        self._batch_size = fitted.batch_size

    def setOutputCols(self, names: Sequence[str]) -> Self:
        """Name the columns of predictions, one for each label. By default they are LABEL__output. Returns self.

        Raises ValueError if their number is another.
        """
        if len(names) != len(self._outputs):
            raise ValueError(f"names={names!r}: must be {len(self._outputs)}, one for each label")
        self._outputs = list(names)
        return self

    def getOutputCols(self) -> list[str]:
        """The names of the columns of predictions."""
        return list(self._outputs)

    def save(self, path: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """Write the transformer with its model to a file, as a pickle. `path` and `storage_options` are fsspec's."""
        with fsspec.open(path, "wb", **(storage_options or {})) as file:
            file.write(cloudpickle.dumps(self))

    @classmethod
    def load(cls, path: str, storage_options: Mapping[str, Any] | None = None) -> Self:
        """Read a transformer that `save` has written. It is a pickle: read files that you trust.

        Raises FileNotFoundError, and TypeError if the file has another object.
        """
        with fsspec.open(path, "rb", **(storage_options or {})) as file:
            found = pickle.load(file)
        if not isinstance(found, cls):
            raise TypeError(f"path={path!r}: has a {type(found).__name__}, not a {cls.__name__}")
        return found

    def _transform(self, dataset: Any) -> Any:
        """Spark ML's `transform` calls it: the dataframe with a column for each output of the model."""
        taken = [name for name in self._outputs if name in dataset.columns]
        if taken:
            raise ValueError(f"df: has a column {taken[0]!r} already; setOutputCols gives predictions other names")
        hidden = {name: f"__ronde_{index}" for index, name in enumerate(self._features)}
        inputs = zip(hidden, readable(dataset, self._features), strict=True)
        wide = dataset.select("*", *(column.alias(hidden[name]) for name, column in inputs))
        single = [math.prod(shape) == 1 for shape in self._shapes]
        kinds = [types.DoubleType() if one else types.ArrayType(types.DoubleType()) for one in single]
        added = [types.StructField(name, kind) for name, kind in zip(self._outputs, kinds, strict=True)]
        schema = types.StructType([*dataset.schema.fields, *added])
        work = partial(
            _predict, cloudpickle.dumps(self._predictor()), self._environment(), hidden, self._batch_size, single
        )
        found = wide.mapInArrow(work, schema)
        for name, one in zip(self._outputs, single, strict=True):
            if not one:
                found = found.withColumn(name, array_to_vector(functions.col(f"`{name}`")))
        return found

    def _environment(self) -> dict[str, str]:
        """Variables that the framework needs in workers before it is imported."""
        return {}

    @abstractmethod
    def _predictor(self) -> Predict:
        """The prediction, to be pickled."""


def _predict(
    predictor: bytes,
    environment: Mapping[str, str],
    hidden: Mapping[str, str],
    size: int,
    single: Sequence[bool],
    batches: Iterable[Any],
) -> Iterator[Any]:
    """Predict for the rows of a partition, `size` of them at a time. The hidden columns give way to the outputs."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    predict: Predict = pickle.loads(predictor)
    for batch in batches:
        if not len(batch):
            continue
        rows = of_arrow(batch, hidden)
        parts = [
            predict({name: values[start : start + size] for name, values in rows.items()})
            for start in range(0, len(batch), size)
        ]
        outputs = [np.concatenate(column) for column in zip(*parts, strict=True)]
        columns = [_column(output, one) for output, one in zip(outputs, single, strict=True)]
        own = [name for name in batch.schema.names if name not in hidden.values()]
        arrays = [*(batch.column(name) for name in own), *columns]
        yield pyarrow.RecordBatch.from_arrays(arrays, names=[*own, *(f"output {n}" for n in range(len(columns)))])


def _column(output: np.ndarray[Any, Any], single: bool) -> Any:
    flat = output.reshape(len(output), -1).astype(np.float64)
    if single:
        return pyarrow.array(flat[:, 0])
    offsets = np.arange(0, flat.size + 1, flat.shape[1], dtype=np.int32)
    return pyarrow.ListArray.from_arrays(offsets, flat.reshape(-1))
