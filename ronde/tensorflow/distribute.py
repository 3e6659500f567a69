"""Ronde under tf.distribute. The code is in frontends.tensorflow.distribute."""

from __future__ import annotations

from frontends.tensorflow.distribute import RondeCrossDeviceOps

__all__ = ["RondeCrossDeviceOps"]
