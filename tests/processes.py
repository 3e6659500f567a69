"""Ranks that are processes, forked from one that has imported Ronde: a rank costs milliseconds, not an import."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import transports.testing

METHOD: Literal["forkserver", "spawn"] = (
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)


def start_fork_server() -> None:
    """Start the process that forks. It ends with this one."""
    if METHOD == "forkserver":
        multiprocessing.set_forkserver_preload(
            ["pytest", "collectives", "transports.auto", "transports.faulty", "tests.collectives.ranks"]
        )
        multiprocessing.forkserver.ensure_running()


def run_processes(
    fn: Callable[..., Any], size: int, *args: Any, timeout: float, dying: Collection[int] = ()
) -> list[Any]:
    """transports.testing.run_processes with forked processes, in the environment that this process has now."""
    return transports.testing.run_processes(
        _in_environment, size, dict(os.environ), fn, *args, timeout=timeout, dying=dying, start=METHOD
    )


def _in_environment(rank: int, environment: Mapping[str, str], fn: Callable[..., Any], *args: Any) -> Any:
    os.environ.clear()
    os.environ.update(environment)
    return fn(rank, *args)
