"""The launch of a process: its rank, the number of ranks, and the ways in which the ranks can meet."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass

from transports.errors import ConfigError
from transports.launchers.ronde import TAKEN
from transports.launchers.variables import Env
from transports.launchers.ways import History, Meeting, Way
from transports.rendezvous import MemoryStore
from transports.store import Store
from transports.tls import Tls


@dataclass(frozen=True)
class Launch:
    """A process as its launcher describes it.

    family    the launcher's name here, as RONDE_LAUNCHER takes it
    title     its name for people
    seen      the variables that say so, with their values: 'RANK=1, WORLD_SIZE=4'
    job       the job's id, the same on all ranks; as far as the launcher tells one, different for jobs at the same time
    one_host  True if the launcher says that all ranks are on one host
    ways      ways in which the ranks can meet, the best first
    mark      what tells this rank from others of this number, for the processes that it starts; mostly the job's id
    joins     True for a newcomer to a job that runs; `rank` is its number, and `size` says nothing
    """

    family: str
    title: str
    rank: int
    size: int
    seen: str
    job: str
    one_host: bool
    ways: tuple[Way, ...]
    mark: str
    joins: bool = False

    def __str__(self) -> str:
        if self.joins:
            return (
                f"{self.title} says that this process is to join a job that runs, as number {self.rank} ({self.seen})"
            )
        return f"{self.title} says that this process is rank {self.rank} of {self.size} ({self.seen})"

    def way(self) -> Way:
        """The first way that can be used. Raises ConfigError saying what each of them lacks."""
        lacking = []
        for way in self.ways:
            missing = way.missing()
            if missing is None:
                return way
            lacking.append(missing)
        raise ConfigError(
            f"{self}, but the ranks cannot meet: {'; '.join(lacking)}. Or set RONDE_STORE, the same for all ranks, to "
            f"tcp://HOST:PORT on rank 0's host with RONDE_SECRET, or to file:///DIRECTORY that all of them share; "
            f"RONDE_LAUNCHER=none makes a world of one of each process"
        )


def meet(
    launch: Launch, *, history: History, interface: str, deadline: float, tls: Tls | None, resources: ExitStack
) -> tuple[Store, bytes]:
    """The store in which the ranks find each other, and the job's secret. Collective.

    history    the meetings of this process in the job; this one is added
    interface  the setting tcp.interface: the interface or address that rank 0 listens on
    deadline   the time of time.monotonic() at which it gives up
    resources  gets what must be closed when the rank leaves

    Raises ConfigError if the ranks cannot meet; RendezvousError, DeadlineExceeded if they do not.
    """
    if launch.size == 1 and launch.family != "ronde":
        return MemoryStore(), b""
    way = launch.way()
    meeting = Meeting(
        launch.rank, launch.size, launch.job, history, launch.one_host, interface, deadline, tls, resources
    )
    try:
        return way.open(meeting)
    finally:
        history.number += 1


def mark_as_rank(launch: Launch, env: MutableMapping[str, str]) -> Callable[[], object]:
    """Note in `env`, which the processes that this one starts inherit, that this process is the rank. Returns the
    function that removes the note."""
    env[TAKEN] = f"{os.getpid()} {launch.rank} {launch.mark}"
    return lambda: env.pop(TAKEN, None)


def check_not_taken(launch: Launch, env: Env) -> None:
    """Raise ConfigError if `env` was inherited from another process that is the rank."""
    process, _, place = env.get(TAKEN, "").partition(" ")
    if place == f"{launch.rank} {launch.mark}" and process != str(os.getpid()):
        raise ConfigError(
            f"{launch.seen}: rank {launch.rank} is process {process} already, which has started this one (pid "
            f"{os.getpid()}); if multiprocessing imports the program here again, call init under "
            f"if __name__ == '__main__'; for a world of its own, give init rank=0, size=1 and store='memory:', or "
            f"start the process with RONDE_LAUNCHER=none"
        )
