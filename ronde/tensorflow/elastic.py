"""Training that continues without lost ranks, for TensorFlow. The code is in frontends.tensorflow.elastic."""

from __future__ import annotations

from frontends.tensorflow.elastic import *  # noqa: F403
from frontends.tensorflow.elastic import __all__ as __all__
from frontends.tensorflow.elastic import __getattr__ as __getattr__  # of TensorFlowKerasState, which loads Keras
