"""NCCL beside a transport: the transport carries data in host memory, NCCL data in GPU memory.

NCCL does not detect mismatched calls, rarely detects dead ranks, and cannot send the cause of an abort. The transport
beside it does. Neighbours compare their calls by empty frames that carry the check of the call, and aborts go through
the transport. One watch thread per rank polls the enqueued calls: it releases completed ones, and aborts NCCL's
communicators when the transport or NCCL fails or a deadline passes, so that no kernel waits for a dead rank for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from transports.base import LAST_SLICE, Transport
from transports.errors import DeadlineExceeded, RondeError
from transports.lifecycle import Lifecycle
from transports.native import NativeCollectives, NativeGroup, NotNative
from transports.nccl.api import NcclApi, NcclError
from transports.nccl.bootstrap import Assembly, Identity, identity
from transports.nccl.group import NcclGroup
from transports.progress import ProgressRequest

_WATCH_FIRST: Final = LAST_SLICE
_WATCH_LAST: Final = 0.05
"""Seconds between two polls of the enqueued calls: first and last. They double while no call completes."""


class NcclCollectives(NativeCollectives):
    """The NCCL of one rank. `open` it once the transport is open, `close` it before the transport."""

    def __init__(
        self, transport: Transport, load: Callable[[], NcclApi], usable: Callable[[], str | None], required: bool
    ) -> None:
        """No I/O. `load` returns NCCL or raises ConfigError. `usable` returns a reason why NCCL cannot be used, if
        one is known without loading it."""
        self.transport = transport
        self.required = required
        self._load = load
        self._usable = usable
        self._progress = ProgressRequest(transport)
        self._groups: list[NcclGroup] = []
        self._said: dict[int, str] = {}
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._life = Lifecycle(transport.group, "NCCL of the transport", lock, self._abandon)
        self._idle = False
        self._watch: threading.Thread | None = None

    def open(self) -> bool:
        """Publish whether this rank can take part; True if it can. Ranks without a GPU publish nothing else. Raises
        RendezvousError."""
        group, reason = self.transport.group, self._usable() or ""
        with self._changed:
            self._life.begin_open()
        group.store.set(f"nccl/usable/{group.rank}", reason.encode())
        with self._changed:
            self._life.opened()
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

        assembly = Assembly(self.transport.group, ranks, key, self.poll)
        meeting = assembly.meet(bring, deadline)
        group: NcclGroup | None = None
        try:
            group = NcclGroup(self, loaded[0], ranks, device, tag, meeting)
            group.await_made(assembly.check, deadline)
            assembly.confirm(deadline)
        except BaseException as error:
            assembly.reject(str(error))
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

    def poll(self) -> None:
        """Make progress on the transport. Raises its first failure."""
        self._progress.poll()

    def watch(self) -> None:
        """Wake the watch thread after a call was enqueued."""
        with self._changed:
            if self._idle:
                self._changed.notify()

    def unwatch(self, group: NcclGroup) -> None:
        """Remove a group from those that the watch thread polls."""
        with self._changed:
            if group in self._groups:
                self._groups.remove(group)

    def close(self, deadline: float) -> None:
        """Close all groups. Raises DeadlineExceeded if they do not end in time; they are released all the same."""
        with self._changed:
            if not self._life.begin_close():
                return
        late: RondeError | None = None
        try:
            for group in reversed(list(self._groups)):
                try:
                    group.close(deadline)
                except RondeError as error:
                    late = late or error
        finally:
            with self._changed:
                self._life.close()
                self._changed.notify()
                watch = self._watch
            if watch is not None:
                watch.join(max(0.0, deadline - time.monotonic()) + _WATCH_LAST)
        if late is not None:
            raise late

    def _abandon(self) -> None:
        """Forget the groups in a forked child, which must not use CUDA."""
        for group in self._groups:
            group.forget()

    def _serve(self) -> None:
        """The watch thread."""
        pause = _WATCH_FIRST
        while True:
            with self._changed:
                while not self._life.closed and not any(group.busy for group in self._groups):
                    self._idle = True
                    self._changed.wait()
                    pause = _WATCH_FIRST
                self._idle = False
                if self._life.closed:
                    return
                groups = tuple(self._groups)
            try:
                self.poll()
            except RondeError:  # every group checks for the failure in its `poll`
                pause = _WATCH_FIRST
            released = [group.poll() for group in groups]
            pause = _WATCH_FIRST if any(released) else min(2 * pause, _WATCH_LAST)
            with self._changed:
                if not self._life.closed:
                    self._changed.wait(pause)
