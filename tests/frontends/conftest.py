"""Rank processes for all tests of the frontends, and limits that hold on a machine with much else to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.frontends.pool import Framework, bound, framework


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Frameworks take seconds to import, and minutes where ten processes share a core."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(bound(600)))


@pytest.fixture(scope="session")
def frameworks() -> Iterator[Callable[[str], Framework]]:
    """frameworks(name) has the pools of ranks with a framework; see pool.framework."""
    found: dict[str, Framework] = {}

    def of(name: str) -> Framework:
        if name not in found:
            found[name] = framework(name)
        return found[name]

    yield of
    for one in found.values():
        one.close()


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest, frameworks: Callable[[str], Framework]) -> Framework:
    """pool(size) is a pool of ranks with the framework that the module is named after: test_torch_ops.py -> torch."""
    return frameworks(request.path.stem.split("_")[1])
