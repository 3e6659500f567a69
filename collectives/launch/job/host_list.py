"""The hosts of a job: lists and files that name them, and the nodes that Slurm has allocated; and the ranks of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from transports import launchers
from transports.base import MOST_RANKS
from transports.errors import ConfigError
from transports.interfaces import canonical, is_this_host

_HOST: Final = r"(?P<user>[A-Za-z0-9_][^\s@:,\[\]]*@)?(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<name>\w[\w.-]*))"
_WITH_SLOTS: Final = re.compile(_HOST + r"(?::(?P<slots>[^:]*))?", re.ASCII)
_FORMS: Final = "NAME, NAME:SLOTS, USER@NAME:SLOTS or [IPV6]:SLOTS"
_NODES: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_TASKS: Final = "SLURM_TASKS_PER_NODE"
_COMPONENTS: Final = ("SLURM_HET_SIZE", "SLURM_PACK_SIZE")
_NO_TASKS: Final = ("batch", "extern", "interactive", "4294967290", "4294967291", "4294967292")
"""Steps that are a user's shell or script; the numbers are those of slurm.h (SLURM_INTERACTIVE_STEP and others)."""


@dataclass(frozen=True)
class NamedHost:
    """A host as the user named it.

    address  what ssh connects to, with the user's name if one was given
    name     its name or address in one form for all ways to write it, without user and brackets
    slots    number of ranks that may run there
    """

    address: str
    name: str
    slots: int

    @property
    def is_here(self) -> bool:
        """True if it is certainly this machine, and no other user's."""
        return "@" not in self.address and is_this_host(self.name)


@dataclass(frozen=True)
class Share:
    """A host and the ranks that it gets, in the order of their local ranks."""

    host: NamedHost
    ranks: range


def parse_list(text: str, slots: int = 1, *, where: str = "", least: int = 1) -> list[NamedHost]:
    """The hosts of a list such as 'h1:4,user@h2,[fd00::1]:2'. A host without a number has `slots`; none may have less
    than `least`. `where` is for messages, '' for the option -H. Raises ConfigError."""
    where = where or f"-H {text}"
    return _checked([_host(word.strip(), where, slots, least) for word in text.split(",")], where)


def parse_file(text: str, path: str, slots_each: int = 1, *, least: int = 1) -> list[NamedHost]:
    """The hosts of a host file, one in a line: 'h1 slots=4 max-slots=8' (Open MPI, Horovod), 'h1:4' (MPICH) or 'h1'.
    '#' begins a comment. A host without a number has `slots_each`; none may have less than `least`. A host of several
    lines has the slots of all, as in the files of PBS and LSF. `path` is for messages. Raises ConfigError."""
    found: dict[str, NamedHost] = {}
    for number, line in enumerate(text.splitlines(), 1):
        where = f"host file {path}, line {number}"
        word, *rest = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split() or [""]
        if not word:
            continue
        host, slots = _host(word, where, slots_each, least), None
        for setting in rest:
            key, _, value = setting.partition("=")
            if key not in ("slots", "max-slots", "max_slots") or (key == "slots" and ":" in word.rpartition("]")[2]):
                raise ConfigError(f"{where}: {setting!r}: must be slots=N or max-slots=N, or nothing after NAME:SLOTS")
            count = _count(value, where, least)
            if key == "slots":
                slots = count
            elif slots is not None and count < slots:
                raise ConfigError(f"{where}: {setting!r}: must not be less than slots={slots}")
        slots = host.slots if slots is None else slots
        before = found.get(host.address)
        found[host.address] = replace(host, slots=slots if before is None else before.slots + slots)
    if not found:
        raise ConfigError(f"host file {path}: names no host")
    return _checked(found.values(), f"host file {path}")


def share_out(hosts: Sequence[NamedHost], np: int | None) -> list[Share]:
    """The ranks of each host: the slots are filled in the order of the hosts. Hosts without a rank are left out.

    np  number of ranks; None for all slots. Raises ConfigError if there are not enough slots.
    """
    np = sum(host.slots for host in hosts) if np is None else np
    check_slots(hosts, np, "-np")
    shares, first = [], 0
    for host in hosts:
        last = min(np, first + host.slots)
        if last > first:
            shares.append(Share(host, range(first, last)))
        first = last
    return shares


def check_slots(hosts: Sequence[NamedHost], number: int, option: str) -> None:
    """Raise ConfigError if there are not enough slots for the number of ranks that an option has."""
    slots = sum(host.slots for host in hosts)
    if number > slots:
        listed = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ConfigError(
            f"{option} {number}: there are only {slots} slots ({listed}); give the hosts more slots, as in NAME:4"
        )


def _host(word: str, where: str, slots: int, least: int) -> NamedHost:
    match = _WITH_SLOTS.fullmatch(word)
    if match is None:
        hint = "; an IPv6 address needs brackets" if word.count(":") > 1 else ""
        raise ConfigError(f"{where}: {word!r}: must be {_FORMS}{hint}")
    if match["slots"] is not None:
        slots = _count(match["slots"], where, least)
    name = match["v6"] or match["name"]
    return NamedHost((match["user"] or "") + name, canonical(name), slots)


def _count(text: str, where: str, least: int) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or not least <= int(text) <= MOST_RANKS:
        raise ConfigError(f"{where}: {text!r} slots: must be an integer, {least} to {MOST_RANKS}")
    return int(text)


def _checked(hosts: Iterable[NamedHost], where: str) -> list[NamedHost]:
    found: dict[str, NamedHost] = {}
    for host in hosts:
        if host.name in found:
            raise ConfigError(f"{where}: host {host.name!r} is named twice; give it the sum of the slots once")
        found[host.name] = host
    return one_here(found.values())


def one_here(hosts: Iterable[NamedHost]) -> list[NamedHost]:
    """The same hosts, but this machine once, under the first of its names and with all of its slots."""
    found: list[NamedHost] = []
    here: int | None = None
    for host in hosts:
        if here is not None and host.is_here:
            found[here] = replace(found[here], slots=found[here].slots + host.slots)
            continue
        if here is None and host.is_here:
            here = len(found)
        found.append(host)
    return found


def allocated(environment: Mapping[str, str]) -> list[NamedHost] | None:
    """The nodes with the numbers of their tasks; None outside of an allocation, and for a process that srun started.

    Raises ConfigError for variables that cannot be read, for a heterogeneous job, which has several allocations, and if
    srun has started this launcher several times.
    """
    if "SLURM_JOB_ID" not in environment or environment.get(launchers.VARIABLE) == "none":
        return None
    if environment.get("SLURM_STEP_ID", "batch") not in _NO_TASKS:
        if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
            raise ConfigError(
                f"srun has started {environment['SLURM_STEP_NUM_TASKS']} copies of this launcher: start `ronde run` "
                f"once, in sbatch or salloc, or start the program itself by srun"
            )
        return None
    components = next((name for name in _COMPONENTS if name in environment), None)
    if components is not None:
        raise ConfigError(
            f"{components}={environment[components]}: the nodes of a heterogeneous job are not all known here: start "
            f"the program itself by srun, as by `srun --het-group=0,1 train.py`, or name the hosts by -H; "
            f"{launchers.VARIABLE}=none is for this node alone"
        )
    name = next((name for name in _NODES if name in environment), None)
    if name is None:
        return None
    nodes = launchers.expand(environment[name], name)
    tasks = tasks_per_node(environment.get(_TASKS, f"1(x{len(nodes)})"))
    if len(tasks) != len(nodes):
        raise ConfigError(
            f"{_TASKS}={environment[_TASKS]!r}: describes {len(tasks)} nodes, but {name} has {len(nodes)}"
        )
    return [NamedHost(node, node, count) for node, count in zip(nodes, tasks, strict=True)]


def tasks_per_node(text: str) -> list[int]:
    """'2(x3),1' as [2, 2, 2, 1]. Raises ConfigError."""
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", item)
        if match is None or not int(match[1]):
            raise ConfigError(f"{_TASKS}={text!r}: must be numbers of tasks, such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
