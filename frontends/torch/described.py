"""The part of torch's process group interface that is not communication: names, devices, capabilities."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from frontends.torch.works import eager
from frontends.torch_backend import BACKEND


@eager
class Described(dist.ProcessGroup):  # type: ignore[misc]
    """Base of ProcessGroup: a process group that is its own backend, for CPU and CUDA devices."""

    supports_splitting = True
    supports_coalescing = False
    supports_shrinking = False
    supports_time_estimate = False
    options = None

    def __init__(self, rank: int, size: int, store: Any) -> None:
        """`store` is torch's, in which the group met."""
        super().__init__(rank, size)
        self._store = store
        self._name = ""
        self._description = "undefined"

    def getBackendName(self) -> str:
        """Return 'ronde'."""
        return BACKEND

    name = getBackendName

    def _get_backend(self, device: torch.device) -> Described:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _start_coalescing(self, device: torch.device) -> None:
        """Refuse: operations are coalesced by their lists, not by the device."""
        _world.pg_coalesce_state.pop(self, None)  # else torch would collect the group's later operations for ever
        raise RuntimeError(
            f"device={device}: must be None; the backend {BACKEND} coalesces operations without a device"
        )

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """False: torch allocates."""
        return False

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Nothing: ranks that are not in a new group do not take part in making it."""

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Nothing: the ranks have connected when the group was made."""

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        """The name that torch gave the group."""
        return self._name

    setGroupName = _set_group_name

    @property
    def group_name(self) -> str:
        """The name that torch gave the group."""
        return self._name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_desc(self) -> str:
        """The description that torch gave the group."""
        return self._description

    def get_group_store(self) -> Any:
        """Return torch's store, which the group used as rendezvous."""
        return self._store
