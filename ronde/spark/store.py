"""The store of the estimators for Spark's dataframes. The code is in frontends.spark.store."""

from __future__ import annotations

from frontends.spark.store import *  # noqa: F403
from frontends.spark.store import __all__ as __all__
