"""The process of the launcher on this host. Some launchers leave their ranks behind when it is killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transports.errors import ConfigError
from transports.launchers.detection import family_of
from transports.launchers.nesting import layers
from transports.launchers.variables import Env
from transports.liveness import Identity


@dataclass(frozen=True)
class Starter:
    """The process that has started this rank. `name`: that of its program."""

    process: Identity
    name: str

    def __str__(self) -> str:
        return f"{self.name}, process {self.process.pid}"


def find_starter(env: Env) -> Starter | None:
    """The nearest ancestor of this process that does not have the variables by which the launcher says a rank: not a
    shell or another program between the launcher and the rank.

    None without a launcher, if its processes may end before the ranks, and where the system tells no ancestors (it is
    not Linux, or they are in another namespace). Also for a bad RONDE_LAUNCHER, which `find` complains of.
    """
    try:
        family = family_of(env)
    except ConfigError:
        return None
    if family is None or not family.stays(env):
        return None
    above = next((layer.above for layer in layers(env) if layer.family is family), 0)
    try:
        return Starter(Identity.of(above), Path(f"/proc/{above}/comm").read_text().strip()) if above else None
    except OSError:
        return None
