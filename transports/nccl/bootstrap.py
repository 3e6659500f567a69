"""How the ranks of an NCCL communicator find each other through the group's store.

    every rank   tells what it is: NCCL's version, its GPU, or why it cannot take part
    rank 0       judges when all have, and if all is well mints the unique id; its verdict is the id, or a reason
    every rank   reads the verdict, begins to make its communicator, and tells when it has it, or why it failed
    rank 0       confirms when all have theirs; whoever failed refuses instead

So all go on or all stop, for the same reason. NCCL itself does not notice most of what is judged here before its ranks
hang. Keys carry the generation beside what the store's prefix says: an id is of use to one set of ranks only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgpack

from transports.base import Group
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError
from transports.native import NotNative
from transports.nccl.api import OLDEST, SHARED_DEVICES, Device, NcclApi, NcclError, dotted

ID_BYTES: Final = 128
_SLICE: Final = 0.1
"""Seconds between two looks at whether the job has been aborted."""
_NOT_MADE: Final = "did not make its NCCL communicator in time"
_MARGIN: Final = 2.0
"""Seconds at most by which rank 0 gives up earlier, so that all hear from it who was missing."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a rank brings.

    host     what NCCL takes for one machine: the host, unless NCCL_HOSTID says otherwise
    shares   NCCL_MULTI_RANK_GPU_ENABLE allows it to share a GPU
    """

    version: int
    host: str
    uuid: str
    gpu: str
    capability: tuple[int, int]
    shares: bool


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the ranks agreed on: the id, the version of NCCL, and the least that their GPUs can do."""

    unique_id: bytes
    version: int
    capability: tuple[int, int]


def identity(api: NcclApi, device: Device, host: str) -> Identity:
    """What this rank brings. Raises NcclError."""
    return Identity(
        api.version(),
        os.environ.get("NCCL_HOSTID", host),
        device.uuid,
        device.name,
        device.capability,
        os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1",
    )


class Assembly:
    """The meeting of some ranks of a group under one key, as seen from one of them."""

    def __init__(self, group: Group, ranks: Sequence[int], key: str, attend: Callable[[], None]) -> None:
        """`attend` is called now and then while waiting; what it raises ends the wait."""
        self._group = group
        self._ranks = ranks
        self._attend = attend
        self._store = group.store.prefixed(f"nccl/{group.generation}/{key}")
        self._looked = 0.0

    def meet(self, bring: Callable[[], tuple[NcclApi, Identity]], deadline: float) -> Meeting:
        """Meet the other ranks. Collective.

        bring   what this rank has to offer; a ConfigError or NcclError from it is told to all

        Raises NotNative if these ranks cannot have a communicator; DeadlineExceeded or RendezvousError, naming the rank
        that did not come.
        """
        api: NcclApi | None = None
        try:
            api, mine = bring()
            told: dict[str, Any] = asdict(mine)
        except (ConfigError, NcclError) as error:
            told = {"cannot": str(error)}
        self._tell(f"rank/{self._group.rank}", told)
        if self._leads:
            verdict = self._judge(api, self._early(deadline))
            self._tell("verdict", verdict)
        else:
            verdict = self._hear("verdict", self._ranks[0], deadline)
        self._obey(verdict)
        return Meeting(verdict["id"], verdict["version"], tuple(verdict["capability"]))

    def refuse(self, reason: str) -> None:
        """Tell all, who have met, that this rank's communicator could not be made."""
        with contextlib.suppress(RendezvousError):  # without a store they find out by their deadline
            self._tell("made", {"refused": f"{self._group.describe(self._group.rank)}: {reason}"})

    def check(self) -> None:
        """Raises NotNative if another rank has refused, and what `attend` raises. Looks now and then only."""
        self._attend()
        now = time.monotonic()
        if now >= self._looked + _SLICE:
            self._looked = now
            with contextlib.suppress(DeadlineExceeded):  # nobody has said anything yet
                self._obey(self._get("made", now))

    def confirm(self, deadline: float) -> None:
        """This rank's communicator is made: wait until all have theirs. Collective. Raises as `meet`."""
        self._tell(f"made/{self._group.rank}", {})
        if self._leads:
            for rank in self._ranks:
                self._obey(self._hear(f"made/{rank}", rank, self._early(deadline), unless="made"), _NOT_MADE)
            self._tell("made", {})
        else:
            self._obey(self._hear("made", self._ranks[0], deadline), _NOT_MADE)

    @property
    def _leads(self) -> bool:
        return self._group.rank == self._ranks[0]

    def _early(self, deadline: float) -> float:
        return deadline - min(_MARGIN, max(0.0, deadline - time.monotonic()) / 4)

    def _judge(self, api: NcclApi | None, deadline: float) -> dict[str, Any]:
        """Rank 0's verdict on what all ranks have told."""
        brought: dict[int, Identity] = {}
        for rank in self._ranks:
            told = self._hear(f"rank/{rank}", rank, deadline)
            if "cannot" in told:
                return {"refused": f"{self._group.describe(rank)}: {told['cannot']}"}
            if "late" in told:
                return told
            brought[rank] = Identity(**{**told, "capability": tuple(told["capability"])})
        reason = objection(self._group, brought)
        if reason:
            return {"refused": reason}
        me = self._group.describe(self._group.rank)
        assert api is not None  # this rank has brought something itself
        try:
            unique_id = api.unique_id()
        except NcclError as error:
            return {"refused": f"{me} could not mint a unique id: {error}"}
        if len(unique_id) != ID_BYTES:
            return {"refused": f"{me} minted a unique id of {len(unique_id)} bytes, not {ID_BYTES}"}
        return {
            "id": unique_id,
            "version": min(one.version for one in brought.values()),
            "capability": min(one.capability for one in brought.values()),
        }

    def _obey(self, verdict: dict[str, Any], late: str = "did not come to make an NCCL communicator") -> None:
        if "late" in verdict:
            rank = int(verdict["late"])
            raise DeadlineExceeded(f"{self._group.describe(rank)} {late}", rank=self._group.rank, peer=rank)
        if "refused" in verdict:
            raise NotNative(str(verdict["refused"]), rank=self._group.rank)

    def _tell(self, key: str, value: dict[str, Any]) -> None:
        self._store.set(key, msgpack.packb(value))

    def _get(self, key: str, deadline: float) -> dict[str, Any]:
        told: dict[str, Any] = msgpack.unpackb(self._store.get(key, deadline))
        return told

    def _hear(self, key: str, rank: int, deadline: float, unless: str = "") -> dict[str, Any]:
        """What a rank says under `key`, or what is said under `unless` meanwhile; {"late": rank} if it says nothing."""
        while True:
            end = min(deadline, time.monotonic() + _SLICE)
            try:
                return self._get(key, end)
            except DeadlineExceeded:
                if end == deadline:
                    return {"late": rank}
            self._attend()
            if unless:
                with contextlib.suppress(DeadlineExceeded):
                    return self._get(unless, time.monotonic())


def objection(group: Group, brought: dict[int, Identity]) -> str:
    """Why these ranks cannot share a communicator; empty if they can."""
    first = min(brought)
    versions = {rank: one.version for rank, one in brought.items()}
    for rank, version in versions.items():
        if version < OLDEST:
            return f"{group.describe(rank)} has NCCL {dotted(version)}; it must be {dotted(OLDEST)} or newer"
        if version != versions[first]:
            return (
                f"{group.describe(first)} has NCCL {dotted(versions[first])}, {group.describe(rank)} has "
                f"{dotted(version)}; it must be the same everywhere"
            )
    if versions[first] >= SHARED_DEVICES and all(one.shares for one in brought.values()):
        return ""
    seen: dict[tuple[str, str], int] = {}
    for rank, one in brought.items():
        other = seen.setdefault((one.host, one.uuid), rank)
        if other != rank:
            return (
                f"{group.describe(other)} and {group.describe(rank)} use the same GPU ({one.gpu}, {one.uuid}); every "
                "rank needs one of its own, chosen before the first call, as by cupy.cuda.Device(local_rank).use()"
            )
    return ""
