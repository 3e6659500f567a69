"""Helpers for tests of stores."""

from __future__ import annotations

import time

SECRET = b"a secret of some length"


def soon(seconds: float = 30.0) -> float:
    """A deadline that only a failing test reaches."""
    return time.monotonic() + seconds
