"""A backend for `ray.util.collective`: groups of actors whose collectives are Ronde's."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import ray
from ray.experimental import internal_kv
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)

from collectives.config import Config
from collectives.launch import GuestJob, Place, Seat, own_settings
from collectives.startup import connect
from transports.errors import DeadlineExceeded, RendezvousError
from transports.rendezvous import join, open_store
from transports.store import Store
from transports.tls import Tls

BACKEND: Final = "RONDE"
POLL_SECONDS: Final = 0.02
REACH_SECONDS: Final = 2.0
"""Time for a store to answer; later rank 0 may have published another one."""
_OPS: Final[Mapping[Any, Any]] = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
}


def register() -> None:
    """Make the backend "ronde" known to `ray.util.collective` in this process. Idempotent.

    Ray needs it in the driver, if that calls create_collective_group, and in each actor, before init_collective_group.
    """
    with contextlib.suppress(ValueError):  # it is known already; Ray has no public way to ask
        register_collective_backend(BACKEND, RondeGroup)


class RondeGroup(BaseGroup):  # type: ignore[misc]  # Ray has no types
    """A group of actors. Ray makes it, on all of them at once; arrays are NumPy's, or torch's on the CPU.

    Rank 0 serves the store and publishes its address and secret in the cluster's table of keys until all have met.
    Raises DeadlineExceeded if they do not meet within the setting `connect_timeout`, and the errors of `init`.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        config = Config.load()
        deadline = time.monotonic() + config.connect_timeout
        key = f"ronde-group-{group_name}".encode()
        with contextlib.ExitStack() as resources:
            with contextlib.ExitStack() as published:  # not longer: the next group of this name must not find it
                if rank == 0:
                    job = resources.enter_context(GuestJob(own_settings()))
                    here = Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())
                    internal_kv._internal_kv_put(key, pickle.dumps(job.seats([here] * world_size)), overwrite=True)
                    published.callback(internal_kv._internal_kv_del, key)
                seat, store = serving_store(key, rank, group_name, deadline, config.load_tls())
                resources.callback(store.close)
                group = join(rank, world_size, store, secret=seat.job.secret, deadline=deadline, terms=config.terms)
            self._communicator = connect(group, config, deadline)
            resources.callback(self._communicator.close)
            self._resources = resources.pop_all()

    @classmethod
    def backend(cls) -> str:
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        """Close the communicator. Collective."""
        self._resources.close()

    def allreduce(self, tensor: Sequence[Any], allreduce_options: AllReduceOptions | None = None) -> None:
        array = _array(tensor)
        self._communicator.allreduce(array, _op(allreduce_options), out=array)

    def barrier(self, barrier_options: BarrierOptions | None = None) -> None:
        self._communicator.barrier()

    def reduce(self, tensor: Sequence[Any], reduce_options: ReduceOptions | None = None) -> None:
        array, root = _array(tensor), getattr(reduce_options, "root_rank", 0)
        result = self._communicator.reduce(array, _op(reduce_options), root)
        if result is not None:
            array[...] = result

    def broadcast(self, tensor: Sequence[Any], broadcast_options: BroadcastOptions | None = None) -> None:
        array = _array(tensor)
        self._communicator.broadcast(array, getattr(broadcast_options, "root_rank", 0), out=array)

    def allgather(
        self,
        tensor_list: Sequence[Sequence[Any]],
        tensor: Sequence[Any],
        allgather_options: AllGatherOptions | None = None,
    ) -> None:
        array, targets = _array(tensor), self._parts(tensor_list, tensor)
        parts = np.split(self._communicator.allgather(array.reshape(-1)), self.world_size)
        for target, part in zip(targets, parts, strict=True):
            target[...] = part.reshape(array.shape)

    def reducescatter(
        self,
        tensor: Sequence[Any],
        tensor_list: Sequence[Sequence[Any]],
        reducescatter_options: ReduceScatterOptions | None = None,
    ) -> None:
        target = _array(tensor)
        parts = np.concatenate([part.reshape(-1) for part in self._parts(tensor_list, tensor)])
        target[...] = self._communicator.reduce_scatter(parts, _op(reducescatter_options)).reshape(target.shape)

    def _parts(self, tensor_list: Sequence[Sequence[Any]], tensor: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """The memory of the tensors for all ranks. Raises ValueError unless there is one for each, like `tensor`."""
        alike, parts = _array(tensor), [_array([part]) for part in _one(tensor_list)]
        if len(parts) != self.world_size:
            raise ValueError(f"tensor_list: has {len(parts)} tensors, must have {self.world_size}, one for each rank")
        for place, part in enumerate(parts):
            if (part.shape, part.dtype) != (alike.shape, alike.dtype):
                raise ValueError(
                    f"tensor_list[{place}]: is {part.dtype} of shape {part.shape}, must be {alike.dtype} of shape "
                    f"{alike.shape}, as tensor"
                )
        return parts

    def send(self, tensor: Sequence[Any], send_options: SendOptions) -> None:
        self._communicator.send(_array(tensor), send_options.dst_rank)

    def recv(self, tensor: Sequence[Any], recv_options: RecvOptions) -> None:
        self._communicator.recv(_array(tensor), recv_options.src_rank)


def serving_store(key: bytes, rank: int, group_name: str, deadline: float, tls: Tls | None) -> tuple[Seat, Store]:
    """The seat of this rank, and its store, which answers and which the caller closes: a rank 0 that was killed has
    left one that does not, until the next group of the name has another. Raises DeadlineExceeded, RendezvousError."""
    while True:
        seat = _published(key, rank, group_name, deadline)
        is_last = time.monotonic() + REACH_SECONDS >= deadline
        with contextlib.ExitStack() as opened:
            store = open_store(seat.job.store, seat.job.secret, deadline, tls=tls)
            opened.callback(store.close)
            try:
                store.with_timeout(REACH_SECONDS).peek("reach")
            except RendezvousError:
                if is_last:
                    raise
            else:
                opened.pop_all()
                return seat, store
        time.sleep(POLL_SECONDS)


def _published(key: bytes, rank: int, group_name: str, deadline: float) -> Seat:
    """The seat of this rank, once rank 0 has published it. Raises DeadlineExceeded."""
    while (found := internal_kv._internal_kv_get(key)) is None:
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(f"rank {rank} of group {group_name!r} did not hear from rank 0", rank=rank, peer=0)
        time.sleep(POLL_SECONDS)  # Ray's table of keys has no event to wait for
    seat: Seat = pickle.loads(found)[rank]
    return seat


def _one(tensors: Sequence[Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"tensors: has {len(tensors)}, must have one; a process has one device here")
    return tensors[0]


def _array(tensors: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The memory of the tensor that Ray hands over in a list, as a NumPy array. Raises ValueError, TypeError."""
    tensor = _one(tensors)
    if isinstance(tensor, np.ndarray):
        return tensor
    device = getattr(tensor, "device", None)
    if device is None or getattr(device, "type", None) != "cpu":
        raise TypeError(f"tensor of type {type(tensor).__name__} on {device}: must be a NumPy array or a CPU tensor")
    from frontends.torch import LIBRARY  # torch is loaded then

    array: np.ndarray[Any, Any] = LIBRARY.writable(tensor, "tensor")
    return array


def _op(options: Any) -> Any:
    return _OPS[getattr(options, "reduceOp", ReduceOp.SUM)]
