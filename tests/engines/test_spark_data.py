"""The tables and the store of the estimators, without a Spark session."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ronde[spark]'")
pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'ronde[spark]'")

import pyarrow
import pyarrow.dataset
import pyarrow.parquet

from frontends.spark.data import Reader, Split, Table, find
from ronde.spark.store import Checkpoint, Store


def written(folder: Path, sizes: list[list[int]]) -> int:
    """Write files with row groups of these sizes; the column `x` counts the rows, `v` has arrays. Returns the rows."""
    folder.mkdir(parents=True)
    start = 0
    for number, groups in enumerate(sizes):
        schema = pyarrow.schema({"x": pyarrow.int64(), "v": pyarrow.list_(pyarrow.float64())})
        with pyarrow.parquet.ParquetWriter(folder / f"{number}.parquet", schema) as writer:
            for size in groups:
                x = np.arange(start, start + size)
                vectors = [[float(one), -float(one)] for one in x]
                writer.write_batch(pyarrow.RecordBatch.from_arrays([pyarrow.array(x), vectors], schema=schema))
                start += size
    return start


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("buffer", [0, 5, None])
def test_the_ranks_read_each_row_once_in_equal_numbers_of_batches(
    tmp_path: Path, size: int, buffer: int | None
) -> None:
    rows = written(tmp_path / "train_data", [[10, 1, 7], [4], [20, 1]])
    store = Store(str(tmp_path))
    table = find(store, store.get_train_data_path(), ["x", "v"])
    assert table.rows == rows == 43
    readers = [Reader(store, table, ["x", "v"], 4, rank, size, buffer, seed=3) for rank in range(size)]
    assert len({reader.steps for reader in readers}) == 1
    seen: list[int] = []
    for reader in readers:
        batches = list(islice(reader.stream(), reader.steps))
        assert all(len(batch["x"]) == 4 for batch in batches[:-1])
        for batch in batches:
            np.testing.assert_array_equal(batch["v"], np.stack([batch["x"], -batch["x"]], 1))
            seen += batch["x"].tolist()
    assert len(set(seen)) == len(seen) >= rows - size  # a rank may leave out one
    if buffer == 0:
        assert seen == sorted(seen)
        return
    again = list(islice(readers[0].stream(), 2 * readers[0].steps))
    later = list(islice(readers[0].stream(first=readers[0].steps + 1), readers[0].steps - 1))
    for one, other in zip(again[readers[0].steps + 1 :], later, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])
    assert [batch["x"].tolist() for batch in again[: len(again) // 2]] != [
        batch["x"].tolist() for batch in again[len(again) // 2 :]
    ]


def test_a_share_reads_its_own_row_groups_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "train_data", [[10, 10], [10, 10]])
    store = Store(str(tmp_path))
    table = find(store, store.get_train_data_path(), ["x"])
    assert [(group.number, begin, end) for group, begin, end in table.share(1, 3)] == [(1, 3, 10), (0, 0, 6)]
    read: list[Any] = []

    class Noted(pyarrow.dataset.ParquetFileFormat):  # type: ignore[misc]
        def make_fragment(self, path: str, files: Any, *, row_groups: list[int]) -> Any:
            read.append((Path(path).name, *row_groups))
            return super().make_fragment(path, files, row_groups=row_groups)

    monkeypatch.setattr(pyarrow.dataset, "ParquetFileFormat", Noted)
    reader = Reader(store, table, ["x"], 2, 1, 2)
    first = next(reader.stream())
    assert read == [("1.parquet", 0)]  # no more than the batch needs
    assert first["x"].tolist() == [20, 21]


def test_a_function_changes_batches(tmp_path: Path) -> None:
    written(tmp_path / "train_data", [[6]])
    store = Store(str(tmp_path))
    table = find(store, store.get_train_data_path(), ["x", "v"])

    def doubled() -> Any:
        def change(frame: Any) -> Any:
            return frame.assign(x=frame["x"] * 2, v=[vector + 1 for vector in frame["v"]])

        return change

    batch = next(Reader(store, table, ["x", "v"], 3, 0, 1, change=doubled).stream())
    assert batch["x"].tolist() == [0, 2, 4]
    np.testing.assert_array_equal(batch["v"], [[1, 1], [2, 0], [3, -1]])
    loses = Reader(store, table, ["x", "v"], 3, 0, 1, change=lambda: lambda frame: frame[["x"]])
    with pytest.raises(ValueError, match=r"transformation_fn: .*columns v "):
        next(loses.stream())


def test_bad_tables_are_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"store: .*Parquet at .*train_data"):
        find(store, store.get_train_data_path(), ["x"])
    (tmp_path / "train_data").mkdir()
    arrays = {"a": [[1.0], [2.0, 3.0]], "n": [1, None], "m": [[1.0], [None]], "s": ["a", "b"]}
    pyarrow.parquet.write_table(pyarrow.table(arrays), tmp_path / "train_data" / "0.parquet")
    folder = store.get_train_data_path()
    with pytest.raises(ValueError, match=r"no column 'x'; .*'a', 'n'"):
        find(store, folder, ["x"])
    with pytest.raises(TypeError, match=r"'s' .*type string"):
        find(store, folder, ["s"])
    for name, text in (("a", "arrays of 1 to 2 elements"), ("n", "1 of 2 rows .*null"), ("m", "1 elements .*null")):
        with pytest.raises(ValueError, match=f"column '{name}': {text}"):
            next(Reader(store, find(store, folder, [name]), [name], 2, 0, 1).stream())


def test_rows_are_split() -> None:
    batch = pyarrow.RecordBatch.from_pydict({"x": list(range(1000)), "test": [None, 0, 1, 2.5] * 250})
    parts = Split(0.25, seed=1).divide(batch, np.random.default_rng(1))
    assert 200 < len(parts["validation"]) < 300
    assert len(parts["train"]) + len(parts["validation"]) == 1000
    parts = Split("test", seed=1).divide(batch, np.random.default_rng(1))
    assert parts["validation"].schema.names == ["x"]
    assert parts["validation"].column("x").to_pylist()[:4] == [2, 3, 6, 7]
    assert Split("test", seed=1, keep=True).divide(batch, np.random.default_rng(1))["train"].schema.names == [
        "x",
        "test",
    ]


@pytest.mark.parametrize("prefix", ["{folder}", "file://{folder}", "memory://jobs"])
def test_checkpoints_are_replaced_whole(tmp_path: Path, prefix: str) -> None:
    store = Store.create(prefix.format(folder=tmp_path / "new"), storage_options={"skip_instance_cache": True})
    assert store.load_checkpoint("one") is None
    for epochs in (1, 2):
        history = [{"epoch": epoch, "train": {"loss": 0.5}} for epoch in range(1, epochs + 1)]
        store.save_checkpoint("one", Checkpoint(history, b"values", [[10], []]))
        found = store.load_checkpoint("one")
        assert found == Checkpoint(history, b"values", [[10], []])
        assert found is not None
        assert found.epochs == epochs
    assert store.load_checkpoint("one", "best") is None
    assert len(store.fs.ls(store.get_run_path("one"))) == 1  # nothing beside it
    with pytest.raises(ValueError, match=r"which='first': .*last, best"):
        store.load_checkpoint("one", "first")  # type: ignore[arg-type]
    assert "skip_instance_cache" not in repr(store)


def test_paths_of_a_store() -> None:
    store = Store("file:///jobs/", train_path="file:///data/train", runs_path="/runs")
    assert store.get_train_data_path() == "/data/train"
    assert store.get_val_data_path() == "/jobs/val_data"
    assert store.get_run_path("a") == "/runs/a"
    with pytest.raises(ValueError, match="prefix_path=''"):
        Store("")
    assert Table(()).rows == 0
