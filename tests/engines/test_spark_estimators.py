"""Estimators on dataframes of a real Spark cluster of two workers."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ronde[spark]'")
pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'ronde[spark]'")
pytest.importorskip("torch", reason="torch is not installed: pip install 'ronde[torch]'")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java, which is not installed", allow_module_level=True)

import torch
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import DenseVector, Vectors
from pyspark.sql import SparkSession

import collectives
from examples import spark_estimator_digits
from ronde.spark.store import Store
from ronde.spark.torch import TorchEstimator, TorchModel

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def line(spark: Any) -> Any:
    """Rows of y = 2 a - 3 b + 1, with a and b as numbers, as an array, and as dense and sparse vectors."""
    points = np.random.default_rng(0).normal(size=(200, 2))
    rows = [
        (
            float(a),
            float(b),
            [float(a), float(b)],
            Vectors.sparse(2, {0: a, 1: b}) if number % 2 else Vectors.dense([a, b]),
            float(2 * a - 3 * b + 1),
            number % 5 == 0,
            f"row {number}",
        )
        for number, (a, b) in enumerate(points)
    ]
    return SparkSession(spark).createDataFrame(rows, ["a", "b", "array", "vector", "y", "held", "name"]).cache()


def common(folder: Path) -> dict[str, Any]:
    """The arguments that are the same for both frameworks."""
    return {
        "feature_cols": ["vector"],
        "label_cols": ["y"],
        "store": Store.create(str(folder)),
        "num_proc": 2,
        "batch_size": 10,
        "epochs": 3,
        "random_seed": 1,
        "verbose": 0,
    }


def estimator(folder: Path, **changes: Any) -> TorchEstimator:
    torch.manual_seed(0)
    model = changes.pop("model", None) or torch.nn.Linear(2, 1)
    given = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.5),
        "loss": torch.nn.functional.mse_loss,
        **common(folder),
    }
    return TorchEstimator(**{**given, **changes})


def values(model: TorchModel) -> list[float]:
    return torch.nn.utils.parameters_to_vector(model.getModel().parameters()).tolist()


def off_by(rank: int, output: Any, label: Any) -> Any:
    if collectives.rank() == rank:
        raise LookupError("no such thing")
    return ((output - label) ** 2).mean()


def test_a_model_learns_from_vectors(line: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"mae": lambda output, label: (output - label).abs().mean()}
    job = estimator(tmp_path, epochs=4, validation=0.2, metrics=metrics, verbose=1)
    model = job.fit(line)
    np.testing.assert_allclose(values(model), [2, -3, 1], atol=0.05)
    history = model.getHistory()
    assert [epoch["epoch"] for epoch in history] == [1, 2, 3, 4]
    losses = [epoch["validation"]["loss"] for epoch in history]
    assert losses[-1] < 0.01 < losses[0]
    assert history[-1]["validation"]["mae"] < 0.1
    assert "[rank 0] epoch 4 of 4: loss " in capsys.readouterr().out
    rows = model.transform(line).collect()
    assert len(rows) == 200
    assert rows[1]["vector"] == line.collect()[1]["vector"]  # the other columns stay as they are
    assert max(abs(row["y__output"] - row["y"]) for row in rows) < 0.3
    assert model.run_id in {path.name for path in (tmp_path / "runs").iterdir()}
    assert not list((tmp_path / "intermediate").iterdir())
    best = job.load_checkpoint(model.run_id, "best")
    assert len(best.getHistory()) == np.argmin(losses) + 1


def test_numbers_and_arrays_teach_the_same(line: Any, tmp_path: Path) -> None:
    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 1)

        def forward(self, a: Any, b: Any) -> Any:
            return self.inner(torch.cat([a, b], 1))

    torch.manual_seed(0)
    model = Sum()
    results = [
        values(estimator(tmp_path, feature_cols=["array"]).fit(line)),
        values(estimator(tmp_path, feature_cols=["vector"]).fit(line)),
        values(estimator(tmp_path, model=model, feature_cols=["a", "b"], input_shapes=[[-1, 1]] * 2).fit(line)),
    ]
    assert results[0] == results[1] == results[2]


def test_a_run_goes_on_after_its_last_epoch(line: Any, tmp_path: Path) -> None:
    whole = estimator(tmp_path, run_id="whole", epochs=4).fit(line)
    estimator(tmp_path, run_id="parts", epochs=2).fit(line)
    model = estimator(tmp_path, run_id="parts", epochs=4).fit(line)
    assert values(model) == values(whole)
    assert model.getHistory() == whole.getHistory()
    assert estimator(tmp_path, run_id="parts", epochs=3).fit(line).getHistory() == whole.getHistory()


def test_weights_columns_of_validation_and_passes(line: Any, tmp_path: Path) -> None:
    ignored = line.withColumn("weight", (line.a > 0).cast("double")).withColumn(
        "y", line.y * (line.a > 0).cast("double")
    )
    options = {"sample_weight_col": "weight", "validation": "held", "backward_passes_per_step": 3, "epochs": 12}
    for loss in (torch.nn.functional.mse_loss, torch.nn.MSELoss()):
        model = estimator(tmp_path, loss=loss, **options).fit(ignored)
        np.testing.assert_allclose(values(model), [2, -3, 1], atol=0.1)


def test_several_outputs_are_vectors_and_can_be_saved(line: Any, tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 3)

        def forward(self, x: Any) -> Any:
            found = self.inner(x)
            return found[:, 0], found[:, 1:]

    loss = torch.nn.functional.mse_loss
    job = estimator(tmp_path, model=Two(), loss=[loss, loss], label_cols=["y", "array"], loss_weights=[0.5, 1.0])
    model = job.fit(line, {job.epochs: 6}).setOutputCols(["number", "vector of two"])
    assert len(model.getHistory()) == 6
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    rows = loaded.transform(line).collect()
    assert isinstance(rows[0]["vector of two"], DenseVector)
    assert max(np.abs(row["vector of two"].toArray() - row["array"]).max() for row in rows) < 0.3
    assert [row["number"] for row in model.transform(line).collect()] == [row["number"] for row in rows]


def test_a_pipeline_and_a_pickle(line: Any, tmp_path: Path) -> None:
    stages = [
        VectorAssembler(inputCols=["a", "b"], outputCol="features"),
        estimator(tmp_path, feature_cols=["features"]),
    ]
    fitted = Pipeline(stages=stages).fit(line)
    found = [row["y__output"] for row in fitted.transform(line).collect()]
    model = pickle.loads(pickle.dumps(fitted.stages[1]))
    again = model.transform(fitted.stages[0].transform(line)).collect()
    assert [row["y__output"] for row in again] == found


def test_parquet_of_others(line: Any, tmp_path: Path) -> None:
    line.select("array", "y").write.parquet(str(tmp_path / "train_data"))
    model = estimator(tmp_path, feature_cols=["array"]).fit_on_parquet()
    np.testing.assert_allclose(values(model), [2, -3, 1], atol=0.1)
    assert (tmp_path / "train_data").exists()


def test_the_error_of_a_rank_is_raised_with_its_traceback(line: Any, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no such thing") as caught:
        estimator(tmp_path, loss=partial(off_by, 1)).fit(line)
    notes = "\n".join(caught.value.__notes__)
    assert "raised on rank 1" in notes
    assert "in off_by" in notes
    assert not list((tmp_path / "intermediate").iterdir())


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"feature_cols": ["z"]}, ValueError, "df: .*no column 'z'; .*'a', 'b'"),
        ({"feature_cols": ["name"]}, TypeError, "column 'name' .*string: .*number"),
        ({"feature_cols": []}, ValueError, r"feature_cols=\[\]"),
        ({"feature_cols": "vector"}, ValueError, "feature_cols='vector': .*list"),
        ({"validation": "z"}, ValueError, "df: .*no column 'z'"),
        ({"validation": 1.5}, ValueError, "validation=1.5"),
        ({"store": "/tmp"}, TypeError, "store='/tmp': .*ronde.spark.store.Store"),
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"run_id": "a/b"}, ValueError, "run_id='a/b'"),
        ({"input_shapes": [[1], [2]]}, ValueError, "input_shapes"),
        ({"loss": []}, ValueError, r"loss=\[\]: .*function"),
        ({"loss_weights": [1.0, 2.0]}, ValueError, "loss_weights"),
        (
            {"optimizer": torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)},
            ValueError,
            "optimizer: .*parameters",
        ),
        ({"optimizer": "sgd"}, TypeError, "optimizer: .*torch.optim.Optimizer, not str"),
        ({"no_such": 1}, TypeError, "no_such"),
    ],
)
def test_bad_arguments(line: Any, tmp_path: Path, changes: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        estimator(tmp_path, **changes).fit(line)


def test_bad_rows(line: Any, tmp_path: Path) -> None:
    job = estimator(tmp_path, feature_cols=["array"])
    with pytest.raises(ValueError, match=r"df: .*0 rows; num_proc=2 "):
        job.fit(line.limit(0))
    session = line.sparkSession
    with pytest.raises(ValueError, match=r"column 'array': .*1 to 2 elements"):
        job.fit(session.createDataFrame([([1.0], 1.0), ([1.0, 2.0], 1.0)], "array array<double>, y double"))
    with pytest.raises(ValueError, match=r"column 'y': 1 .*null"):
        job.fit(session.createDataFrame([([1.0], None), ([1.0], 1.0)], "array array<double>, y double"))
    model = job.fit(line)
    with pytest.raises(ValueError, match=r"df: .*column 'y__output'"):
        model.transform(model.transform(line))
    with pytest.raises(ValueError, match=r"df: .*no column 'array'"):
        model.transform(line.drop("array"))
    with pytest.raises(FileNotFoundError, match="run_id='none'"):
        job.load_checkpoint("none")


@pytest.fixture
def keras_here(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keras, on torch, which is loaded already."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras", reason="Keras is not installed: pip install 'ronde[keras]'")


def keras_estimator(folder: Path, **changes: Any) -> Any:
    import keras

    from ronde.spark.keras import KerasEstimator

    keras.utils.set_random_seed(0)
    given = {
        "model": changes.pop("model", None) or keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.5),
        "loss": "mse",
        **common(folder),
    }
    return KerasEstimator(**{**given, **changes})


def test_a_keras_model_learns_and_goes_on(
    keras_here: Any, line: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"validation": 0.2, "metrics": ["mae"]}
    whole = keras_estimator(tmp_path, epochs=4, verbose=1, **options).fit(line)
    assert "[rank 0] epoch 4 of 4: loss " in capsys.readouterr().out
    kernel, bias = whole.getModel().get_weights()
    np.testing.assert_allclose([*kernel.ravel(), *bias], [2, -3, 1], atol=0.05)
    history = whole.getHistory()
    assert sorted(history) == ["loss", "mae", "val_loss", "val_mae"]
    assert history["val_loss"][3] < 0.01 < history["val_loss"][0]
    rows = pickle.loads(pickle.dumps(whole)).transform(line).collect()
    assert max(abs(row["y__output"] - row["y"]) for row in rows) < 0.3
    keras_estimator(tmp_path, run_id="parts", epochs=2, **options).fit(line)
    parts = keras_estimator(tmp_path, run_id="parts", epochs=4, **options).fit(line)
    assert parts.getHistory() == history
    for one, other in zip(whole.getModel().get_weights(), parts.getModel().get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_keras_models_of_several_columns_with_own_classes(
    keras_here: Any, line: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras = keras_here

    class Twice(keras.layers.Layer):  # type: ignore[name-defined,misc]
        def call(self, x: Any) -> Any:
            return x * 2

    a, b = keras.Input((1,)), keras.Input((1,))
    both = Twice()(keras.layers.Concatenate()([a, b]))
    model = keras.Model([a, b], [keras.layers.Dense(1)(both), keras.layers.Dense(2)(both)])
    job = keras_estimator(
        tmp_path,
        model=model,
        feature_cols=["a", "b"],
        label_cols=["y", "array"],
        loss=["mse", "mse"],
        loss_weights=[0.5, 1.0],
        optimizer="adam",
        custom_objects={"Twice": Twice},
        callbacks=[keras.callbacks.EarlyStopping("loss", min_delta=1e9)],
        epochs=9,
    )
    fitted = job.fit(line)
    assert len(fitted.getHistory()["loss"]) == 2  # it was stopped on both ranks
    fitted.setOutputCols(["number", "two"]).save(str(tmp_path / "model"))
    row = type(fitted).load(str(tmp_path / "model")).transform(line).first()
    expected = fitted.getModel().predict_on_batch((np.array([[row["a"]]]), np.array([[row["b"]]])))
    assert row["number"] == pytest.approx(float(expected[0][0, 0]), abs=1e-5)
    np.testing.assert_allclose(row["two"].toArray(), expected[1][0], atol=1e-5)
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"Keras on jax, .*torch"):
        fitted.getModel()


def test_keras_weights_passes_and_bad_arguments(keras_here: Any, line: Any, tmp_path: Path) -> None:
    keras = keras_here
    ignored = line.withColumn("weight", (line.a > 0).cast("double")).withColumn(
        "y", line.y * (line.a > 0).cast("double")
    )
    options = {"sample_weight_col": "weight", "validation": "held", "backward_passes_per_step": 2, "epochs": 12}
    kernel, bias = keras_estimator(tmp_path, **options).fit(ignored).getModel().get_weights()
    np.testing.assert_allclose([*kernel.ravel(), *bias], [2, -3, 1], atol=0.1)
    with pytest.raises(LookupError, match="no such thing") as caught:
        keras_estimator(tmp_path, loss=partial(off_by, 1)).fit(line)
    assert "in off_by" in "\n".join(caught.value.__notes__)
    for changes, kind, text in (
        ({"model": torch.nn.Linear(1, 1)}, TypeError, "model: .*Keras 3, not Linear"),
        ({"model": keras.Sequential([keras.layers.Dense(1)])}, ValueError, "model: .*built"),
        ({"feature_cols": ["a", "b"]}, ValueError, "column .*1 inputs"),
        ({"label_cols": ["y", "a"]}, ValueError, "column .*1 outputs"),
        ({"optimizer": "none such"}, ValueError, "none such"),
        ({"callbacks": [3]}, TypeError, "callbacks="),
        ({"feature_cols": ["z"]}, ValueError, "df: .*no column 'z'"),
    ):
        with pytest.raises(kind, match=text):
            keras_estimator(tmp_path, **changes).fit(line)


@pytest.mark.timeout(400)  # it starts a cluster of its own
def test_the_example() -> None:
    command = [sys.executable, spark_estimator_digits.__file__, "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
