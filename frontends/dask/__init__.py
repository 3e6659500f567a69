"""Ronde inside a Dask cluster: Dask has started the workers, Ronde connects them.

`run` calls a function on one rank in each worker process. `reservation` keeps two jobs from the same worker, on the
scheduler; `job` is the side of the client, `task` that of the workers. The ranks meet as guests of collectives.launch.
"""

from __future__ import annotations

from frontends.needs import needs

with needs(**dict.fromkeys(("dask", "distributed"), "ronde.dask needs Dask: pip install 'ronde[dask]'")):
    import distributed as _distributed  # noqa: F401

from collectives.launch import WorkerLost
from frontends.dask.job import run
from frontends.dask.task import report_progress

__all__ = ["WorkerLost", "report_progress", "run"]
