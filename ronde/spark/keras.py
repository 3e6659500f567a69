"""An estimator of Keras models for Spark's dataframes. The code is in frontends.spark.keras."""

from __future__ import annotations

from frontends.spark.keras import *  # noqa: F403
from frontends.spark.keras import __all__ as __all__
