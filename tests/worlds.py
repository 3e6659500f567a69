"""Worlds whose ranks are threads of the test process, kept open between tests."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from collectives import Communicator, Config, connect
from collectives.execution.executor import Executor
from collectives.operations.host import HostOperations
from collectives.planning.plan import Plan
from collectives.world_communicator import world_scope
from transports import registry
from transports.rendezvous.bootstrap import join
from transports.rendezvous.memory import MemoryStore

BOUND = 180.0
THERE = tuple(name for name in ("local", "tcp", "shm", "auto") if registry.backend(name).usable() is None)
"""The transports of this system."""
COMPILED = os.environ.get("RONDE_COMPILED", "auto")
"""All tests can be run with and without the compiled interpreter."""
SECRET = b"a secret for tests only"


class World:
    """`size` ranks over `transport`; `run` gives each of them its communicator as the world. `hosts` are those that the
    ranks pretend to be on, by default one; `compiled` the settings of that name, in turn."""

    def __init__(
        self,
        transport: str,
        size: int,
        *,
        hosts: Sequence[str] = (),
        compiled: Sequence[str] = (COMPILED,),
        **settings: Any,
    ) -> None:
        self.size = size
        self._hosts = hosts
        given = {"transport": transport, "timeout": 60.0, "calibrate": False, **settings}
        self._configs = [Config.load({**given, "compiled": setting}, environment={}) for setting in compiled]
        self._pool = ThreadPoolExecutor(size, thread_name_prefix=f"{transport}-{size}")
        self.store = MemoryStore()
        self._gate = threading.Barrier(size)
        try:
            self.communicators: list[Communicator] = self._everywhere(self._connect)
        except BaseException:
            self._pool.shutdown()
            raise

    def _connect(self, rank: int) -> Communicator:
        deadline = time.monotonic() + BOUND
        group = join(rank, self.size, self.store, secret=SECRET, deadline=deadline)
        if self._hosts:
            members = zip(group.members, self._hosts, strict=True)
            group = dataclasses.replace(group, members=tuple(dataclasses.replace(m, host=h) for m, h in members))
        return connect(group, self._configs[rank % len(self._configs)], deadline)

    def _everywhere(self, fn: Callable[[int], Any]) -> list[Any]:
        futures = [self._pool.submit(fn, rank) for rank in range(self.size)]
        errors, results = [], []
        for rank, future in enumerate(futures):
            try:
                results.append(future.result(BOUND))
            except Exception as error:
                error.add_note(f"on rank {rank} of {self.size}")
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"{len(errors)} of {self.size} ranks failed", errors)
        return results

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """fn(communicator, *args) on every rank; the results in rank order."""

        def call(rank: int) -> Any:
            comm = self.communicators[rank]
            with world_scope(comm):
                try:
                    return fn(comm, *args)
                except BaseException as error:
                    if not isinstance(error, (TypeError, ValueError)):
                        comm.abort(f"a test failed: {error!r}")
                    raise

        return self._everywhere(call)

    @property
    def sound(self) -> bool:
        return all(comm.failure is None for comm in self.communicators)

    def close(self) -> None:
        try:
            self._everywhere(lambda rank: self.communicators[rank].current.close(10.0))
        finally:
            self._pool.shutdown()
            self.store.close()


class Worlds:
    """Opens worlds as they are asked for; replaces those that a failure has broken."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, ...], World] = {}

    def get(self, transport: str, size: int, **settings: Any) -> World:
        key = (transport, size, *sorted(settings.items()))
        world = self._open.get(key)
        if world is None or not world.sound:
            if world is not None:
                world.close()
            world = self._open[key] = World(transport, size, **settings)
        return world

    def close(self) -> None:
        worlds, self._open = list(self._open.values()), {}
        for world in worlds:
            world.close()


@contextlib.contextmanager
def world_of(transport: str, size: int, **settings: Any) -> Iterator[World]:
    """A world for one test."""
    world = World(transport, size, **settings)
    try:
        yield world
    finally:
        world.close()


def host_of(comm: Communicator, *, named: bool = False) -> HostOperations:
    """The operations of a communicator in host memory, or those by name, for tests of what no result shows: which calls
    and plans are kept, and how they run."""
    return (comm._named if named else comm._ordered).host


def executor_of(comm: Communicator, *, named: bool = False) -> Executor:
    """The executor of these operations."""
    return host_of(comm, named=named).executor


def living(kind: type) -> int:
    """The number of objects of a class in this process, once those that nobody refers to are gone."""
    gc.collect()
    return sum(type(found) is kind for found in gc.get_objects())


def kept_plans(comm: Communicator, *, named: bool = False) -> list[Plan]:
    """The plans that a communicator keeps."""
    return list(executor_of(comm, named=named).planner.numbered.values())


def newest_plan(comm: Communicator) -> Plan | None:
    """The plan of the newest call."""
    executor = executor_of(comm)
    return executor.plan_of(executor.calls)
