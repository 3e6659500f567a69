"""Launchers inside launchers: which of those that a process has variables of is the innermost, and whether the outer
ones have started several copies of it.

A process inherits the variables of all launchers above it. Its ancestors tell their order: the innermost launcher is
the one whose variables begin at the nearest ancestor. Where the system tells no ancestors, or a launcher's daemon hands
on the variables of others together with its own, the daemon's name and the precedence of the families decide.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from transports.launchers import slurm_client
from transports.launchers.families import FAMILIES, Family
from transports.launchers.ronde import JOIN, TAKEN, started_by_ours
from transports.launchers.variables import Env, shown
from transports.liveness import parent_of


@dataclass(frozen=True)
class Layer:
    """A launcher above a process.

    env    the variables that it has set, among others
    above  the process id of the nearest ancestor that does not have them; 0 if there is none
    task   the name of the program that it has started, which is an ancestor of the process; '' if it is the process
    daemon True if that ancestor is a daemon of the launcher
    """

    family: Family
    env: Env = field(repr=False)
    above: int
    task: str
    daemon: bool = False

    @property
    def certain(self) -> bool:
        """True if its variables say that a process of the launcher runs: they were not set by hand."""
        return self.family.stays(self.env) or (started_by_ours(self.env) and self.family.name == "ronde")

    @property
    def copies(self) -> int:
        """The number of processes that it has started, as far as it is certain; else 1."""
        if not self.certain:
            return 1
        if self.family.name == "ronde" and JOIN in self.env:  # a newcomer: it is one of some
            return 2
        place = self.family.place(self.env)
        return 1 if place is None else place[1]

    def __str__(self) -> str:
        return f"{self.family.title} ({shown(self.env, self.family.marks[:2])})"


@dataclass(frozen=True)
class Process:
    """An ancestor of this process, and the variables that it began with."""

    pid: int
    name: str
    env: Env = field(repr=False)


def layers(env: Env) -> list[Layer]:
    """The launchers of which a process with the variables `env` has variables, the innermost first."""
    found, task, alive = [], "", [family for family in FAMILIES if family.says(env)]
    said = dict.fromkeys(alive, env)
    for process in ancestors() if alive else ():
        ended = [family for family in alive if family.differs(said[family], process.env)]
        ended.sort(key=lambda family: process.name not in family.daemons)  # the others keep their precedence
        for family in ended:
            found.append(Layer(family, said[family], process.pid, task, process.name in family.daemons))
        alive = [family for family in alive if family.says(process.env)]
        said = dict.fromkeys(alive, process.env)
        task = process.name
    rest = [Layer(family, said[family], 0, task) for family in alive]
    if any(
        layer.family.name == "ronde" and layer.certain for layer in rest
    ):  # ranks of ours have none but those inside
        rest.sort(key=lambda layer: layer.family.name == "ronde" or not layer.certain)
    return found + rest


def innermost(found: list[Layer]) -> Layer | None:
    """The innermost launcher of a process whose `layers` are these; None without a launcher.

    Variables that are set by hand count only where no launcher's process is behind any others, but for those of torch:
    the scripts of many launchers set them.
    """
    weighty = [layer for layer in found if layer.certain or layer.family.name in ("ronde", "torchrun")]
    return next(iter(weighty or found), None)


def started_several(env: Env) -> str | None:
    """An outer launcher that has started several copies of the innermost one, so that each makes a world of its own;
    None if there is none. For people."""
    found = layers(env)
    inner = innermost(found)
    if inner is None or (inner.certain and not inner.family.alone(inner.env)):
        return None
    if inner.family.name == "ronde":  # our launcher has asked for itself
        return None
    outer = [layer for layer in found[found.index(inner) + 1 :] if layer.above != inner.above or inner.daemon]
    if not inner.certain:  # many programs set these for themselves; only within a rank of ours they contradict
        outer = [layer for layer in outer if layer.family.name == "ronde"]
    return _several([layer for layer in outer if layer.task not in inner.family.daemons], env, inner)


def started_copies(env: Env) -> str | None:
    """An outer launcher that has started several processes such as this one, which is a launcher; None if there is
    none. For people."""
    return _several(layers(env), env, None)


def _several(outer: list[Layer], env: Env, inner: Layer | None) -> str | None:
    if TAKEN in env:  # a rank has started the inner launcher: the job of that is meant to be one of its own
        return None
    for layer in outer:
        if layer.copies > 1 and not (inner and _one_start(inner, layer)):
            return str(layer)
        if layer.family.name == "ronde" and layer.certain:  # our launcher has looked at those above it
            return None
    return None


def _one_start(inner: Layer, outer: Layer) -> bool:
    """True if the variables of both may describe one start: a launcher or a script says the same rank and size by the
    names of another launcher as well. A daemon of the inner launcher below the outer one, or a job of its own, which
    no script names, is a start of its own."""
    job = [name for name in inner.family.marks[2:] if inner.env.get(name) not in (None, outer.env.get(name))]
    if (inner.daemon or job) and inner.above != outer.above:
        return False
    place = inner.family.place(inner.env)
    return place is not None and place == outer.family.place(outer.env)


def ancestors() -> Iterator[Process]:
    """The ancestors of this process, the nearest first, as far as the system tells them (Linux). A daemon of Slurm's
    stands for the srun that has sent the task there, if that is on this host, and its ancestors follow."""
    below: Env = os.environ
    try:
        pid = os.getppid()
        while pid > 1:
            name = Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
            client = slurm_client.client_of(below) if name == slurm_client.DAEMON else 0
            below = _variables(client or pid)
            yield Process(pid, name, below)
            if client:
                pid = client
                yield Process(pid, "srun", below)
            pid = parent_of(pid)
    except OSError:
        return


def _variables(pid: int) -> Mapping[str, str]:
    """The variables that a process began with; none if it is another user's. Raises OSError."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except PermissionError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, equals, value in pairs if equals}
