"""The job of a launcher: the program, the hosts, and how to treat the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectives.launch.hosts import Connection, Srun, Ssh
from collectives.launch.job.discovery import Discovery
from collectives.launch.store_keeper import StoreKeeper
from collectives.scaling import Terms


@dataclass(frozen=True)
class Place:
    """A host and its ranks.

    agent      the command that starts an agent there; None on this host, and where an agent is connected already
    connected  the connection to that agent, which prints the output of its ranks itself
    """

    name: str
    ranks: Sequence[int] = ()
    agent: Sequence[str] | None = None
    connected: Connection | None = None

    @property
    def is_here(self) -> bool:
        """True if the ranks run on this host."""
        return self.agent is None and self.connected is None


@dataclass(frozen=True)
class Elastic:
    """The terms on which hosts and ranks come and go.

    way     reaches hosts other than this one
    width   number of ranks for which the prefixes of output have room
    notice  a file that says on each host that it is about to go; '' for none
    """

    terms: Terms
    discovery: Discovery
    way: Ssh | Srun
    width: int = 10
    notice: str = ""


@dataclass(frozen=True)
class Job:
    """The ranks to start and how to treat them. Times in seconds.

    places         the hosts; the first serves the store. Together they have the ranks 0 to size - 1
    variables      the environment of the ranks on this host
    passed_on      the variables that ranks on other hosts get, beside those of a login there
    name           the job's id
    interface      name or address of the network interface that the other hosts reach; "" chooses
    prefix         put the rank in front of every line of output, and its host if there are several
    stamped        put the time in front of that
    output_folder  folder that gets rank.N/stdout and rank.N/stderr
    start_timeout  time until the ranks must have started on all hosts
    host_timeout   time without a sign of life after which a host is lost
    keep_going     let the others go on when a rank fails
    keeper         serves the store already; None: the first host does it
    elastic        hosts and ranks that come and go, instead of `places`
    """

    command: Sequence[str]
    places: Sequence[Place]
    secret: bytes = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)
    passed_on: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = ""
    interface: str = ""
    prefix: bool = True
    stamped: bool = False
    output_folder: Path | None = None
    grace: float = 5.0
    time_limit: float | None = None
    start_timeout: float = 30.0
    host_timeout: float = 10.0
    keep_going: bool = False
    keeper: StoreKeeper | None = None
    elastic: Elastic | None = None

    @property
    def width(self) -> int:
        """The number of ranks for which prefixes and folders of output have room."""
        return sum(len(place.ranks) for place in self.places) if self.elastic is None else self.elastic.width


class StartError(Exception):
    """The ranks could not be started. `code`: the exit code of the launcher."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
