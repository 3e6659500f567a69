"""NCCL beside a transport: that one carries what is in the host's memory, NCCL what is in the GPUs'.

NCCL moves data fast and tells little: it does not notice that ranks call different things, hardly that one has died,
and cannot tell the others why one gave up. The transport beside it does all that. Neighbours compare their calls by
empty frames, whose check is that of the call; an abort goes through the transport; and one thread per rank, the watch,
looks after all that is enqueued: it lets go of what is done, and aborts NCCL's communicators when the transport has
failed, when NCCL has, or when a call's time is over, so that no kernel waits for ever for a rank that is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from transports.base import LAST_SLICE, Transport
from transports.errors import DeadlineExceeded, RondeError
from transports.native import NativeCollectives, NativeGroup, NotNative
from transports.nccl.api import NcclApi, NcclError
from transports.nccl.bootstrap import Assembly, Identity, identity
from transports.nccl.group import NcclGroup
from transports.pulse import Pulse

_WATCH_FIRST: Final = LAST_SLICE
_WATCH_LAST: Final = 0.05
"""Seconds between two looks at what is enqueued; they double while nothing comes to its end."""


class NcclCollectives(NativeCollectives):
    """The NCCL of one rank. `open` it once the transport is open, `close` it before the transport."""

    def __init__(
        self, transport: Transport, load: Callable[[], NcclApi], usable: Callable[[], str | None], required: bool
    ) -> None:
        """No I/O. `load` gives NCCL, or raises ConfigError; `usable` says why it cannot, without trying hard."""
        self.transport = transport
        self.required = required
        self._load = load
        self._usable = usable
        self._pulse = Pulse(transport)
        self._groups: list[NcclGroup] = []
        self._said: dict[int, str] = {}
        self._changed = threading.Condition()
        self._idle = False
        self._closed = False
        self._watch: threading.Thread | None = None

    def open(self) -> bool:
        """Tell the other ranks whether this one can take part at all, which one without a GPU never says otherwise.
        True if it can. Raises RendezvousError."""
        group, reason = self.transport.group, self._usable() or ""
        group.store.set(f"nccl/usable/{group.rank}", reason.encode())
        return not reason

    def obstacle(self, ranks: tuple[int, ...], deadline: float) -> str:
        group = self.transport.group
        for rank in ranks:
            if rank not in self._said:
                try:
                    self._said[rank] = group.store.get(f"nccl/usable/{rank}", deadline).decode()
                except DeadlineExceeded:
                    raise DeadlineExceeded(
                        f"{group.describe(rank)} did not open the transport in time", rank=group.rank, peer=rank
                    ) from None
            if self._said[rank]:
                return f"{group.describe(rank)}: {self._said[rank]}"
        return ""

    def join(self, key: str, ranks: tuple[int, ...], device: int, tag: int, deadline: float) -> NativeGroup:
        if self.transport.rank not in ranks or len(set(ranks)) != len(ranks):
            raise ValueError(f"ranks={ranks!r}: must be distinct, rank {self.transport.rank} among them")
        obstacle = self.obstacle(ranks, deadline)
        if obstacle:
            raise NotNative(obstacle, rank=self.transport.rank)
        loaded: list[NcclApi] = []

        def bring() -> tuple[NcclApi, Identity]:
            api = self._load()
            loaded.append(api)
            members = self.transport.group.members
            return api, identity(api, api.device(device), members[self.transport.rank].host)

        assembly = Assembly(self.transport.group, ranks, key, self.attend)
        meeting = assembly.meet(bring, deadline)
        group: NcclGroup | None = None
        try:
            group = NcclGroup(self, loaded[0], ranks, device, tag, meeting)
            group.await_made(assembly.check, deadline)
            assembly.confirm(deadline)
        except BaseException as error:
            assembly.refuse(str(error))
            if group is not None:
                group.abandon()
            if isinstance(error, NcclError):
                raise NotNative(f"NCCL: {error}", rank=self.transport.rank) from error
            raise
        with self._changed:
            self._groups.append(group)
            if self._watch is None:
                self._watch = threading.Thread(target=self._serve, name="ronde nccl watch", daemon=True)
                self._watch.start()
        return group

    def attend(self) -> None:
        """Move the transport along. Raises its first failure."""
        self._pulse.beat()

    def watch(self) -> None:
        """Something was enqueued: the watch must look after it."""
        with self._changed:
            if self._idle:
                self._changed.notify()

    def part(self, group: NcclGroup) -> None:
        """The watch need not look after a group any more."""
        with self._changed:
            if group in self._groups:
                self._groups.remove(group)

    def close(self, deadline: float) -> None:
        """Close all groups. Raises DeadlineExceeded if they do not end in time; they are released all the same."""
        late: RondeError | None = None
        for group in reversed(list(self._groups)):
            try:
                group.close(deadline)
            except RondeError as error:
                late = late or error
        with self._changed:
            self._closed = True
            self._changed.notify()
            watch = self._watch
        if watch is not None:
            watch.join(max(0.0, deadline - time.monotonic()) + _WATCH_LAST)
        if late is not None:
            raise late

    def _serve(self) -> None:
        """The watch."""
        pause = _WATCH_FIRST
        while True:
            with self._changed:
                while not self._closed and not any(group.busy for group in self._groups):
                    self._idle = True
                    self._changed.wait()
                    pause = _WATCH_FIRST
                self._idle = False
                if self._closed:
                    return
                groups = tuple(self._groups)
            try:
                self.attend()
            except RondeError:  # the transport has failed, which every group now looks for
                pause = _WATCH_FIRST
            landed = [group.look() for group in groups]
            pause = _WATCH_FIRST if any(landed) else min(2 * pause, _WATCH_LAST)
            with self._changed:
                if not self._closed:
                    self._changed.wait(pause)
