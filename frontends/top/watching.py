"""The jobs of this user on this host, and what their ranks have noted lately.

The ranks of this host are read from their files; a rank of each other host is asked for those of its own, through the
store of the ranks.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectives.flight import (
    Digest,
    Record,
    UnreadableRecord,
    digest_of,
    is_alive,
    read,
    read_door,
    records,
    save,
    worlds,
    write_copy,
)
from collectives.folders import runtime_folders
from collectives.observing import Link
from transports.errors import ConfigError, RendezvousError

if TYPE_CHECKING:
    from collectives.watchdog import Viewer

ANSWER_SECONDS: Final = 0.6
"""Time for the ranks of other hosts to answer."""
STACK_SECONDS: Final = 3.0
"""Time for a rank to tell its stack."""
_MORE_LOOKS: Final = 3
"""Looks for the records of hosts that have not answered the first one."""
DELAY_SECONDS: Final = 30.0
"""Time of which delays tell."""
_MOMENT_SECONDS: Final = 2.0
"""Time that is too short to tell of delays."""
_PAUSE_SECONDS: Final = 10.0
"""Time after which a store that could not be reached is tried again."""


class Job(NamedTuple):
    """A world with ranks on this host.

    name   of the world
    alive  ranks that live on this host, of `here` that have a record
    facts  of its first rank here
    """

    folder: Path
    name: str
    alive: int
    here: int
    facts: Mapping[str, Any]

    def describe(self) -> str:
        """In a line."""
        return f"{self.name}  {self.facts.get('size', '?')} ranks, {self.alive} here  {self.facts.get('program', '')}"


def jobs() -> list[Job]:
    """The worlds that live, the newest first. Of those that share processes only the largest, the newest if they are of
    one size."""
    found = []
    for folder in worlds():
        paths = records(folder)
        alive = sum(map(is_alive, paths))
        facts = _first_facts(paths) if alive else None
        if facts is not None:
            found.append(Job(folder, folder.name, alive, len(paths), facts))
    kept: dict[tuple[Any, Any], Job] = {}
    for job in sorted(found, key=lambda job: -int(job.facts.get("size", 0))):
        kept.setdefault((job.facts.get("host"), job.facts.get("pid")), job)
    return [job for job in found if job in kept.values()]


def _first_facts(paths: Iterable[Path]) -> Mapping[str, Any] | None:
    for path in paths:
        with contextlib.suppress(OSError, UnreadableRecord):
            return read(path, 0).facts
    return None


def find(name: str | None) -> Job:
    """The job whose name begins with `name`, one that runs before those that are over; without it the only one. Raises
    ConfigError that lists them."""
    if name == "":
        raise ConfigError("--job='': must be the beginning of a job's name")
    found = jobs() if name is None else [_named(folder) for folder in worlds() if folder.name.startswith(name)]
    found = [job for job in found if job.facts]
    found = [job for job in found if job.name == name] or found
    if len(found) > 1:
        found = [job for job in found if job.alive] or found
    if len(found) == 1:
        return found[0]
    where = " or ".join(str(parent / "flights") for parent in runtime_folders())
    if not found:
        which = "no job" if name is None else f"--job={name}: no job of that name"
        raise ConfigError(f"{which} of this user has ranks on this host (in {where})")
    lines = "\n  ".join(job.describe() for job in found)
    of_name = "" if name is None else f" whose names begin with {name!r}"
    raise ConfigError(f"--job: there are several jobs on this host{of_name}; name one of\n  {lines}")


def _named(folder: Path) -> Job:
    paths = records(folder)
    return Job(folder, folder.name, sum(map(is_alive, paths)), len(paths), _first_facts(paths) or {})


@dataclass(frozen=True)
class Look:
    """The records of a job at one moment, on the clock of this host.

    now         the clock of this host, in nanoseconds
    delays      by rank, seconds in each second for which its threads were ready and waited for a core
    links       by the host that sends and the other one
    silent      ranks of hosts that have not answered
    trouble     the reason why other hosts could not be asked; empty if they could
    over        True if no rank of this host lives
    """

    now: int
    records: tuple[Record, ...]
    delays: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    trouble: str = ""
    over: bool = False


class Watched:
    """One job that is looked at. For one thread; close it.

    folder   the one of its records
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._here = digest_of(folder)
        self._viewer: Viewer | None = None
        self._try_at = 0.0
        self._trouble = ""
        self._delayed: dict[int, deque[tuple[int, int]]] = {}  # by rank, the clock and the delay of each look
        self._hosts: tuple[tuple[int, ...], ...] = ()  # the others, by their ranks
        self._far: dict[tuple[int, ...], Digest] = {}
        self._silent: dict[tuple[int, ...], int] = {}  # how often each was asked in vain

    def look(self) -> Look:
        """The calls that the ranks have noted. Takes less than a second; raises nothing."""
        self._follow()
        here = digest_of(self.folder)
        if here.records:
            self._here = here
        else:  # the world is over, and was forgotten for newer ones
            here = Digest(here.now, tuple(replace(record, alive=False) for record in self._here.records), {})
        near = {record.rank for record in here.records}
        door, trouble = read_door(self.folder), ""
        if door is not None:
            self._hosts = tuple(host for host in door.hosts if near.isdisjoint(host))
            trouble = self._ask() if self._hosts else ""
        digests = [here, *(self._far[host] for host in self._hosts if host in self._far)]
        return Look(
            now=time.perf_counter_ns(),
            records=tuple(record for digest in digests for record in digest.records),
            delays=self._delays(digests),
            links=_links(digests),
            silent=tuple(rank for host in self._hosts if host in self._silent for rank in host),
            trouble=trouble,
            over=not any(record.alive for record in here.records),
        )

    def stack(self, rank: int) -> str:
        """The Python stack of the main thread of a rank, and the calls that it is in; or the reason why there is
        none."""
        try:
            viewer = self._open()
            if viewer is None:
                return "its stack cannot be had: the ranks have no store that other processes reach"
            answer = viewer.answer(rank, time.monotonic() + STACK_SECONDS)
        except (RendezvousError, ConfigError) as error:
            self.close()
            return f"its stack cannot be had: {error}"
        if answer is None:
            return f"no answer within {STACK_SECONDS:g} s"
        return "".join([*(f"{text}\n" for _, _, text in answer.calls), answer.stack])

    def save(self, folder: Path) -> list[Path]:
        """Write the records as they are now into a new folder, for `ronde why`. Hosts that do not answer at once are
        asked again. Raises OSError; UnreadableRecord."""
        look = self.look()
        for _ in range(_MORE_LOOKS):
            if look.silent:
                look = self.look()
        folder.mkdir(parents=True)
        near = {record.path.name: record for record in look.records if record.path.parent == self.folder}
        for name in near:
            save(self.folder / name, folder)
        for record in look.records:
            if record.path.name not in near:
                write_copy(record, folder / record.path.name)
        return [folder / record.path.name for record in look.records]

    def close(self) -> None:
        """Close the connection to the store. Idempotent."""
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None

    def _open(self) -> Viewer | None:
        """The connection to the ranks' store; None if there is no way to it. Raises ConfigError."""
        if self._viewer is None:
            door = read_door(self.folder)
            if door is not None:
                from collectives.watchdog import Viewer  # which takes a while to import, and is for other hosts

                self._viewer = Viewer(door, ANSWER_SECONDS)
        return self._viewer

    def _ask(self) -> str:
        """Ask a rank of each other host; the trouble, if there is some. A host that does not answer is asked by another
        of its ranks the next time."""
        if time.monotonic() < self._try_at:
            return self._trouble
        try:
            viewer = self._open()
            if viewer is None:
                return "the ranks have no store that other processes reach"
            chosen = {host[self._silent.get(host, 0) % len(host)]: host for host in self._hosts}
            digests = viewer.digests(list(chosen), time.monotonic() + ANSWER_SECONDS)
        except (RendezvousError, ConfigError) as error:
            self.close()
            self._try_at = time.monotonic() + _PAUSE_SECONDS
            self._trouble = str(error)
            return self._trouble
        for rank, host in chosen.items():
            if rank in digests:
                self._far[host] = digests[rank]
                self._silent.pop(host, None)
            else:
                self._silent[host] = self._silent.get(host, 0) + 1
        return ""

    def _delays(self, digests: Iterable[Digest]) -> dict[int, float]:
        """Those of the time that looks have covered, at most DELAY_SECONDS. If that is a moment, those since the rank
        began, unless that was long ago: the kernel counts a delay when it ends, so a moment may have none."""
        found = {}
        for digest in digests:
            facts = {record.rank: record.facts for record in digest.records}
            for rank, load in digest.loads.items():
                looks = self._delayed.setdefault(rank, deque())
                while looks and digest.now - looks[0][0] > DELAY_SECONDS * 1e9:
                    looks.popleft()
                before = looks[0] if looks else None
                if "delayed" in facts[rank] and (before is None or digest.now - before[0] < _MOMENT_SECONDS * 1e9):
                    start = int(facts[rank]["clock"]), int(facts[rank]["delayed"])
                    if before is None or digest.now - start[0] < 2 * DELAY_SECONDS * 1e9:
                        before = start
                if before is not None:
                    found[rank] = max(0.0, (load.delayed - before[1]) / max(1, digest.now - before[0]))
                looks.append((digest.now, load.delayed))
        return found

    def _follow(self) -> None:
        """Go on with the next world of the same processes, if this one is over and they have made another."""
        paths = records(self.folder)
        if any(map(is_alive, paths)):
            return
        own = set()
        for path in paths:
            with contextlib.suppress(OSError, UnreadableRecord):
                own.add(read(path, 0).facts.get("pid"))
        for job in jobs():
            if job.facts.get("pid") in own and job.folder != self.folder:
                self.close()
                self.folder = job.folder
                self._delayed.clear()
                self._far.clear()
                return


def _links(digests: Iterable[Digest]) -> dict[tuple[str, str], Link]:
    """The links between hosts. An address that two hosts have, as behind a translation of addresses, tells of none."""
    routes = {str(digest.records[0].facts.get("host", "")): digest.routes for digest in digests if digest.records}
    owners: dict[str, set[str]] = {}
    for host, ones in routes.items():
        for route in ones:
            owners.setdefault(route.local, set()).add(host)
    found: dict[tuple[str, str], Link] = {}
    for host, ones in routes.items():
        for route in ones:
            others = owners.get(route.remote, set()) - {host}
            if len(others) == 1 and len(owners[route.local]) == 1:
                pair, link = (host, min(others)), Link(route.round_trip / 1e6, route.rate)
                found[pair] = link.better(found.get(pair, link))
    return found


def default_folder(job: str) -> Path:
    """The folder where a record of a job is saved: a new folder in the current one."""
    return Path(os.getcwd()) / f"ronde-{job}-{time.strftime('%H%M%S')}"
