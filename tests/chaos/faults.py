"""The faults, the beds that can inject them, and the errors that the contract requires."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from transports.errors import (
    AbortedError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    RondeError,
)

Bed = Literal["threads", "processes"]

PROMISE: Final = 1.0
"""Seconds after a fault by which every survivor on the same host has raised."""
HEARTBEAT: Final = 1.0
"""The setting, where there are several hosts: what it may take longer to miss a whole host that falls silent."""


@dataclass(frozen=True)
class Said:
    """An error as a rank raised it, at `at` (monotonic seconds)."""

    kind: str
    message: str
    rank: int | None
    peer: int | None
    at: float

    @classmethod
    def of(cls, error: RondeError, at: float) -> Said:
        return cls(type(error).__name__, str(error), error.rank, error.peer, at)

    @property
    def cause(self) -> str:
        """The cause without the place in a rank's program: the same on every rank."""
        return self.message.partition(" [")[0]


@dataclass(frozen=True)
class Victim:
    """Whom the fault strikes. `pid` is that of its process, `link` the rank at the other end of what was broken."""

    rank: int
    pid: int
    link: int | None = None


Names = Callable[[Said, Victim], bool]


def mentions(rank: int, text: str) -> bool:
    """True if the text speaks of that rank."""
    return re.search(rf"\brank {rank}\b", text) is not None


def lost(said: Said, victim: Victim) -> bool:
    """The victim was lost, and the text says which rank, which process, and in which collective and step (or
    message) it was missed."""
    return (
        said.peer == victim.rank
        and mentions(victim.rank, said.message)
        and f"pid {victim.pid}" in said.message
        and re.search(r" \[(in [a-z_]+\(|send to rank|receive from rank)", said.message) is not None
    )


def told(said: Said, victim: Victim) -> bool:
    """The victim said why it gave up, and the text gives its words."""
    return mentions(victim.rank, said.cause) and (said.peer in (None, victim.rank) or said.rank == victim.rank)


def lost_or_told(said: Said, victim: Victim) -> bool:
    """The one or the other, as the victim could still speak or not."""
    return lost(said, victim) or told(said, victim)


def broken_link(said: Said, victim: Victim) -> bool:
    """The text names the victim, and the peer is one of the two ends of the broken link. No rank can know which of the
    two is at fault: one has sent, the other has received nothing."""
    return said.peer in (victim.rank, victim.link) and mentions(victim.rank, said.message)


def misfit(said: Said, victim: Victim) -> bool:
    """The mismatched message was sent by the victim."""
    return mentions(victim.rank, said.cause)


def anything(said: Said, victim: Victim) -> bool:
    """Nobody can know whose fault it is."""
    return True


@dataclass(frozen=True)
class Fault:
    """One kind of fault, and its contract.

    what       for people
    errors     what the ranks may raise
    names      whether an error names the right culprit
    harmless   nothing may change: the ranks must not even notice
    optional   it may have no effect, and then nothing may change
    survives   the victim raises as the others do, and is among the survivors
    times_out  nothing tells but the call's own deadline
    extra      seconds beyond the promise that it may take (a mismatch waits for what every rank says)
    unchecked  results are not promised: what is broken cannot be seen
    share      how often it is tried, compared to others
    """

    name: str
    bed: Bed
    what: str
    errors: tuple[type[RondeError], ...] = ()
    names: Names = anything
    harmless: bool = False
    optional: bool = False
    survives: bool = False
    times_out: bool = False
    extra: float = 0.0
    unchecked: bool = False
    share: float = 1.0

    @property
    def kinds(self) -> frozenset[str]:
        """The names of the classes of `errors`."""
        return frozenset(error.__name__ for error in self.errors)


_ALL: Final = (
    Fault("delay", "threads", "messages and signals come milliseconds late", harmless=True, share=0.5),
    Fault(
        "drop",
        "threads",
        "from one message on, nothing that one rank sends to another arrives",
        (DeadlineExceeded, MismatchError),
        broken_link,
        optional=True,
        survives=True,
        times_out=True,
        share=0.4,
    ),
    Fault(
        "hang",
        "threads",
        "from one send, receive or wait on, none between two ranks ends",
        (DeadlineExceeded, MismatchError),
        broken_link,
        optional=True,
        survives=True,
        times_out=True,
        share=0.4,
    ),
    Fault(
        "truncate",
        "threads",
        "a message arrives without its last byte",
        (MismatchError,),
        misfit,
        survives=True,
        extra=1.0,
    ),
    Fault(
        "mislabel",
        "threads",
        "a message or signal comes with the check of another call",
        (MismatchError,),
        misfit,
        optional=True,
        survives=True,
        extra=1.0,
    ),
    Fault(
        "garble",
        "threads",
        "a byte of the data is flipped on the way, past all checksums",
        (RondeError,),
        optional=True,
        survives=True,
        times_out=True,
        unchecked=True,
        share=0.5,
    ),
    Fault("break", "threads", "the transport fails in the middle of a call", (PeerLost,), told, survives=True),
    Fault("kill", "threads", "a rank is gone in the middle of a call, without a word", (PeerLost,), lost, share=2.0),
    Fault("leave", "threads", "a rank closes its communicator while the others go on", (PeerLost,), lost),
    Fault("raise", "threads", "a rank's own code raises between two calls", (AbortedError,), told),
    Fault("interrupt", "threads", "a KeyboardInterrupt at any line of a call", (AbortedError,), told),
    Fault("kill", "processes", "SIGKILL", (PeerLost,), lost, share=2.0),
    Fault("exit", "processes", "os._exit in the middle of a call", (PeerLost,), lost),
    Fault("stop", "processes", "SIGSTOP; SIGCONT once the others have gone on", (PeerLost,), lost, share=1.5),
    Fault("pause", "processes", "SIGSTOP and SIGCONT after a fifth of a second", harmless=True, share=0.5),
    Fault(
        "close", "processes", "all descriptors of a rank are closed under it", (PeerLost, AbortedError), lost_or_told
    ),
    Fault("leave", "processes", "a rank closes its communicator and ends", (PeerLost,), lost),
    Fault("raise", "processes", "a rank's own code raises between two calls", (AbortedError,), told),
    Fault("interrupt", "processes", "SIGINT, at any point of its code", (AbortedError,), told),
    Fault(
        "freeze",
        "processes",
        "a rank's own code never comes to the next call",
        (DeadlineExceeded,),
        lost,
        times_out=True,
        share=0.5,
    ),
)

FAULTS: Final[Mapping[tuple[Bed, str], Fault]] = {(fault.bed, fault.name): fault for fault in _ALL}

TRANSPORTS: Final[Mapping[Bed, tuple[str, ...]]] = {
    "threads": ("local", "shm", "tcp"),
    "processes": ("shm", "tcp", "auto"),
}
"""`auto` runs as on two hosts, so that it uses both."""
