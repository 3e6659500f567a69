"""What every test gets: a look at what it leaves behind, and property tests that a deadline cannot make flaky."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from transports.testing import Leaks

settings.register_profile("ronde", deadline=None)
settings.register_profile("ronde-ci", deadline=None, derandomize=True)
settings.load_profile("ronde-ci" if os.environ.get("CI") else "ronde")

GROWING = {"worlds", "pool"}
"""The fixtures that keep what a test opens for the tests after it, and close it in the end."""


@pytest.fixture(autouse=True, scope="module")
def what_there_is_stays() -> None:
    """What was imported and kept before a module's tests is not theirs: every look for leaks would search through all
    of it otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves threads, descriptors, shared-memory files or processes."""
    if GROWING & set(request.fixturenames):
        yield
        return
    with Leaks():
        yield
