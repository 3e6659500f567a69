"""Runs a case on threads of this process: `local`, `shm` or `tcp`, wrapped by `faulty`."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from collectives import Communicator, Config
from tests.chaos.case import Case
from tests.chaos.faults import Victim
from tests.chaos.survivor import Told, UserError, compute, recover
from tests.chaos.verdict import Event, Finding, Outcome, judge
from transports import registry
from transports.base import Transport
from transports.errors import DeadlineExceeded, RendezvousError
from transports.faulty import FaultyTransport, Operation, Rule
from transports.rendezvous.bootstrap import join
from transports.rendezvous.memory import MemoryStore
from transports.shm.segments import default_directory
from transports.store import Store
from transports.testing import LeakError, Leaks, run_threads

BOUND: Final = 20.0
"""Seconds after which a case hangs."""
CALLS: Final = 60
"""Calls of a case at most; a fault that has not struck by then has not taken place."""
LARGEST: Final = 12.0
_SECRET: Final = b"a secret for tests only"
_MESSAGE: Final = 1 << 31
"""The bit of a tag that tells send and recv from collectives."""


class Gone(BaseException):
    """Ends the thread of a rank that is no more. No Exception, as death is none."""


class MortalStore(Store):
    """A store that a rank cannot reach any more once it is dead."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.dead = False

    def set(self, key: str, value: bytes) -> None:
        self._living().set(key, value)

    def get(self, key: str, deadline: float) -> bytes:
        return self._living().get(key, deadline)

    def set_default(self, key: str, value: bytes) -> bytes:
        return self._living().set_default(key, value)

    def add(self, key: str, amount: int) -> int:
        return self._living().add(key, amount)

    def delete(self, key: str) -> bool:
        return self._living().delete(key)

    def close(self) -> None:
        """Does nothing: the store belongs to all ranks."""

    def _living(self) -> Store:
        if self.dead:
            raise RendezvousError("this rank is dead")
        return self._inner


@dataclass
class Strike:
    """The moment of a fault: the `nth` operation of one rank that counts. Also of a rule, as its `where`.

    lasting  it goes on for all operations of that kind to that peer
    """

    nth: int
    counts: Callable[[Operation], bool]
    lasting: bool = False
    at: float = 0.0
    first: Operation | None = None

    def __call__(self, operation: Operation) -> bool:
        if self.first is not None:
            same = (operation.kind, operation.peer) == (self.first.kind, self.first.peer)
            return self.lasting and same
        if self.counts(operation):
            self.nth -= 1
        if self.nth:
            return False
        self.now(operation)
        return True

    def now(self, operation: Operation) -> None:
        """Cause the fault."""
        self.first, self.at = operation, time.monotonic()


class Trap:
    """A KeyboardInterrupt so many lines of Ronde's code later, in the thread that sets it."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._function = self._enter  # CPython 3.11 may call it once more after `sys` has let go of it

    def set(self) -> None:
        sys.settrace(self._function)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:  # of the calls that have begun, too
            if _OF_RONDE.search(frame.f_code.co_filename):
                frame.f_trace = self._trace
            frame = frame.f_back

    def spring(self) -> None:
        """Raise it now, unless it was raised."""
        if self._lines >= 0:
            self._lines = -1
            sys.settrace(None)
            raise KeyboardInterrupt

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._trace if _OF_RONDE.search(frame.f_code.co_filename) else None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and self._lines >= 0:
            self._lines -= 1
            if self._lines < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


MOST_LINES: Final = 300
_OF_RONDE: Final = re.compile(r"/(collectives|transports)/(?!testing|faulty)|<steps")


@dataclass
class Stage:
    """The shared state of the ranks of a case."""

    case: Case
    config: Config
    strike: Strike
    store: MemoryStore = field(default_factory=MemoryStore)
    comms: dict[int, Communicator] = field(default_factory=dict)
    tales: dict[int, Told | None] = field(default_factory=dict)
    trap: Trap | None = None

    def live(self, rank: int) -> None:
        """The life of a rank."""
        told = Told()
        store = MortalStore(self.store)
        comm = self.comms[rank] = self._open(rank, store)
        smaller = None
        try:
            compute(comm, self.case, told, largest=LARGEST, go_on=lambda number: self._go_on(comm, rank, number))
            if told.said is not None and rank in self.case.survivors:
                smaller = recover(comm, rank, self.case, told)
        except Gone:
            pass
        except (UserError, KeyboardInterrupt) as error:  # as `with comm` does
            if comm.failure is None:
                comm.abort(f"{type(error).__name__}: {error}")
        finally:
            for closing in (smaller, comm):
                if closing is not None:
                    with suppress(DeadlineExceeded):  # a rank that is gone will not take what was sent to it
                        closing.close(2.0)
        self.tales[rank] = told

    def release(self) -> None:
        """Make all ranks end that have not."""
        for comm in self.comms.values():
            comm.abort("the case has taken too long")

    def event(self) -> Event | None:
        """The fault, None if it has not taken place."""
        if self.strike.first is None:
            return None
        return Event(self.strike.at, Victim(self.case.victim, os.getpid(), self.strike.first.peer))

    def _open(self, rank: int, store: MortalStore) -> Communicator:
        deadline = time.monotonic() + BOUND
        group = join(rank, self.case.size, store, secret=_SECRET, deadline=deadline)
        name = self.case.transport
        inner = registry.backend(name).create(group, self.config.transport_options(name))
        transport = FaultyTransport(inner, self._rules(rank, store), self.case.seed)
        transport.open(deadline)
        return Communicator(transport, self.config)

    def _go_on(self, comm: Communicator, rank: int, number: int) -> bool:
        """True if there is a call `number`. Faults between calls strike here."""
        case = self.case
        if rank == case.victim and self.trap is not None:
            self.trap.spring()  # the call has ended before it
        if rank == case.victim and number == self.strike.nth and case.fault_name in _BETWEEN_CALLS:
            self.strike.now(Operation("send", rank, rank, 0, 0))
            if case.fault_name == "leave":
                with suppress(DeadlineExceeded):
                    comm.close(0.01)
                raise Gone
            raise UserError("this is the user's own fault")
        return number < CALLS if not case.fault.harmless else number < 12

    def _rules(self, rank: int, store: MortalStore) -> list[Rule]:
        case, strike = self.case, self.strike
        if case.fault_name == "delay":
            dice = case.dice(f"delays of {rank}")

            def late(operation: Operation) -> bool:
                if dice.random() < 0.9:
                    return False
                strike.now(operation)
                return True

            seconds = dice.uniform(0.0, 0.005)
            return [Rule("delay", kind, where=late, seconds=seconds) for kind in ("send", "recv", "publish", "wait")]
        if rank != case.victim:
            return []

        def die(transport: Transport) -> None:
            store.dead = True
            assert isinstance(transport, FaultyTransport)
            with suppress(DeadlineExceeded):
                transport.inner.close(time.monotonic())
            raise Gone

        def interrupt(transport: Transport) -> None:
            self.trap = Trap(case.dice("lines").randrange(MOST_LINES))
            self.trap.set()

        match case.fault_name:
            case "kill":
                return [Rule("kill", kind, where=strike, by=die) for kind in _KINDS]
            case "interrupt":
                return [Rule("kill", kind, where=strike, by=interrupt) for kind in _KINDS]
            case "break":
                return [Rule("raise", kind, where=strike) for kind in _KINDS]
            case "drop":
                return [Rule("drop", kind, where=strike) for kind in ("send", "publish")]
            case "hang":
                return [Rule("hang", kind, where=strike) for kind in ("send", "recv", "wait")]
            case "truncate":
                return [Rule("truncate", "send", where=strike)]
            case "mislabel":
                return [Rule("mislabel", "send", where=strike), Rule("corrupt", "publish", where=strike)]
            case "garble":
                return [Rule("corrupt", kind, where=strike) for kind in ("send", "recv")]
        return []


_KINDS: Final = ("send", "recv", "publish", "wait")
_BETWEEN_CALLS: Final = ("leave", "raise")
_COUNTED: Final[Mapping[str, tuple[str, ...]]] = {
    "drop": ("send", "publish"),
    "hang": ("send", "recv", "wait"),
    "truncate": ("send",),
    "mislabel": ("send", "publish"),
    "garble": ("send", "recv"),
}
"""The operations that a fault can strike, where these are not all."""
_OF_DATA: Final = ("truncate", "mislabel", "garble")
"""Faults that strike data of collectives only."""


def _strike(case: Case) -> Strike:
    name = case.fault_name
    kinds = _COUNTED.get(name, _KINDS)

    def counts(operation: Operation) -> bool:
        if operation.kind not in kinds:
            return False
        if name not in _OF_DATA or operation.kind == "publish":
            return True
        return not operation.tag & _MESSAGE and operation.nbytes > 0

    return Strike(case.dice("strike").randint(1, 25), counts, lasting=name in ("drop", "hang"))


def run(
    case: Case, patience: float = 0.0, settings: Mapping[str, object] | None = None, room: str | None = None
) -> Outcome:
    """Run a case and judge it. `settings` are more of the communicator's; `room` is where its memory files are."""
    case = dataclasses.replace(case, patience=patience)
    found: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="chaos-ronde-", dir=room or default_directory()) as directory:
        config = Config.load(
            {
                "transport": case.transport,
                "timeout": BOUND,
                "connect_timeout": BOUND,
                "shm": {"directory": directory},
                "calibrate": False,  # faults are counted from the first call on
                **(settings or {}),
            },
            environment={},
        )
        stage = Stage(case, config, _strike(case), tales=dict.fromkeys(range(case.size)))
        try:
            with Leaks(directory=directory):
                try:
                    run_threads(stage.live, case.size, timeout=BOUND, release=stage.release)
                except (Exception, ExceptionGroup) as error:
                    found.append(Finding("hang", "\n".join([repr(error), *getattr(error, "__notes__", ())])))
        except LeakError as error:
            found.append(Finding("leak", str(error)))
    outcome = judge(case, stage.event(), stage.tales, patience)
    return dataclasses.replace(outcome, findings=(*found, *outcome.findings))
