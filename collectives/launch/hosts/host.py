"""The contract of a host: where ranks run, as the supervisor sees it. `local_host`, `remote_host` and `parts` implement
it."""

from __future__ import annotations

import errno
import platform
import selectors
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any, Final, Protocol

from collectives.launch.hosts.connection import fields_of
from collectives.launch.processes import Guardian
from collectives.launch.store_keeper import Question, WayToStore
from collectives.version import __version__
from transports.rendezvous import host_identity

LOST: Final = 255
"""Exit code of a job whose first failure is the loss of a host, as ssh(1) has it for a lost connection."""


@dataclass(frozen=True)
class Facts:
    """A host's description of itself, before ranks start.

    machine  the same for hosts that are one machine under several names; "" if unknown
    address  the address by which the launcher reached it; "" if unknown
    port     a port that was free there
    """

    ronde: str = "of an unknown version"
    python: str = "an unknown Python"
    hostname: str = ""
    machine: str = ""
    address: str = ""
    port: int = 0

    @staticmethod
    def own(address: str = "", port: int = 0) -> Facts:
        """The facts of this process."""
        python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
        return Facts(__version__, python, socket.gethostname(), host_identity(), address, port)

    @staticmethod
    def told(values: Mapping[Any, Any]) -> Facts:
        """The facts in a message, which may be that of another version: it may lack some, and have others."""
        facts = {name: value for name, value in fields_of(Facts, values).items() if name != "port"}
        port = values.get("port")
        return Facts(**{name: str(value) for name, value in facts.items()}, port=port if isinstance(port, int) else 0)

    @property
    def versions(self) -> str:
        """The part that must be the same on all hosts."""
        return f"Ronde {self.ronde}, {self.python}"


@dataclass(frozen=True)
class Start:
    """The ranks that a host starts.

    command  the program and its arguments
    ranks    in the order of their local ranks
    size     number of ranks of the job
    store    URL of the store
    name     the job's id
    torch    address and port for rank 0 of torch
    first_local, local_size  the local rank of the first of them, and the number of ranks on the host; 0: these are all
    room     number of ranks that the host may come to have, where ranks come and go; 0: these are all
    joins    True if these are newcomers to ranks that run; `ranks` are their numbers, and `size` says nothing
    """

    command: Sequence[str]
    ranks: Sequence[int]
    size: int
    store: str
    name: str
    torch: tuple[str, int]
    secret: bytes = field(repr=False)
    first_local: int = 0
    local_size: int = 0
    room: int = 0
    joins: bool = False


@dataclass(frozen=True)
class Failure:
    """The reason why a host cannot start or run its ranks.

    errno  the system's error if the program cannot be started or its folder not be entered, else 0
    lost   True if the host or its agent has gone, after it was told to start ranks
    """

    text: str
    errno: int = 0
    lost: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code of a job that cannot start for this reason, as a shell has it."""
        return {0: 1, errno.ENOENT: 127}.get(self.errno, 126)


def cannot_start(command: Sequence[str], error: OSError) -> Failure:
    """The failure of a host on which the program cannot be started."""
    return Failure(f"cannot start {command[0]!r}: {error.strerror}", error.errno or errno.ENOEXEC)


KILL_SECONDS: Final = 5.0
"""Seconds for a process to end after SIGKILL; after them it counts as hanging in the kernel."""

NOTICE_SECONDS: Final = 1.0
"""Time between two looks for the file that says that a host is about to go. No event tells that a file appears on every
file system."""


class RankListener(Protocol):
    """Told what happens to ranks."""

    def started(self, rank: int, pid: int) -> None:
        """A rank runs."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """A rank has written to STDOUT or STDERR; b"" at the end of that stream."""

    def ended(self, rank: int, status: int, last_signal: int) -> None:
        """The process of a rank has ended: its status as of `os.waitstatus_to_exitcode`, and the last signal that it
        got from the launcher, 0 if none."""


class Listener(RankListener, Protocol):
    """Told what happens to ranks, and what agents say that run them."""

    def stderr_line(self, host: Host, line: bytes) -> None:
        """The agent of a host, or the command that started it, has written a line to its stderr."""

    def answered(self, question: Question, value: int | bool) -> None:
        """The answer to `RemoteHost.ask`."""


class Notice:
    """A file that says that this host is about to go. `tell` is called with the reason, once."""

    def __init__(self, path: str, tell: Callable[[str], None]) -> None:
        self._path = Path(path)
        self._tell = tell
        self.wake_at = 0.0

    def tick(self) -> None:
        """Look whether the file is there, if it is time."""
        if time.monotonic() >= self.wake_at:
            found = self._path.exists()
            self.wake_at = float("inf") if found else time.monotonic() + NOTICE_SECONDS
            if found:
                self._tell(f"there is a file {self._path}")


class Host(ABC):
    """A host and its ranks. The methods return at once; what they cause shows in the attributes, or reaches the
    listener. Call `open` first, then `start`, and then any.

    name      for messages
    facts     None until it is open
    running   True once all its ranks have started
    failure   why it cannot go on; None while all is well
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: Facts | None = None
        self.running = False
        self.failure: Failure | None = None
        self._notice: Notice | None = None

    @abstractmethod
    def open(self) -> None:
        """Begin to reach the host. Raises OSError."""

    @property
    def words(self) -> str:
        """The last lines that have come from the host in place of an answer, in short; '' if there are none."""
        return ""

    def with_room(self, room: int) -> Host:
        """The host to call from now on, which can have so many ranks; to be called before each `start`. Raises
        ConfigError."""
        return self

    def watch_preemption(self, notice: str, seconds: float, tell: Callable[[str], None]) -> None:
        """Call `tell` with the reason once the host is about to go: a file `notice` exists there ('' for none), or its
        agent gets SIGTERM. The agent then leaves its ranks `seconds` before it ends them. Call it before `start`."""
        self._notice = Notice(notice, tell) if notice else None

    @abstractmethod
    def start(self, start: Start) -> None:
        """Try whether the store can be reached, and start ranks; newcomers beside those that run as well."""

    @abstractmethod
    def signal_groups(self, number: Signals) -> None:
        """Send a signal to all ranks and everything that they started."""

    @abstractmethod
    def signal_ranks(self, number: Signals) -> None:
        """Send a signal to the processes of the ranks alone."""

    @abstractmethod
    def signal_rank(self, rank: int, number: Signals) -> None:
        """Send a signal to one rank and everything that it started; to the latter alone if the rank has ended."""

    @abstractmethod
    def want_output(self, stream: int, wanted: bool) -> None:
        """Pass on the output of STDOUT or STDERR, or keep it back. At first it is wanted."""

    @abstractmethod
    def give_up(self) -> None:
        """Wait for no process any more."""

    @abstractmethod
    def on_child_exit(self) -> None:
        """A child of this process may have ended."""

    def beat(self) -> None:  # noqa: B027  not all have an agent
        """Send the agent a sign of life if it is time: what this process does takes long."""

    def tick(self) -> None:
        """Do what is due; to be called after every select."""
        if self._notice is not None:
            self._notice.tick()

    @property
    def wake_at(self) -> float:
        """Monotonic time of the next call of `tick` if no event comes first."""
        return float("inf") if self._notice is None else self._notice.wake_at

    @property
    @abstractmethod
    def gone(self) -> bool:
        """True once no process of its ranks is left, or nothing can be known of them."""

    @property
    @abstractmethod
    def drained_at(self) -> float:
        """Moment at which the output counts as complete once the ranks are gone; infinite while that is not known."""

    @abstractmethod
    def finish(self, code: int) -> None:
        """The job is over with this exit code: kill what is left. `closed` becomes True when that is done."""

    @property
    def closed(self) -> bool:
        """True once what `finish` began is done."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Kill what is left, and release everything. Idempotent."""


@dataclass
class Here:
    """The things with which a process runs ranks on its own host.

    variables  the environment of the ranks, to which each rank's own variables are added
    grace      seconds that agents give the ranks if they must end them on their own
    stdin      descriptor that rank 0 reads if it is here
    has_store  True if this process serves the store, so that the ranks here need no proxy
    """

    selector: selectors.BaseSelector
    guardian: Guardian
    listener: RankListener
    variables: Mapping[str, str] = field(repr=False)
    grace: float = 0.0
    stdin: int = 0
    has_store: bool = False

    def way_to_store(self, start: Start) -> WayToStore:
        """The way of the ranks to the store. Raises RendezvousError, ConfigError."""
        ranks = max(start.room, len(start.ranks))
        return WayToStore(start.store, start.secret, self.variables, ranks, is_far=not self.has_store)


class Hosts:
    """Several hosts together. `members` returns them; they may change."""

    def __init__(self, members: Callable[[], Sequence[Host]]) -> None:
        self._members = members

    def pass_on(self, number: Signals) -> bool:
        """Handle a signal to this process that does not end the job; False for others."""
        if number == Signals.SIGCHLD:
            self.on_child_exit()
        elif number in (Signals.SIGUSR1, Signals.SIGUSR2):
            self.signal_ranks(number)
        else:
            return False
        return True

    def signal_groups(self, number: Signals) -> None:
        """See Host."""
        for host in self._members():
            host.signal_groups(number)

    def signal_ranks(self, number: Signals) -> None:
        """See Host."""
        for host in self._members():
            host.signal_ranks(number)

    def want_output(self, stream: int, wanted: bool) -> None:
        """See Host."""
        for host in self._members():
            host.want_output(stream, wanted)

    def give_up(self) -> None:
        """See Host."""
        for host in self._members():
            host.give_up()

    def on_child_exit(self) -> None:
        """See Host."""
        for host in self._members():
            host.on_child_exit()


class Escalation:
    """A plan of signals. `grace`: seconds from the first to SIGKILL."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._steps: deque[tuple[float, Signals | None]] = deque()  # when to send what; None: give up

    @property
    def planned(self) -> bool:
        """True while there is something to send or to give up."""
        return bool(self._steps)

    @property
    def wake_at(self) -> float:
        """Monotonic time of the next call of `apply`; infinite if no signal is planned."""
        return self._steps[0][0] if self._steps else float("inf")

    def begin(self, when: float, number: Signals) -> None:
        """Send `number` at `when`, SIGKILL after the grace time, and give up after that. Replaces an earlier plan."""
        kill_at = when if number == Signals.SIGKILL else when + self._grace
        self._steps = deque([(when, number), (kill_at, Signals.SIGKILL), (kill_at + KILL_SECONDS, None)])

    def cancel(self) -> None:
        """Send nothing more."""
        self._steps.clear()

    def apply(self, processes: Host | Hosts) -> None:
        """Do what is due."""
        while self._steps and time.monotonic() >= self._steps[0][0]:
            _, number = self._steps.popleft()
            if number is None:
                processes.give_up()
            else:
                processes.signal_groups(number)
