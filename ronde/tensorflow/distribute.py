"""Ronde under tf.distribute. The code is in frontends.tensorflow.distribute."""

from __future__ import annotations

from frontends.tensorflow.distribute import MirroredStrategy, RondeCrossDeviceOps

__all__ = ["MirroredStrategy", "RondeCrossDeviceOps"]
