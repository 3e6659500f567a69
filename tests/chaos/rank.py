"""The process of a rank, from the inside: it obeys orders that come through a pipe.

An order is an object whose `obey` runs here. What it says goes back through the pipe.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

import collectives
from collectives import Communicator, RondeError
from tests.chaos.case import Case
from tests.chaos.samples import take
from tests.chaos.survivor import Told, UserError, compute, recover
from transports.rendezvous import bootstrap
from transports.testing import Leaks

LARGEST: Final = 17.0
GASP: Final = 0.2
"""Seconds for which a rank whose descriptors were closed goes on before it ends."""
SLACK: Final = 3
"""Threads, and descriptors, by which a case may differ from the next: a store keeps a connection for each thread that
waits in it. That nothing grows over many of them the soak shows, and that nothing stays, the end of a world."""
_PR_SET_PDEATHSIG: Final = 1
_this_member: Final = bootstrap.this_member


@dataclass(frozen=True)
class Opened:
    """The rank is in its world."""


@dataclass(frozen=True)
class Begun:
    """The rank computes."""


@dataclass(frozen=True)
class Struck:
    """The fault of this rank strikes at `at`."""

    at: float


@dataclass(frozen=True)
class Closed:
    """The rank has left its world, and what it left behind."""

    leaks: list[str]


class Seat:
    """The state of a rank's process: its pipe, its communicator, its resources at the start."""

    def __init__(self, orders: Connection, directory: str) -> None:
        self.orders = orders
        self.comm: Communicator | None = None
        self.leaks = Leaks(directory=directory)
        self._pipe_lock = threading.Lock()

    def say(self, message: object) -> None:
        """Send something home. From any thread."""
        with self._pipe_lock:
            self.orders.send(message)

    def leave(self) -> list[str]:
        """Close the world; what it left behind."""
        with suppress(RondeError):
            if self.comm is not None:
                self.comm.close(2.0)
            collectives.shutdown(2.0)
        self.comm = None
        return self.leaks.found()


class Order(ABC):
    """Something for a rank to do."""

    @abstractmethod
    def obey(self, seat: Seat) -> None:
        """Do it."""


@dataclass(frozen=True)
class Open(Order):
    """Join a world."""

    rank: int
    size: int
    store: str
    secret: bytes
    host: str
    settings: Mapping[str, Any]

    def obey(self, seat: Seat) -> None:
        me = replace(_this_member(), host=self.host)
        bootstrap.this_member = lambda: me  # for as long as the process lives: who shrinks says again who it is
        seat.comm = collectives.init(
            rank=self.rank, size=self.size, store=self.store, secret=self.secret, config=self.settings
        )
        meet_all(seat.comm)
        seat.say(Opened())


@dataclass(frozen=True)
class Close(Order):
    """Leave the world."""

    def obey(self, seat: Seat) -> None:
        seat.say(Closed(seat.leave()))


@dataclass(frozen=True)
class Sign(Order):
    """An order for which a rank waits while it carries out another one."""

    def obey(self, seat: Seat) -> None:
        """A rank came late, and no other waits for it."""


@dataclass(frozen=True)
class Play(Order):
    """Take part in a case."""

    case: Case

    def obey(self, seat: Seat) -> None:
        comm, case, told = seat.comm, self.case, Told()
        assert comm is not None
        is_victim = comm.rank == case.victim and not case.fault.harmless
        before = usage()
        seat.say(Begun())
        try:
            if is_victim and case.fault_name in _FROM_A_THREAD:
                threading.Thread(target=_FROM_A_THREAD[case.fault_name], args=(seat, case), daemon=True).start()
            compute(comm, case, told, largest=LARGEST, go_on=lambda number: self._go_on(seat, number, is_victim))
        except (UserError, KeyboardInterrupt) as error:  # as `with comm` does
            if comm.failure is None:
                comm.abort(f"{type(error).__name__}: {error}")
        except _Left:
            pass
        if is_victim:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # on a busy machine it is sent once more
            told.leaks = seat.leave()
            seat.say(told)
            sys.exit()
        if told.said is not None:
            seat.comm = recover(comm, comm.rank, case, told)
        if seat.comm is not None:
            meet_all(seat.comm)
            told.leaks = [
                f"{what}: {was} before the case, {is_now} after it"
                for what, was, is_now in zip(("threads", "descriptors"), before, usage(), strict=True)
                if is_now > was + SLACK
            ]
        seat.say(told)

    def _go_on(self, seat: Seat, number: int, is_victim: bool) -> bool:
        case, comm = self.case, seat.comm
        assert comm is not None
        if is_victim and case.fault_name in _BETWEEN_CALLS and number == case.dice("call").randint(0, 20):
            seat.say(Struck(time.monotonic()))
            if case.fault_name == "raise":
                raise UserError("this is the user's own fault")
            if case.fault_name == "leave":
                raise _Left
            seat.orders.recv()  # frozen until told that the others have gone on
        if case.fault.harmless and number % 10 == 9:  # all stop at the same call
            stop = bool(np.asarray(comm.allreduce(np.array([seat.orders.poll()], np.uint8), "max"))[0])
            if stop:
                seat.orders.recv()
            return not stop
        return True


@dataclass(frozen=True)
class Compute(Order):
    """Mixed collectives for so many seconds; tells how many there were."""

    seed: int
    seconds: float

    def obey(self, seat: Seat) -> None:
        comm, told = seat.comm, Told()
        assert comm is not None
        until = time.monotonic() + self.seconds

        def go_on(number: int) -> bool:
            if number % 20:
                return True
            return not np.asarray(comm.allreduce(np.array([time.monotonic() > until], np.uint8), "max"))[0]

        compute(comm, Case("processes", "auto", "pause", 2, self.seed), told, largest=LARGEST, go_on=go_on)
        seat.say(told)


@dataclass(frozen=True)
class Measure(Order):
    """Tell what the process holds."""

    def obey(self, seat: Seat) -> None:
        seat.say(take())


class _Left(Exception):
    """The rank ends its part without a word."""


def _exit(seat: Seat, case: Case) -> None:
    time.sleep(moment(case))
    seat.say(Struck(time.monotonic()))
    os._exit(3)


def _close_descriptors(seat: Seat, case: Case) -> None:
    time.sleep(moment(case))
    seat.say(Struck(time.monotonic()))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # what the rank has to say of it in its distress is of no interest
    keep = {0, 1, 2, seat.orders.fileno()}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with suppress(OSError):  # that of the listing is closed already
                os.close(int(name))
    time.sleep(GASP)
    os._exit(4)


_FROM_A_THREAD: Final = {"exit": _exit, "close": _close_descriptors}
_BETWEEN_CALLS: Final = ("raise", "leave", "freeze")


def moment(case: Case) -> float:
    """Seconds from the start of a case to its fault."""
    return case.dice("moment").uniform(0.0, 0.05)


def meet_all(comm: Communicator) -> None:
    """Exchange something with every rank, so that all connections and threads exist that will ever do."""
    comm.alltoall_async(np.arange(comm.size), algorithm="pairwise").wait()
    comm.alltoall(np.arange(comm.size), algorithm="pairwise")


def usage() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def serve(orders: Connection, directory: str) -> None:
    """The life of the process. `directory` is where it leaves its stacks when asked by SIGUSR1."""
    _die_with_the_harness()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts it in the background has it ignored
    with open(os.path.join(directory, f"stack-{os.getpid()}"), "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        seat = Seat(orders, directory)
        with suppress(EOFError, BrokenPipeError), seat.leaks:  # the harness is gone
            while True:
                orders.recv().obey(seat)


def _die_with_the_harness() -> None:
    """Also when stopped, and also when the harness is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="chaos parent", daemon=True).start()
