"""A backend for the trainers of Ray Train."""

from __future__ import annotations

import contextlib
import importlib.util
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig

from collectives.launch import GuestJob, Occupant, Place, Seat, own_settings, seconds_of, variables_of
from collectives.world_communicator import shutdown

CLOSE_SECONDS: Final = 10.0
"""Seconds for the workers to close the world."""


@dataclass
class RondeConfig(BackendConfig):  # type: ignore[misc]  # Ray's types are not checked
    """Connects the workers of a trainer of Ray Train.

    torch      True: make torch's process group on the backend "ronde", for DDP and `ray.train.torch.prepare_model`.
               False: do not load torch. None: True if torch is installed
    timeout_s  seconds for operations of torch's process group
    env_vars   variables for the ranks; by default Ronde's settings in this process's environment

    `TorchTrainer(..., torch_config=RondeConfig())`, or for NumPy `DataParallelTrainer(...,
    backend_config=RondeConfig(torch=False))`. In the training function `init` finds the world of the workers; its
    ranks are Ray's. Each group of workers that Ray Train starts, also after a lost worker, gets a world of its own.

    Raises ValueError and TypeError for a bad timeout_s or env_vars.
    """

    backend: ClassVar[str] = "ronde"

    torch: bool | None = None
    timeout_s: float = 1800
    env_vars: Mapping[str, str] = field(default_factory=own_settings)

    def __post_init__(self) -> None:
        self.timeout_s = seconds_of("timeout_s", self.timeout_s)
        self.env_vars = variables_of("env_vars", self.env_vars)

    @property
    def backend_cls(self) -> type[Backend]:
        """Ray Train's side of it."""
        return RondeBackend

    @property
    def train_func_context(self) -> Callable[..., Any]:
        """The context of the training function: torch's device, if torch is used."""
        torch = self.torch_config()
        context: Callable[..., Any] = contextlib.nullcontext if torch is None else torch.train_func_context
        return context

    def to_dict(self) -> dict[str, Any]:
        """The part of the configuration that Ray shows."""
        return {"backend": self.backend, "torch": self.torch, "timeout_s": self.timeout_s}

    def torch_config(self) -> Any:
        """Ray's configuration of torch's process group; None without torch."""
        if not (importlib.util.find_spec("torch") is not None if self.torch is None else self.torch):
            return None
        from ray.train.torch import TorchConfig

        return TorchConfig(backend=self.backend, timeout_s=self.timeout_s)


class RondeBackend(Backend):  # type: ignore[misc]
    """Ray Train calls it in its controller, for each group of workers. The store is served there."""

    def __init__(self) -> None:
        self._closing: dict[int, weakref.finalize[..., Any]] = {}  # by the id of the group

    def on_start(self, worker_group: Any, backend_config: RondeConfig) -> None:
        """Give each worker its seat; with torch, make the process group, too."""
        job = GuestJob(backend_config.env_vars)
        # Ray does not call on_shutdown for a group that it has given up.
        self._closing[id(worker_group)] = weakref.finalize(worker_group, job.close)
        try:
            seats = job.seats(worker_group.execute(_place))
            ray.get([worker_group.execute_single_async(number, _take, seat) for number, seat in enumerate(seats)])
            torch = backend_config.torch_config()
            if torch is not None:
                torch.backend_cls().on_start(worker_group, torch)
        except BaseException:
            self._close(worker_group)
            raise

    def on_training_start(self, worker_group: Any, backend_config: RondeConfig) -> None:
        """With torch, what Ray does then."""
        torch = backend_config.torch_config()
        if torch is not None:
            torch.backend_cls().on_training_start(worker_group, torch)

    def on_shutdown(self, worker_group: Any, backend_config: RondeConfig) -> None:
        """Close the worlds of the workers and the store."""
        try:
            torch = backend_config.torch_config()
            if torch is not None:
                torch.backend_cls().on_shutdown(worker_group, torch)
            worker_group.execute(shutdown, CLOSE_SECONDS)
        finally:
            self._close(worker_group)

    def _close(self, worker_group: Any) -> None:
        close = self._closing.pop(id(worker_group), None)
        if close is not None:
            close()


def _place() -> Place:
    """The node of this worker."""
    return Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())


def _take(seat: Seat) -> None:
    """Make this process the rank until it ends, which is when Ray ends the group.

    Raises RuntimeError if Ray numbers the workers in another order.
    """
    number = ray.train.get_context().get_world_rank()
    if number != seat.rank:
        raise RuntimeError(f"Ray's worker {number} would be rank {seat.rank}: Ray has not grouped its workers by node")
    Occupant(seat).__enter__()
