"""Applies to every test: marks by folder, a look at what it leaves behind, and profiles for property tests."""

from __future__ import annotations

import gc
import multiprocessing.process
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.processes import run_processes, start_fork_server
from transports.testing import Leaks

TESTS = Path(__file__).parent

settings.register_profile("ronde", deadline=None, max_examples=30)
settings.register_profile("ronde-ci", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("proof", deadline=None, max_examples=300)
settings.load_profile("ronde-ci" if os.environ.get("CI") else "ronde")

MARKS = {
    "netns": "cluster",
    "transports/launchers/test_real_launchers.py": "cluster",
    "collectives/membership/test_many_processes.py": "cluster",
    "engines": "engines",
    "frontends": "frameworks",
    "gpu": "long",
    "security": "long",
    "collectives/algorithms": "proof",
    "collectives/proof": "proof",
    "collectives/schedule": "proof",
}
"""The mark of all tests in a folder or file."""

FIRST = ("frontends", "chaos", "netns", "test_examples.py", "collectives/membership")
"""Folders whose files take longest. They start first, so that no worker is left alone with one of them in the end."""

KEEPERS = {"worlds", "pool", "frameworks", "ray_cluster", "dask_client", "spark"}
"""Fixtures that keep what a test opens for the tests after it, and close it in the end."""


def belongs(path: Path, folder: str) -> bool:
    return path.is_relative_to(TESTS / folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "skip every test when it starts a process"
    parser.addoption("--no-processes", action="store_true", help=text)


def skip_instead(*args: Any, **kwargs: Any) -> Any:
    """Stands for all functions that start a process."""
    pytest.skip("starts a process (--no-processes)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out a folder whose mark is deselected (-m "not frameworks"): importing its modules alone takes seconds."""
    parts = re.split(r"\s+and\s+", config.option.markexpr.strip())
    return any(f"not {mark}" in parts and belongs(collection_path, folder) for folder, mark in MARKS.items()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder, mark in MARKS.items():
            if belongs(item.path, folder):
                item.add_marker(mark)
    items.sort(key=lambda item: not any(belongs(item.path, folder) for folder in FIRST))


@pytest.fixture(autouse=True, scope="session")
def no_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --no-processes, makes every function that starts a process skip the test that calls it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--no-processes"):
            patch.setattr(subprocess.Popen, "__init__", skip_instead)
            patch.setattr(multiprocessing.process.BaseProcess, "start", skip_instead)
            for name in {"fork", "forkpty", "posix_spawn", "posix_spawnp"} & set(dir(os)):
                patch.setattr(os, name, skip_instead)
        yield


@pytest.fixture(autouse=True, scope="session")
def fork_server(request: pytest.FixtureRequest, no_processes: None) -> None:
    """Starts the process that `run_processes` forks ranks from, before any test could be blamed for it."""
    modules = {item.module for item in request.session.items if isinstance(item, pytest.Function)}
    wanted = any(getattr(module, "run_processes", None) is run_processes for module in modules)
    if wanted and not request.config.getoption("--no-processes"):
        start_fork_server()


@pytest.fixture(autouse=True, scope="module")
def imports_are_put_aside() -> None:
    """Keeps the collection of garbage that follows each test short: it need not search what a module imports."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves threads, descriptors, shared-memory files or processes."""
    if KEEPERS & set(request.fixturenames):
        yield
        return
    with Leaks():
        yield
