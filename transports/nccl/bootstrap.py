"""Bootstrap of an NCCL communicator: its ranks meet through the group's store.

    every rank   publishes NCCL's version and its GPU, or the reason why it cannot take part
    rank 0       compares all of these, and publishes its verdict: NCCL's unique id, or the reason of a refusal
    every rank   reads the verdict, begins to make its communicator, and publishes its success or failure
    rank 0       confirms once all ranks have a communicator; a rank that failed publishes a refusal instead

All ranks go on, or all stop for the same reason. NCCL itself does not detect most of these conflicts: its ranks hang.
Keys contain the generation in addition to the store's prefix, since an id is valid for one set of ranks only.
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
from transports.packed import pack

ID_BYTES: Final = 128
_SLICE: Final = 0.1
"""Seconds between two checks for an abort of the job."""
_NOT_MADE: Final = "did not make its NCCL communicator in time"
_MARGIN: Final = 2.0
"""Maximum seconds by which rank 0 gives up earlier, so that all ranks can read its report of the missing rank."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Properties of a rank that decide whether it can take part.

    host     the machine in NCCL's terms: the host, or the value of NCCL_HOSTID
    shares   True if NCCL_MULTI_RANK_GPU_ENABLE allows it to share a GPU
    """

    version: int
    host: str
    uuid: str
    gpu: str
    capability: tuple[int, int]
    shares: bool


@dataclass(frozen=True, slots=True)
class Meeting:
    """The agreement of the ranks: NCCL's unique id and version, and the lowest compute capability of their GPUs."""

    unique_id: bytes
    version: int
    capability: tuple[int, int]


def identity(api: NcclApi, device: Device, host: str) -> Identity:
    """The properties of this rank. Raises NcclError."""
    return Identity(
        api.version(),
        os.environ.get("NCCL_HOSTID", host),
        device.uuid,
        device.name,
        device.capability,
        os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1",
    )


class Assembly:
    """The meeting of some ranks of a group under one key, for one of these ranks."""

    def __init__(self, group: Group, ranks: Sequence[int], key: str, poll: Callable[[], None]) -> None:
        """Waits call `poll` periodically. An error of it ends the wait."""
        self._group = group
        self._ranks = ranks
        self._poll = poll
        self._store = group.store.prefixed(f"nccl/{group.generation}/{key}")
        self._looked = 0.0

    def meet(self, bring: Callable[[], tuple[NcclApi, Identity]], deadline: float) -> Meeting:
        """Meet the other ranks. Collective.

        bring   returns the properties of this rank; its ConfigError or NcclError is published to all ranks

        Raises NotNative if these ranks cannot have a communicator; DeadlineExceeded or RendezvousError, naming the
        missing rank.
        """
        api: NcclApi | None = None
        try:
            api, mine = bring()
            answer: dict[str, Any] = asdict(mine)
        except (ConfigError, NcclError) as error:
            answer = {"cannot": str(error)}
        self._publish(f"rank/{self._group.rank}", answer)
        if self._leads:
            verdict = self._judge(api, self._early(deadline))
            self._publish("verdict", verdict)
        else:
            verdict = self._wait_for("verdict", self._ranks[0], deadline)
        self._raise_refusal(verdict)
        return Meeting(verdict["id"], verdict["version"], tuple(verdict["capability"]))

    def reject(self, reason: str) -> None:
        """Publish, after `meet`, that this rank could not make its communicator."""
        with contextlib.suppress(RendezvousError):  # without a store the other ranks wait until their deadline
            self._publish("made", {"refused": f"{self._group.describe(self._group.rank)}: {reason}"})

    def check(self) -> None:
        """Raise NotNative if another rank has refused, and the errors of `poll`. Reads the store periodically only."""
        self._poll()
        now = time.monotonic()
        if now >= self._looked + _SLICE:
            self._looked = now
            answer = self._peek("made")
            if answer is not None:
                self._raise_refusal(answer)

    def confirm(self, deadline: float) -> None:
        """Wait, after this rank has made its communicator, for those of all ranks. Collective. Raises as `meet`."""
        self._publish(f"made/{self._group.rank}", {})
        if self._leads:
            for rank in self._ranks:
                self._raise_refusal(
                    self._wait_for(f"made/{rank}", rank, self._early(deadline), unless="made"), _NOT_MADE
                )
            self._publish("made", {})
        else:
            self._raise_refusal(self._wait_for("made", self._ranks[0], deadline), _NOT_MADE)

    @property
    def _leads(self) -> bool:
        return self._group.rank == self._ranks[0]

    def _early(self, deadline: float) -> float:
        return deadline - min(_MARGIN, max(0.0, deadline - time.monotonic()) / 4)

    def _judge(self, api: NcclApi | None, deadline: float) -> dict[str, Any]:
        """Rank 0's verdict on the properties of all ranks."""
        brought: dict[int, Identity] = {}
        for rank in self._ranks:
            answer = self._wait_for(f"rank/{rank}", rank, deadline)
            if "cannot" in answer:
                return {"refused": f"{self._group.describe(rank)}: {answer['cannot']}"}
            if "late" in answer:
                return answer
            brought[rank] = Identity(**{**answer, "capability": tuple(answer["capability"])})
        reason = objection(self._group, brought)
        if reason:
            return {"refused": reason}
        me = self._group.describe(self._group.rank)
        assert api is not None  # the properties of this rank were published
        try:
            unique_id = api.unique_id()
        except NcclError as error:
            return {"refused": f"{me} could not make a unique id: {error}"}
        if len(unique_id) != ID_BYTES:
            return {"refused": f"{me} made a unique id of {len(unique_id)} bytes, not {ID_BYTES}"}
        return {
            "id": unique_id,
            "version": min(one.version for one in brought.values()),
            "capability": min(one.capability for one in brought.values()),
        }

    def _raise_refusal(self, verdict: dict[str, Any], late: str = "did not come to make an NCCL communicator") -> None:
        if "late" in verdict:
            rank = int(verdict["late"])
            raise DeadlineExceeded(f"{self._group.describe(rank)} {late}", rank=self._group.rank, peer=rank)
        if "refused" in verdict:
            raise NotNative(str(verdict["refused"]), rank=self._group.rank)

    def _publish(self, key: str, value: dict[str, Any]) -> None:
        self._store.set(key, pack(value))

    def _get(self, key: str, deadline: float) -> dict[str, Any]:
        answer: dict[str, Any] = msgpack.unpackb(self._store.get(key, deadline))
        return answer

    def _peek(self, key: str) -> dict[str, Any] | None:
        packed = self._store.peek(key)
        answer: dict[str, Any] | None = None if packed is None else msgpack.unpackb(packed)
        return answer

    def _wait_for(self, key: str, rank: int, deadline: float, unless: str = "") -> dict[str, Any]:
        """The value that a rank publishes under `key`, or a value under `unless`; {"late": rank} after the deadline."""
        while True:
            end = min(deadline, time.monotonic() + _SLICE)
            try:
                return self._get(key, end)
            except DeadlineExceeded:
                if end == deadline:
                    return {"late": rank}
            self._poll()
            if unless:
                answer = self._peek(unless)
                if answer is not None:
                    return answer


def objection(group: Group, brought: dict[int, Identity]) -> str:
    """The reason why these ranks cannot share a communicator; empty if they can."""
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
