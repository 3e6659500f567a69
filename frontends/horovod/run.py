"""Horovod's `horovod.run`: call a function on ranks of this machine."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import collectives
from transports.interfaces import is_this_host

__all__ = ["run"]

_IGNORED: Final = (
    *("min_num_proc", "max_num_proc", "min_np", "max_np", "slots", "reset_limit", "cooldown_range", "start_timeout"),
    *("ssh_port", "ssh_identity_file", "disable_cache", "output_filename", "verbose", "use_gloo", "use_mpi"),
    *("mpi_args", "network_interface", "network_interfaces", "executable", "prefix_output_with_timestamp"),
)
"""Arguments of Horovod without effect here."""


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    np: int | None = None,
    **options: Any,
) -> list[Any]:
    """Call `func(*args, **kwargs)` on `num_proc` ranks of this machine; the results in rank order.

    func       a function at the top level of a module. It may call `init`, which finds the world of the ranks
    hosts      "localhost:4": this machine and its slots, at least `num_proc`
    hostfile   path of a file with a line "localhost slots=4"
    np         deprecated: num_proc
    options    Horovod's other arguments; a warning names those that are given, because they have no effect

    Raises ValueError for other hosts, for which `ronde run` starts ranks, and for arguments that exclude each other;
    TypeError for arguments that Horovod does not have; otherwise as `ronde.run`.
    """
    unknown = [name for name in options if name not in _IGNORED]
    if unknown:
        raise TypeError(f"run: got unexpected arguments {', '.join(unknown)}")
    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile: give one of them")
    if options.get("use_gloo") and options.get("use_mpi"):
        raise ValueError("use_gloo and use_mpi: give one of them")
    if np is not None:
        warnings.warn("np: deprecated, use num_proc", DeprecationWarning, stacklevel=2)
        num_proc = np if num_proc == 1 else num_proc
    given = [name for name, value in options.items() if value is not None]
    if given:
        warnings.warn(f"run: {', '.join(given)}: without effect in Ronde", stacklevel=2)
    if hosts is not None:
        _check("hosts", [one.strip().partition(":")[::2] for one in hosts.split(",")], num_proc)
    elif hostfile is not None:
        lines = (line.partition("#")[0].strip() for line in Path(hostfile).read_text("utf-8").splitlines())
        _check("hostfile", [tuple(re.split(r"\s+slots\s*=\s*", line, maxsplit=1)) for line in lines if line], num_proc)
    return collectives.run(func, num_proc, args, kwargs)


def _check(argument: str, places: Sequence[Sequence[str]], num_proc: int) -> None:
    """Raise ValueError unless all places, pairs of host and slots, are on this machine and have enough slots."""
    strange = [place[0] for place in places if not is_this_host(place[0])]
    if strange:
        raise ValueError(
            f"{argument}: {', '.join(strange)}: run starts ranks on this machine only; on others use `ronde run`"
        )
    slots = 0
    for place in places:
        text = (place[1] if len(place) > 1 else "") or "1"
        if not text.isdecimal():
            raise ValueError(f"{argument}: {place[0]}: {text!r} is not a number of slots; must be NAME:SLOTS")
        slots += int(text)
    if slots < num_proc:
        raise ValueError(f"{argument}: has {slots} slots for num_proc={num_proc}")
