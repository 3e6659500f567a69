"""A machine of GPUs that are not there: streams, events, memory and NCCL communicators, for tests without CUDA.

What is enqueued on a stream is done in order, and nothing is done before somebody asks (queries an event, synchronises,
enqueues more): then everything that can be done is, in all streams. So there are no threads, and whatever a test holds
back (`gate`) stays held back. NCCL's rules are kept strictly: the work of one communicator is done in the order of the
calls, one call (or group) after the other; a send waits until its receive is at its turn; a collective until it is the
turn of all ranks. Memory is the host's; that every access is to memory which somebody still refers to is checked.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transports.nccl.api import IN_PROGRESS, INVALID_ARGUMENT, REMOTE, SUCCESS, Device, NcclError

DTYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"]
UFUNCS = [np.add, np.multiply, np.maximum, np.minimum]
AVERAGE = 4
PATIENCE = 30.0
"""Seconds that a synchronisation waits for what other ranks have yet to enqueue."""


class Work:
    """Something on a stream: done by `run` once `ready` says so."""

    def __init__(self, what: str, run: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        self.what = what
        self.run = run
        self.ready = ready


@dataclass
class Event:
    """Happens when the work that `record` puts on a stream is done."""

    recorded: int = 0
    happened: int = 0
    at: float = 0.0


@dataclass
class Part:
    """One NCCL call: a collective, a send or a receive."""

    kind: str
    arguments: tuple[Any, ...]
    number: int
    done: bool = False


@dataclass
class Launch:
    """The work that one call, or one group of calls, enqueued."""

    parts: list[Part]
    active: bool = False

    @property
    def done(self) -> bool:
        return all(part.done for part in self.parts)


@dataclass
class Comm:
    """One rank of a communicator."""

    clan: Clan
    rank: int
    device: int
    launches: deque[Launch] = field(default_factory=deque)
    counts: dict[Any, int] = field(default_factory=lambda: defaultdict(int))
    busy: int = 0
    error: int = SUCCESS
    state: str = "begun"
    factors: list[float] = field(default_factory=list)


@dataclass
class Clan:
    """The ranks of one communicator."""

    size: int
    comms: dict[int, Comm] = field(default_factory=dict)


class Machine:
    """See the module.

    log           what was enqueued and done: (what, device, stream or rank)
    violations    accesses to memory that nobody referred to any more
    busy_polls    how often `async_error` says IN_PROGRESS after a call
    """

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        self.uuids = [f"GPU-{number}" for number in range(devices)]
        self.log: list[tuple[Any, ...]] = []
        self.violations: list[str] = []
        self.busy_polls = 0
        self.nccl_version = 22803
        self.capability = (9, 0)
        self.id_error: str | None = None
        self.init_errors: dict[int, int] = {}
        self.hung_inits: set[int] = set()
        self.hung: set[int] = set()
        self.call_errors: dict[tuple[int, str], int] = {}
        self.news = threading.Condition(threading.RLock())
        self._streams: dict[tuple[int, int], deque[Work]] = defaultdict(deque)
        self._handles = 100
        self._events: dict[int, Event] = {}
        self._memory: dict[int, int] = {}
        self._clans: dict[bytes, Clan] = {}
        self._local = threading.local()

    # ---- devices and memory

    @property
    def device(self) -> int:
        return getattr(self._local, "device", 0)

    @device.setter
    def device(self, number: int) -> None:
        self._local.device = number

    def allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Device memory, which is given up when the array is."""
        memory = np.full(max(nbytes, 1), 0xA5, np.uint8)
        address = memory.ctypes.data
        with self.news:
            self._memory[address] = memory.nbytes
        weakref.finalize(memory, self._memory.pop, address, None)
        return memory

    def has(self, address: int) -> bool:
        """True if the memory that begins at an address has not been given up."""
        return address in self._memory

    def bytes_at(self, address: int, nbytes: int, doing: str) -> np.ndarray[Any, Any]:
        """The memory at an address."""
        held = self._memory.copy()  # the collection of garbage may give an array up at any moment
        if nbytes and not any(start <= address and address + nbytes <= start + n for start, n in held.items()):
            self.violations.append(f"{doing} touches {nbytes} bytes that were given up")
            return np.zeros(nbytes, np.uint8)
        return np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8) if nbytes else np.empty(0, "u1")

    # ---- streams and events

    def handle(self) -> int:
        with self.news:
            self._handles += 1
            return self._handles

    def enqueue(self, stream: int, work: Work, device: int | None = None) -> None:
        with self.news:
            device = self.device if device is None else device
            self.log.append(("enqueue", work.what, device, stream))
            self._streams[device if stream == 0 else -1, stream].append(work)
            self.pump()

    def gate(self, stream: int) -> Callable[[], None]:
        """Hold a stream back; what is returned lets it go on."""
        opened = threading.Event()
        self.enqueue(stream, Work("gate", lambda: None, opened.is_set))

        def release() -> None:
            with self.news:
                opened.set()
                self.pump()

        return release

    def event(self) -> int:
        with self.news:
            handle = self.handle()
            self._events[handle] = Event()
            return handle

    def record(self, handle: int, stream: int) -> None:
        with self.news:
            event = self._events[handle]
            event.recorded += 1
            number = event.recorded

            def happen() -> None:
                event.happened = max(event.happened, number)
                event.at = time.monotonic()

            self.enqueue(stream, Work("record", happen))

    def wait_event(self, stream: int, handle: int) -> None:
        with self.news:
            event, number = self._events[handle], self._events[handle].recorded
            self.enqueue(stream, Work("wait", lambda: None, lambda: event.happened >= number))

    def happened(self, handle: int) -> bool:
        with self.news:
            self.pump()
            event = self._events[handle]
            return event.happened >= event.recorded

    def when(self, handle: int) -> float:
        return self._events[handle].at

    def forget(self, handle: int) -> None:
        with self.news:
            del self._events[handle]

    @property
    def events(self) -> int:
        return len(self._events)

    def drained(self, stream: int) -> bool:
        with self.news:
            self.pump()
            return not self._streams[self.device if stream == 0 else -1, stream]

    def synchronize(self, drained: Callable[[], bool]) -> None:
        """Wait until something is drained; other ranks may have to enqueue their part first."""
        with self.news:
            if not self.news.wait_for(drained, PATIENCE):
                raise TimeoutError("a device hung")

    def pump(self) -> None:
        """Do all that can be done."""
        with self.news:
            moved = 1
            while moved:
                moved = sum(self._advance(stream) for stream in list(self._streams.values()))
                moved += sum(self._meet(clan) for clan in list(self._clans.values()))
            self.news.notify_all()

    def _advance(self, stream: deque[Work]) -> bool:
        moved = False
        while stream and stream[0].ready():
            stream.popleft().run()
            moved = True
        return moved

    # ---- NCCL

    def join(self, unique_id: bytes, size: int, rank: int, device: int) -> Comm:
        with self.news:
            clan = self._clans.setdefault(unique_id, Clan(size))
            comm = clan.comms[rank] = Comm(clan, rank, device, busy=self.busy_polls)
            self.log.append(("init", rank, device))
            return comm

    def async_error(self, comm: Comm) -> int:
        with self.news:
            self.pump()
            if comm.state == "gone":
                raise AssertionError(f"rank {comm.rank}: NCCL was asked about a communicator that is gone")
            if comm.error:
                return comm.error
            if comm.rank in self.hung_inits or len(comm.clan.comms) < comm.clan.size:
                return IN_PROGRESS
            if comm.busy > 0:
                comm.busy -= 1
                return IN_PROGRESS
            return SUCCESS

    def launch(self, comm: Comm, calls: list[tuple[str, tuple[Any, ...]]], stream: int) -> None:
        """Enqueue one call, or the calls of a group."""
        with self.news:
            if comm.state == "gone":
                raise AssertionError(f"rank {comm.rank}: a call on a communicator that is gone")
            if comm.busy and self.busy_polls:
                raise AssertionError(f"rank {comm.rank}: a call while the one before is in progress")
            parts = []
            for kind, arguments in calls:
                link = (kind, arguments[-1]) if kind in ("send", "recv") else "collective"
                parts.append(Part(kind, arguments, comm.counts[link]))
                comm.counts[link] += 1
            launch = Launch(parts)
            comm.launches.append(launch)
            comm.busy = self.busy_polls
            self.log.append(("nccl", comm.rank, tuple(kind for kind, _ in calls), stream))

            def ready() -> bool:
                if comm.state == "gone":
                    return True
                if not launch.active and comm.launches and comm.launches[0] is launch and comm.rank not in self.hung:
                    launch.active = True
                    while self._meet(comm.clan):
                        pass
                return launch.done

            def finish() -> None:
                if comm.state != "gone":
                    comm.launches.popleft()

            self.enqueue(stream, Work("nccl", finish, ready), comm.device)

    def fail(self, comm: Comm, code: int) -> None:
        """Make NCCL report an error from now on."""
        with self.news:
            comm.error = code

    def comms(self, rank: int) -> list[Comm]:
        return [clan.comms[rank] for clan in self._clans.values() if rank in clan.comms]

    def leave(self, comm: Comm, how: str) -> None:
        """Finalise, destroy or abort."""
        with self.news:
            self.log.append((how, comm.rank))
            if comm.state == "gone":
                raise AssertionError(f"rank {comm.rank}: {how} of a communicator that is gone")
            if how == "finalize":
                comm.state = "finalized"
                comm.busy = self.busy_polls
                return
            if how == "destroy" and (comm.state != "finalized" or comm.launches):
                raise AssertionError(f"rank {comm.rank}: destroyed while in use")
            comm.state = "gone"
            if how == "abort":
                for other in comm.clan.comms.values():
                    if other.state != "gone" and other.launches and comm.rank in self.hung:
                        other.error = REMOTE
            self.pump()

    def _meet(self, clan: Clan) -> bool:
        """Do the parts of a clan that all whom they concern are ready for."""
        active = {
            comm.rank: comm.launches[0]
            for comm in clan.comms.values()
            if comm.state != "gone" and comm.launches and comm.launches[0].active
        }
        moved = False
        for rank, launch in active.items():
            for part in launch.parts:
                if part.done:
                    continue
                if part.kind == "send":
                    moved = self._send(rank, part, active) or moved
                elif part.kind != "recv" and rank == 0:
                    moved = self._collect(clan, part, active) or moved
        return moved

    def _send(self, rank: int, part: Part, active: dict[int, Launch]) -> bool:
        source, nbytes, _, peer = part.arguments
        for other in active[peer].parts if peer in active else ():
            if other.kind == "recv" and other.arguments[-1] == rank and other.number == part.number:
                target, expected = other.arguments[:2]
                assert nbytes == expected, f"{nbytes} bytes sent, {expected} received"
                self.bytes_at(target, nbytes, "recv")[:] = self.bytes_at(source, nbytes, "send")
                part.done = other.done = True
                return True
        return False

    def _collect(self, clan: Clan, part: Part, active: dict[int, Launch]) -> bool:
        parts = []
        for rank in range(clan.size):
            found = [
                other
                for other in (active[rank].parts if rank in active else ())
                if other.kind == part.kind and other.number == part.number
            ]
            if not found or found[0].arguments[2:] != part.arguments[2:]:
                return False  # not there yet, or something else: NCCL would hang as well
            parts.append(found[0])
        factors = [clan.comms[rank].factors for rank in range(clan.size)]
        _collective(self, part.kind, [other.arguments for other in parts], factors)
        for other in parts:
            other.done = True
        return True


def _collective(machine: Machine, kind: str, calls: list[tuple[Any, ...]], factors: list[list[float]]) -> None:
    count, dtype = calls[0][2], _dtype(calls[0][3])
    size, nbytes = len(calls), count * dtype.itemsize

    def read(rank: int, n: int = nbytes) -> np.ndarray[Any, Any]:
        return machine.bytes_at(calls[rank][0], n, kind).copy()

    def write(rank: int, data: np.ndarray[Any, Any]) -> None:
        raw = np.ascontiguousarray(data).view(np.uint8)
        machine.bytes_at(calls[rank][1], raw.nbytes, kind)[:] = raw

    if kind == "broadcast":
        data = read(calls[0][4])
        for rank in range(size):
            write(rank, data)
    elif kind == "all_gather":
        data = np.concatenate([read(rank) for rank in range(size)])
        for rank in range(size):
            write(rank, data)
    else:
        whole = nbytes * (size if kind == "reduce_scatter" else 1)
        op = calls[0][4]
        parts = [read(rank, whole).view(dtype) for rank in range(size)]
        if op >= 100:
            parts = [part * dtype.type(factors[rank][op - 100]) for rank, part in enumerate(parts)]
        ufunc = UFUNCS[0 if op == AVERAGE or op >= 100 else op]
        total = parts[0]
        for part in parts[1:]:
            total = ufunc(total, part)
        if op == AVERAGE:
            total = (total / dtype.type(size)).astype(dtype)
        for rank in range(size):
            if kind == "reduce_scatter":
                write(rank, total[rank * count : (rank + 1) * count])
            elif kind == "all_reduce" or rank == calls[0][5]:
                write(rank, total)


def _dtype(kind: int) -> np.dtype[Any]:
    import ml_dtypes  # noqa: F401 - which makes NumPy know bfloat16

    return np.dtype(DTYPES[kind])


class FakeNccl:
    """NcclApi on a machine. `calls` are those of this rank, by name."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.calls: list[str] = []
        self._local = threading.local()

    def version(self) -> int:
        return self.machine.nccl_version

    def unique_id(self) -> bytes:
        if self.machine.id_error is not None:
            raise NcclError(2, self.machine.id_error)
        return b"\0" + np.random.default_rng().bytes(127)

    def init(self, size: int, rank: int, unique_id: bytes) -> Any:
        self._note("init", rank)
        return self.machine.join(unique_id, size, rank, self.machine.device)

    def async_error(self, comm: Any) -> int:
        return self.machine.async_error(comm)

    def error_text(self, code: int) -> str:
        return f"result {code}"

    def last_error(self, comm: Any) -> str:
        return "as it happens"

    def finalize(self, comm: Any) -> None:
        self._note("finalize", comm.rank)
        self.machine.leave(comm, "finalize")

    def destroy(self, comm: Any) -> None:
        self._note("destroy", comm.rank)
        self.machine.leave(comm, "destroy")

    def abort(self, comm: Any) -> None:
        self._note("abort", comm.rank)
        self.machine.leave(comm, "abort")

    def group_start(self) -> None:
        self._local.group = []

    def group_end(self) -> None:
        queued, self._local.group = self._local.group, None
        if queued:
            comm, stream = queued[0][0], queued[0][3]
            self._note("group_end", comm.rank)
            self.machine.launch(comm, [(kind, arguments) for _, kind, arguments, _ in queued], stream)

    def send(self, comm: Any, source: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._call(comm, "send", (source, count, kind, peer), stream)

    def recv(self, comm: Any, target: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._call(comm, "recv", (target, count, kind, peer), stream)

    def broadcast(self, comm: Any, source: int, target: int, count: int, kind: int, root: int, stream: int) -> None:
        self._call(comm, "broadcast", (source, target, count, kind, root), stream)

    def all_gather(self, comm: Any, source: int, target: int, count: int, kind: int, stream: int) -> None:
        self._call(comm, "all_gather", (source, target, count, kind), stream)

    def all_reduce(self, comm: Any, source: int, target: int, count: int, kind: int, op: int, stream: int) -> None:
        self._call(comm, "all_reduce", (source, target, count, kind, op), stream)

    def reduce(
        self, comm: Any, source: int, target: int, count: int, kind: int, op: int, root: int, stream: int
    ) -> None:
        self._call(comm, "reduce", (source, target, count, kind, op, root), stream)

    def reduce_scatter(self, comm: Any, source: int, target: int, count: int, kind: int, op: int, stream: int) -> None:
        self._call(comm, "reduce_scatter", (source, target, count, kind, op), stream)

    def premultiplied_sum(self, comm: Any, factor: float, kind: int) -> int:
        comm.factors.append(factor)
        return 99 + len(comm.factors)

    def device(self, number: int) -> Device:
        if number >= self.machine.devices:
            raise NcclError(1, f"there is no device {number}")
        return Device(self.machine.uuids[number], "a GPU that is not there", self.machine.capability)

    def use(self, number: int) -> None:
        self.machine.device = number

    def record(self, stream: int) -> int:
        event = self.machine.event()
        self.machine.record(event, stream)
        return event

    def happened(self, event: int) -> bool:
        return self.machine.happened(event)

    def forget(self, event: int) -> None:
        self.machine.forget(event)

    def _call(self, comm: Any, kind: str, arguments: tuple[Any, ...], stream: int) -> None:
        self._note(kind, comm.rank)
        if getattr(self._local, "group", None) is None:
            self.machine.launch(comm, [(kind, arguments)], stream)
        else:
            self._local.group.append((comm, kind, arguments, stream))

    def _note(self, name: str, rank: int) -> None:
        self.calls.append(name)
        code = self.machine.call_errors.pop((rank, name), None)
        if code is not None:
            raise NcclError(code, f"{name} failed" if code != INVALID_ARGUMENT else f"{name}: invalid argument")
