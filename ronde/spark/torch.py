"""An estimator of torch models for Spark's dataframes. The code is in frontends.spark.torch."""

from __future__ import annotations

from frontends.spark.torch import *  # noqa: F403
from frontends.spark.torch import __all__ as __all__
