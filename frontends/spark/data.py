"""Tables of an estimator: written from a dataframe by Spark's tasks, read by the ranks.

A table is Parquet in files of the store. Rank r of p reads rows r N / p to (r + 1) N / p, so shares differ by one row
at most, whatever the sizes of files and row groups are.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import functions, types

from frontends.spark.store import Store

Batch = dict[str, NDArray[Any]]
"""Rows by column: an array of shape (rows,), or (rows, length) for a column of arrays or vectors."""

TRAINING, VALIDATION = "train", "validation"
_SHUFFLED: Final = 256 << 20
"""Bytes among which rows are shuffled by default."""


@dataclass(frozen=True)
class RowGroup:
    """Rows of a Parquet file that are read at once."""

    path: str
    number: int
    rows: int


@dataclass(frozen=True)
class Table:
    """The row groups of a table, in their order."""

    groups: Sequence[RowGroup]

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    def shuffled(self, rng: np.random.Generator) -> Table:
        """The same row groups in another order."""
        return Table([self.groups[index] for index in rng.permutation(len(self.groups))])

    def share(self, rank: int, size: int) -> list[tuple[RowGroup, int, int]]:
        """The rows of a rank: row groups, each with its first row and the row after its last one."""
        first, last = rank * self.rows // size, (rank + 1) * self.rows // size
        parts, start = [], 0
        for group in self.groups:
            begin, end = max(first - start, 0), min(last - start, group.rows)
            if begin < end:
                parts.append((group, begin, end))
            start += group.rows
        return parts

    def batches(self, size: int, batch_size: int) -> int:
        """Number of batches in which each of `size` ranks reads its share once: the same on all of them."""
        return -(-(self.rows // size) // batch_size)


@dataclass(frozen=True)
class Reader:
    """Reads the rows of a rank, batch by batch, as often as wanted.

    columns  names of the columns to read
    buffer   rows among which is shuffled; None for as many as fit into 256 MiB, 0 to leave the order as it is
    change   makes a function that changes each batch, a pandas.DataFrame

    A shuffle divides the row groups among the ranks anew in each pass, and mixes the rows of some row groups in memory.
    It depends on seed, rank and pass alone.
    """

    store: Store
    table: Table
    columns: Sequence[str]
    batch_size: int
    rank: int
    size: int
    buffer: int | None = 0
    seed: int = 0
    change: Callable[[], Callable[[Any], Any]] | None = None

    @property
    def steps(self) -> int:
        """The number of batches of a pass, the same on all ranks. The last one may be smaller."""
        return self.table.batches(self.size, self.batch_size)

    def stream(self, first: int = 0) -> Iterator[Batch]:
        """Batches without end, from number `first` on."""
        change = None if self.change is None else self.change()
        begun, skipped = divmod(first, self.steps)
        for number in count(begun):
            for batch in islice(self._one_pass(number), skipped, self.steps):
                yield batch if change is None else _changed(batch, change)
            skipped = 0

    def _one_pass(self, number: int) -> Iterator[Batch]:
        rng, shuffled = np.random.default_rng([self.seed, number, self.rank]), self.buffer != 0
        table = self.table.shuffled(np.random.default_rng([self.seed, number])) if shuffled else self.table
        parts = table.share(self.rank, self.size)
        files, held, rows = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self.store.fs)), [], 0
        for group, begin, end in parts:
            part = self._read(files, group, begin, end)
            held.append(part)
            rows += len(part[self.columns[0]])
            enough = self._capacity(part) if shuffled else self.batch_size
            if rows < enough:
                continue
            whole = _joined(held, rng if shuffled else None)
            keep = rows // 2 if shuffled else 0  # rows that stay are mixed with those of the next row groups
            out = (rows - keep) // self.batch_size * self.batch_size
            yield from _cut(whole, 0, out, self.batch_size)
            held, rows = [{name: values[out:] for name, values in whole.items()}], rows - out
        if rows:
            yield from _cut(_joined(held, rng if shuffled else None), 0, rows, self.batch_size)

    def _capacity(self, part: Batch) -> int:
        if self.buffer is not None:
            return max(self.buffer, 2 * self.batch_size)
        row = sum(values[:1].nbytes for values in part.values())
        return max(_SHUFFLED // max(row, 1), 2 * self.batch_size)

    def _read(self, files: Any, group: RowGroup, begin: int, end: int) -> Batch:
        form = pyarrow.dataset.ParquetFileFormat()
        fragment = form.make_fragment(group.path, files, row_groups=[group.number])
        table = fragment.to_table(columns=list(self.columns)).slice(begin, end - begin)
        return {name: _values(name, table.column(name)) for name in self.columns}


def _values(name: str, column: Any) -> NDArray[Any]:
    """A column as an array. Raises ValueError for empty values, and for arrays of several lengths."""
    if column.null_count:
        raise ValueError(f"column {name!r}: {column.null_count} of {len(column)} rows are null")
    if not is_list(column.type):
        return np.asarray(column.to_numpy())
    lengths = set(pyarrow.compute.unique(pyarrow.compute.list_value_length(column)).to_pylist())
    if len(lengths) > 1:
        raise ValueError(
            f"column {name!r}: arrays of {min(lengths)} to {max(lengths)} elements; all must have one length"
        )
    flat = pyarrow.compute.list_flatten(column)
    if flat.null_count:
        raise ValueError(f"column {name!r}: {flat.null_count} elements are null")
    return np.asarray(flat.to_numpy()).reshape(len(column), *lengths)


def is_list(kind: Any) -> bool:
    """True for Arrow's types of arrays."""
    return any(
        test(kind) for test in (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
    )


def _joined(parts: Sequence[Batch], rng: np.random.Generator | None) -> Batch:
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if rng is None:
        return whole
    order = rng.permutation(len(next(iter(whole.values()))))
    return {name: values[order] for name, values in whole.items()}


def _cut(rows: Batch, begin: int, end: int, size: int) -> Iterator[Batch]:
    for start in range(begin, end, size):
        yield {name: values[start : min(start + size, end)] for name, values in rows.items()}


def _changed(batch: Batch, change: Callable[[Any], Any]) -> Batch:
    import pandas

    frame = pandas.DataFrame({name: list(values) if values.ndim > 1 else values for name, values in batch.items()})
    found = change(frame)
    lost = [name for name in batch if name not in found]
    if lost:
        raise ValueError(f"transformation_fn: the columns {', '.join(lost)} are missing in its result")
    return {
        name: np.stack(found[name].to_list()) if found[name].dtype == object else found[name].to_numpy()
        for name in batch
    }


def readable(frame: Any, names: Iterable[str]) -> list[Any]:
    """Columns of a dataframe as numbers and arrays of numbers, with their names.

    Raises ValueError for a column that does not exist, TypeError for one of another type.
    """
    found = {part.name: part.dataType for part in frame.schema.fields}
    columns = []
    for name in dict.fromkeys(names):
        if name not in found:
            raise ValueError(f"df: has no column {name!r}; its columns are {', '.join(map(repr, found))}")
        kind, column = found[name], functions.col(f"`{name}`")
        inner = kind.elementType if isinstance(kind, types.ArrayType) else kind
        if isinstance(kind, VectorUDT | OldVectorUDT):
            column = vector_to_array(column)
        elif isinstance(inner, types.DecimalType):
            column = column.cast("array<double>" if inner is not kind else "double")
        elif not isinstance(inner, types.NumericType | types.BooleanType):
            raise TypeError(
                f"column {name!r} is of type {kind.simpleString()}: must be a number, an array of numbers or a vector"
            )
        columns.append(column.alias(name))
    return columns


@dataclass(frozen=True)
class Split:
    """Rows that are kept for the validation.

    validation  a share of the rows, or the name of a column that is above 0, or true, in them; None for no rows
    keep        the column is one of the model's as well
    """

    validation: float | str | None
    seed: int
    keep: bool = False

    def divide(self, batch: Any, rng: np.random.Generator) -> dict[str, Any]:
        """The rows of a record batch, by the table they go to."""
        if self.validation is None:
            return {TRAINING: batch}
        if isinstance(self.validation, str):
            values = batch.column(self.validation)
            chosen = pyarrow.compute.fill_null(pyarrow.compute.greater(values.cast(pyarrow.float64()), 0), False)
            batch = batch if self.keep else batch.drop_columns([self.validation])
        else:
            chosen = pyarrow.array(rng.random(len(batch)) < self.validation)
        return {TRAINING: batch.filter(pyarrow.compute.invert(chosen)), VALIDATION: batch.filter(chosen)}


@dataclass
class _Seen:
    """Empty values and lengths of arrays that a task has found in a column."""

    nulls: int = 0
    lengths: set[int | None] = field(default_factory=set)

    def add(self, column: Any) -> None:
        nulls = column.null_count
        if is_list(column.type):
            nulls += pyarrow.compute.list_flatten(column).null_count
            self.lengths |= set(pyarrow.compute.unique(pyarrow.compute.list_value_length(column)).to_pylist()) - {None}
        self.nulls += nulls


def write(frame: Any, names: Sequence[str], split: Split, store: Store, folder: str) -> dict[str, Table]:
    """Write columns of a dataframe into a folder of the store, a file for each of its partitions. Returns the tables.

    Raises as `readable`; ValueError for empty values and for arrays of several lengths; what Spark raises if a task
    fails.
    """
    extra = [split.validation] if isinstance(split.validation, str) else []
    chosen = frame.select(*readable(frame, [*names, *extra]))
    store.fs.makedirs(folder, exist_ok=True)
    reports = [
        json.loads(row[0])
        for row in chosen.mapInArrow(partial(_write, store, folder, split), "report string").collect()
    ]
    for name in names:
        nulls = sum(report["columns"][name][0] for report in reports if name in report["columns"])
        lengths = {one for report in reports if name in report["columns"] for one in report["columns"][name][1]}
        if nulls:
            raise ValueError(f"column {name!r}: {nulls} values are null")
        if len(lengths) > 1:
            low, high = min(lengths), max(lengths)
            raise ValueError(f"column {name!r}: arrays of {low} to {high} elements; all must have one length")
    tables: dict[str, list[RowGroup]] = {TRAINING: [], VALIDATION: []}
    for report in sorted(reports, key=lambda report: int(report["task"])):
        for title, groups in report["groups"].items():
            tables[title] += [RowGroup(path, number, rows) for path, number, rows in groups]
    return {title: Table(groups) for title, groups in tables.items()}


def _write(store: Store, folder: str, split: Split, batches: Iterable[Any]) -> Iterator[Any]:
    """Write the rows of a partition, each record batch as a row group. The report tells its files, rows and columns.

    Files have the number of the attempt in their names: those of an attempt that failed are in no report.
    """
    context = TaskContext.get()
    assert context is not None
    task, fs = context.partitionId(), store.fs
    rng = np.random.default_rng([split.seed, task])
    seen: dict[str, _Seen] = defaultdict(_Seen)
    groups: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    writers: dict[str, Any] = {}
    try:
        for batch in batches:
            for title, rows in split.divide(batch, rng).items():
                if not len(rows):
                    continue
                path = f"{folder}/{title}-{task:05d}-{context.taskAttemptId()}.parquet"
                if title not in writers:
                    target = fs.open(path, "wb")
                    writers[title] = target, pyarrow.parquet.ParquetWriter(target, rows.schema)
                writers[title][1].write_batch(rows)
                groups[title].append((path, len(groups[title]), len(rows)))
                for name in rows.schema.names:
                    seen[name].add(rows.column(name))
    finally:
        for target, writer in writers.values():
            writer.close()
            target.close()
    columns = {name: (one.nulls, sorted(one.lengths)) for name, one in seen.items()}  # type: ignore[type-var]
    report = json.dumps({"task": task, "groups": groups, "columns": columns})
    yield pyarrow.RecordBatch.from_pydict({"report": [report]})


def find(store: Store, folder: str, names: Sequence[str]) -> Table:
    """The table of Parquet that others have written. Raises FileNotFoundError without it, ValueError without one of
    the columns, TypeError for a type that is not of numbers."""
    fs = store.fs
    if not fs.exists(folder):
        raise FileNotFoundError(f"store: there is no Parquet at {folder}")
    files = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    data = pyarrow.dataset.dataset(folder, filesystem=files, format="parquet")
    for name in names:
        if name not in data.schema.names:
            raise ValueError(
                f"{folder}: has no column {name!r}; its columns are {', '.join(map(repr, data.schema.names))}"
            )
        kind = data.schema.field(name).type
        inner = kind.value_type if is_list(kind) else kind
        tests = (pyarrow.types.is_integer, pyarrow.types.is_floating, pyarrow.types.is_boolean)
        if not any(test(inner) for test in tests):
            raise TypeError(f"{folder}: column {name!r} is of type {kind}: must be a number or an array of numbers")
    return Table(
        [
            RowGroup(fragment.path, part.row_groups[0].id, part.row_groups[0].num_rows)
            for fragment in sorted(data.get_fragments(), key=lambda fragment: str(fragment.path))
            for part in fragment.split_by_row_group()
        ]
    )


def of_arrow(batch: Any, names: Mapping[str, str]) -> Batch:
    """Columns of a record batch as arrays, under the names that `names` gives them. Raises as a reader does."""
    return {name: _values(name, pyarrow.chunked_array([batch.column(column)])) for name, column in names.items()}
