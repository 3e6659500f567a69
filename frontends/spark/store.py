"""The store of the estimators: a folder of any file system that fsspec knows."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

import msgpack

try:
    import fsspec
except ModuleNotFoundError as error:
    if error.name != "fsspec":
        raise
    raise ModuleNotFoundError("ronde.spark.store needs fsspec: pip install 'ronde[spark]'", name=error.name) from None

__all__ = ["Checkpoint", "Store"]

Which = Literal["last", "best"]
_WHICH: Final = ("last", "best")


@dataclass(frozen=True)
class Checkpoint:
    """A model after an epoch.

    history  numbers of each epoch so far, in the form of the estimator
    state    the values of the model and of the optimizer, in the form of the framework
    shapes   the shape of each output for one row
    """

    history: Sequence[Mapping[str, Any]]
    state: bytes
    shapes: Sequence[Sequence[int]]

    @property
    def epochs(self) -> int:
        """The number of epochs that the model has been trained for."""
        return len(self.history)


@dataclass(frozen=True)
class Store:
    """Folders for the data and the checkpoints of estimators. The driver and all workers must reach them.

    prefix_path      folder, as fsspec writes it: `/mnt/shared/jobs`, `s3://bucket/jobs`, `hdfs://host/jobs`. It is made
                     if it does not exist
    train_path       Parquet for `fit_on_parquet`; by default `train_data` in the prefix
    val_path         Parquet of the validation for `fit_on_parquet`; by default `val_data` in the prefix
    runs_path        folder of the checkpoints, one folder for each run; by default `runs` in the prefix
    storage_options  arguments of fsspec's file system, such as credentials. They are not in `repr`

    It stands for Horovod's LocalStore, HDFSStore and DBFSLocalStore.
    """

    prefix_path: str
    train_path: str | None = None
    val_path: str | None = None
    runs_path: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.prefix_path, str) or not self.prefix_path:
            raise ValueError(f"prefix_path={self.prefix_path!r}: must be the path of a folder")

    @classmethod
    def create(cls, prefix_path: str, **options: Any) -> Self:
        """Horovod's name for the constructor."""
        return cls(prefix_path, **options)

    @property
    def fs(self) -> Any:
        """The file system, an fsspec.AbstractFileSystem. Raises ValueError for an unknown protocol, ImportError for a
        protocol whose package is missing."""
        return fsspec.core.url_to_fs(self.prefix_path, **self.storage_options)[0]

    def path(self, *parts: str) -> str:
        """A path in the prefix, as `fs` takes it."""
        return "/".join([self._plain(self.prefix_path), *parts])

    def get_train_data_path(self) -> str:
        """Folder of the Parquet that `fit_on_parquet` trains on, as `fs` takes it."""
        return self.path("train_data") if self.train_path is None else self._plain(self.train_path)

    def get_val_data_path(self) -> str:
        """Folder of the Parquet that `fit_on_parquet` validates with, as `fs` takes it."""
        return self.path("val_data") if self.val_path is None else self._plain(self.val_path)

    def get_run_path(self, run_id: str) -> str:
        """Folder of a run's checkpoints, as `fs` takes it."""
        runs = self.path("runs") if self.runs_path is None else self._plain(self.runs_path)
        return f"{runs}/{run_id}"

    def save_checkpoint(self, run_id: str, checkpoint: Checkpoint, which: Which = "last") -> None:
        """Write a checkpoint in the place of an earlier one. A reader finds the old or the new one, whole."""
        place, fs = self._checkpoint(run_id, which), self.fs
        parts = {"history": checkpoint.history, "state": checkpoint.state, "shapes": checkpoint.shapes}
        fresh = f"{place}.{uuid.uuid4().hex}"
        fs.makedirs(self.get_run_path(run_id), exist_ok=True)
        fs.pipe_file(fresh, msgpack.packb(parts))
        fs.mv(fresh, place)

    def load_checkpoint(self, run_id: str, which: Which = "last") -> Checkpoint | None:
        """The checkpoint after the last epoch, or after the one with the lowest loss; None if there is none."""
        place, fs = self._checkpoint(run_id, which), self.fs
        return Checkpoint(**msgpack.unpackb(fs.cat_file(place))) if fs.exists(place) else None

    def _checkpoint(self, run_id: str, which: Which) -> str:
        if which not in _WHICH:
            raise ValueError(f"which={which!r}: must be one of {', '.join(_WHICH)}")
        return f"{self.get_run_path(run_id)}/{which}.checkpoint"

    def _plain(self, path: str) -> str:
        return str(self.fs._strip_protocol(path)).rstrip("/")
