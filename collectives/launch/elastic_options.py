"""The options of `ronde run` for elastic jobs, and the job that they make."""

from __future__ import annotations

import argparse
import math
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from collectives.launch import discovery, horovod_settings
from collectives.launch.agent_commands import Srun, Ssh
from collectives.launch.allocation import allocated
from collectives.launch.discovery import Discovery
from collectives.launch.host_list import Host, parse_list
from collectives.launch.job import Elastic
from collectives.launch.processes import usable_cores
from collectives.scaling import Cooldown, Terms
from transports.errors import ConfigError

_SWITCHES: Final = ("min_np", "max_np", "host_discovery_script", "discover_dns")
_MORE: Final = (
    *("slots_per_host", "elastic_timeout", "reset_limit", "blacklist_cooldown_range", "spares", "leave_timeout"),
    "preemption_file",
)


def add_options(group: Any, count: Callable[[str], int], seconds: Callable[[str], float]) -> None:
    """Add the options. `count` and `seconds` read numbers of 1 or more, and of more than 0."""
    group.add_argument(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=count,
        metavar="N",
        help="least number of ranks; with fewer slots the job waits (default: -np, or 1)",
    )
    group.add_argument(
        "--max-np",
        "--max-num-proc",
        dest="max_np",
        type=count,
        metavar="N",
        help="greatest number of ranks (default: the slots of the hosts)",
    )
    group.add_argument(
        "--host-discovery-script",
        metavar="PATH",
        help="program that prints the current hosts, one per line, as NAME or NAME:SLOTS; run every second",
    )
    group.add_argument(
        "--discover-dns",
        metavar="NAME",
        help="DNS name that resolves to the addresses of the hosts, such as a headless service of Kubernetes",
    )
    group.add_argument(
        "--slots-per-host",
        type=count,
        metavar="N",
        help="slots of a host for which no number is given (default: 1)",
    )
    group.add_argument(
        "--elastic-timeout",
        type=seconds,
        metavar="S",
        help="seconds to wait for --min-np slots, at the start and later, before the job fails (default: 600)",
    )
    group.add_argument(
        "--reset-limit",
        type=_limit,
        metavar="N",
        help="the job fails after N changes of its ranks (default: no limit)",
    )
    group.add_argument(
        "--blacklist-cooldown-range",
        type=seconds,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="seconds that a slot rests after its first fault, and at most; each rest is twice the one before. A fault "
        "after a rest of MAX is the slot's last (default: 1 64)",
    )
    group.add_argument(
        "--spares",
        type=_limit,
        metavar="K",
        help="processes beyond --max-np that wait, started and connected, to replace a rank (default: 0)",
    )
    group.add_argument(
        "--leave-timeout",
        type=seconds,
        metavar="S",
        help="seconds that ranks get to leave a host that is drained, preempted or no longer listed (default: 60)",
    )
    group.add_argument(
        "--preemption-file",
        metavar="PATH",
        help="path of a file; the ranks of a host leave when the file appears on that host",
    )


def is_elastic(args: argparse.Namespace) -> bool:
    """True if the options ask for an elastic job. Ends by a usage error for options that need one."""
    given = [name for name in _MORE if getattr(args, name) is not None]
    elastic = any(getattr(args, name) is not None for name in _SWITCHES)
    if given and not elastic:
        args.usage_error(
            f"{_option(given[0])}: is for elastic jobs; give --min-np, --max-np, --host-discovery-script or "
            "--discover-dns as well"
        )
    if elastic:
        for name in ("nodes", "keep_going"):
            if getattr(args, name):
                args.usage_error(f"{_option(name)}: an elastic job cannot have it")
    return elastic


def elastic(args: argparse.Namespace, environment: Mapping[str, str]) -> Elastic:
    """The terms of the job, and the ways to find and reach its hosts. Raises ConfigError."""
    terms = terms_of(args, environment)
    way, discovery = way_and_discovery(args, terms)
    return Elastic(terms, discovery, way, notice=args.preemption_file or "")


def terms_of(args: argparse.Namespace, environment: Mapping[str, str]) -> Terms:
    """The terms of the job. Raises ConfigError that names the option."""
    minimum = args.min_np or args.np or 1
    if args.np is not None and args.np < minimum:
        raise ConfigError(f"-np {args.np}: must be at least --min-np {minimum}")
    if args.max_np is not None and args.max_np < max(minimum, args.np or 1):
        smaller = f"-np {args.np}" if args.np is not None and args.np > minimum else f"--min-np {minimum}"
        raise ConfigError(f"--max-np {args.max_np}: must be at least {smaller}")
    if args.spares and args.max_np is None:
        raise ConfigError(f"--spares {args.spares}: needs --max-np; without it there is a rank in every slot")
    shortest, longest = args.blacklist_cooldown_range or (Cooldown().shortest, Cooldown().longest)
    if shortest > longest:
        raise ConfigError(
            f"--blacklist-cooldown-range {shortest:g} {longest:g}: the first number must not exceed the second"
        )
    return Terms(
        minimum,
        args.max_np,
        args.np,
        args.spares or 0,
        _patience(args, environment),
        args.reset_limit,
        Cooldown(shortest, longest),
        args.leave_timeout or Terms(1).leave_timeout,
        args.grace,
    )


def way_and_discovery(args: argparse.Namespace, terms: Terms) -> tuple[Ssh | Srun, Discovery]:
    """The ways to reach the hosts and to find them. Raises ConfigError."""
    slots = args.slots_per_host or 1
    ssh = Ssh(args.ssh_port, args.ssh_identity_file)
    named = [name for name in ("hosts", "hostfile", "host_discovery_script", "discover_dns") if getattr(args, name)]
    if len(named) > 1:
        args.usage_error(f"{_option(named[1])}: not allowed with {_option(named[0])}")
    if args.host_discovery_script is not None:
        discovery.check_script(args.host_discovery_script)
        return ssh, discovery.Script(args.host_discovery_script, slots)
    if args.discover_dns is not None:
        return ssh, discovery.Dns(args.discover_dns, slots)
    if args.hostfile is not None:
        return ssh, discovery.HostFile(Path(args.hostfile), slots)
    if args.hosts is not None:
        return ssh, discovery.Fixed(parse_list(args.hosts, slots))
    nodes = allocated(os.environ)
    if nodes is not None:
        return Srun(), discovery.slurm_job(os.environ, nodes, args.slots_per_host)
    own = socket.gethostname()
    most = terms.maximum or terms.first or max(usable_cores(), terms.minimum)
    return ssh, discovery.Fixed([Host(own, own, args.slots_per_host or most + terms.spares)])


def _patience(args: argparse.Namespace, environment: Mapping[str, str]) -> float:
    if args.elastic_timeout is not None:
        return float(args.elastic_timeout)
    text = environment.get(horovod_settings.ELASTIC_TIMEOUT, "600")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"{horovod_settings.ELASTIC_TIMEOUT}={text!r}: must be a number of seconds, more than 0")
    return value


def _limit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer, 0 or more")
    return int(text)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
