"""The actor that is a rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray import cloudpickle

from collectives.launch import Failure, Occupant, Place, Seat, dump, failure, free_address, load
from collectives.world_communicator import is_initialized, world


class Worker:
    """A rank in a process of Ray's. Ray shows its repr before each line of its output."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._resources = contextlib.ExitStack()
        self._occupant: Occupant | None = None
        self._executable: Any = None

    def __repr__(self) -> str:
        return f"rank {self._rank}"

    def attempt(self, method: str, *args: Any) -> tuple[bytes | None, Any]:
        """Call a method; its dumped failure, if it has failed, and its result."""
        try:
            return None, getattr(self, method)(*args)
        except Exception as error:  # noqa: BLE001  the caller of the job must learn of any error
            return dump(failure(self._rank, error), cloudpickle.dumps), None

    def pid(self) -> int:
        """The process id, which is known once the actor has started."""
        return os.getpid()

    def place(self) -> tuple[Place, int]:
        """The node, and the process id."""
        return Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()), os.getpid()

    def rank_now(self) -> int | None:
        """The rank in the world; None if the world has been closed."""
        return world().rank if is_initialized() else None

    def free_address(self, address: str) -> tuple[str, int]:
        """The node's address with a free port."""
        return free_address(address)

    def connect(
        self, seat: Seat, executable_cls: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Become the rank, connect to the others, and make the executable. Collective."""
        self._occupant = self._resources.enter_context(Occupant(seat))
        self._occupant.connect()
        if executable_cls is not None:
            self._executable = self._occupant.call(executable_cls, args, kwargs)

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function on the rank."""
        assert self._occupant is not None
        self._occupant.connect()  # the function before may have called shutdown
        return self._occupant.call(fn, args, kwargs)

    def call_for_user(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function on the rank, for `ray.get`. Raises an error that can be sent."""
        dumped, value = self.attempt("call", fn, args, kwargs)
        if dumped is not None:
            failed = load(self._rank, dumped)
            assert isinstance(failed, Failure)
            failed.reraise()
        return value

    def call_executable(self, fn: Callable[[Any], Any]) -> Any:
        """Call a function with the executable; without one, with the actor."""
        return self.call(fn, [self if self._executable is None else self._executable], {})

    def leave(self) -> None:
        """Close the world. Collective."""
        self._resources.close()
