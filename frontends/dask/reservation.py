"""Workers that a job has reserved. The scheduler keeps the table, so that a job gets all of its workers or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_TABLE: Final = "ronde-jobs"
"""The scheduler's extension that maps a job to its client and its workers."""


@dataclass(frozen=True)
class Answer:
    """The workers that are reserved now, or none of them; and those that jobs hold."""

    reserved: tuple[str, ...]
    taken: tuple[str, ...]


def reserve(
    job: str, client: str, count: int | None, workers: Sequence[str] | None, *, dask_scheduler: Any = None
) -> Answer:
    """Reserve `count` free workers among `workers`, without these among all; without a count, all of them.

    Runs on the scheduler, whose loop runs one function at a time. Jobs of clients that have gone hold nothing.
    """
    table: dict[str, tuple[str, tuple[str, ...]]] = dask_scheduler.extensions.setdefault(_TABLE, {})
    for name, (owner, _) in list(table.items()):
        if owner not in dask_scheduler.clients:
            del table[name]
    taken = {address for _, addresses in table.values() for address in addresses}
    among = list(dask_scheduler.workers) if workers is None else list(workers)
    free = [address for address in among if address in dask_scheduler.workers and address not in taken]
    wanted = len(among) if count is None else count
    if not wanted or len(free) < wanted:
        return Answer((), tuple(address for address in among if address in taken))
    table[job] = client, tuple(free[:wanted])
    return Answer(table[job][1], ())


def release(job: str, *, dask_scheduler: Any = None) -> None:
    """Give the workers of the job back. Idempotent."""
    dask_scheduler.extensions.get(_TABLE, {}).pop(job, None)


def present(workers: Sequence[str], *, dask_scheduler: Any = None) -> list[str]:
    """Those of the workers that the scheduler still has."""
    return [address for address in workers if address in dask_scheduler.workers]
