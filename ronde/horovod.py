"""Horovod's `horovod.run`: `import ronde.horovod as horovod`. The code is in frontends.horovod."""

from __future__ import annotations

from frontends.horovod import run

__all__ = ["run"]
