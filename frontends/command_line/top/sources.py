"""The sources of the figures of `ronde top`. This host is one; `far` has the same command on another host."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from frontends.top import Figures, Watched, default_folder, figures_of, find, snapshot_of
from transports.errors import ConfigError


class Source(Protocol):
    """A job that is looked at."""

    def begin(self) -> None:
        """Look once: shares of processor time need two looks. Raises RondeError."""

    def figures(self) -> Figures:
        """Those of now. Raises RondeError."""

    def stack(self, rank: int) -> str:
        """The Python stack of a rank; or the reason why there is none. Raises RondeError for what is no rank."""

    def save(self, folder: Path | None) -> str:
        """Save the records into a new folder, by default one of the current folder; a text that tells where. Raises
        OSError, RondeError."""

    def close(self) -> None:
        """Release everything. Idempotent."""


class Here:
    """A job with ranks on this host. Raises ConfigError if `name` does not tell which."""

    def __init__(self, name: str | None) -> None:
        self._job = find(name)
        self._watched = Watched(self._job.folder)

    def begin(self) -> None:
        self._watched.look()

    def figures(self) -> Figures:
        look = self._watched.look()
        return figures_of(look, snapshot_of(look))

    def stack(self, rank: int) -> str:
        size = int(self._job.facts["size"])
        if not 0 <= rank < size:
            raise ConfigError(f"--stack {rank}: must be a rank of the job, 0 to {size - 1}")
        return self._watched.stack(rank)

    def save(self, folder: Path | None) -> str:
        folder = folder or default_folder(self._job.name)
        paths = self._watched.save(folder)
        return f"{len(paths)} records in {folder}: ronde why {folder}/*.flight"

    def close(self) -> None:
        self._watched.close()
