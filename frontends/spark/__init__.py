"""Ronde inside a Spark cluster: Spark has started the workers, Ronde connects them.

`run` calls a function on one rank in each task of a barrier stage, `run_elastic` in tasks that Spark starts again one
by one. `job` and `elastic` are the side of the driver, `task` that of the workers, `desk` and `link` the connections
between them. The ranks meet as guests of collectives.launch.

`estimator` has what estimators for dataframes share: `data` writes and reads the rows, `store` keeps them and the
checkpoints. The public modules `torch` and `keras` add the frameworks. The door imports none of these.
"""

from __future__ import annotations

from frontends.needs import needs

with needs(pyspark="ronde.spark needs PySpark: pip install 'ronde[spark]'"):
    import pyspark as _pyspark  # noqa: F401

from collectives.launch import WorkerLost
from frontends.spark.elastic import run_elastic
from frontends.spark.job import run

__all__ = ["WorkerLost", "run", "run_elastic"]
