"""Arguments that several commands have on the hosts of ranks."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from collectives.launch.hosts import Srun, Ssh
from collectives.launch.job import NamedHost, Place, allocated, parse_file, parse_list, share_out
from frontends.command_line.arguments import add_ssh, check_ssh
from transports.core_count import usable_cores
from transports.errors import ConfigError

HOSTS: Final = "-H or --hostfile"


def add_hosts(group: Any) -> None:
    """Add the options that name hosts and how to reach them."""
    add_host_names(group)
    add_ways(group)


def add_host_names(group: Any) -> None:
    """Add the options that name hosts."""
    hosts = group.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H", "--hosts", metavar="LIST", help="hosts and numbers of their ranks: h1:4,user@h2:4,[fd00::1]:2"
    )
    hosts.add_argument(
        "--hostfile", "-hostfile", metavar="FILE", help="file with one host per line: 'h1 slots=4', 'h1:4' or 'h1'"
    )


def add_ways(group: Any) -> None:
    """Add the options on the ways to hosts."""
    add_ssh(group, "the hosts' ssh servers")
    group.add_argument(
        "--network-interface",
        "--network-interfaces",
        metavar="NAME",
        help="network interface that the ranks connect by, on every host (default: the one that leads to the others)",
    )


def names_hosts(args: argparse.Namespace) -> bool:
    """True if hosts are named. Ends by a usage error for options of ssh without any."""
    named = args.hosts is not None or args.hostfile is not None
    check_ssh(args, HOSTS, named)
    return named


def hosts_of(args: argparse.Namespace) -> list[NamedHost] | None:
    """The hosts of `-H` or `--hostfile`; None if neither was given, as with `names_hosts`. Raises ConfigError."""
    if not names_hosts(args):
        return None
    if args.hosts is not None:
        return parse_list(args.hosts)
    try:
        text = Path(args.hostfile).read_text("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--hostfile {args.hostfile}: cannot be read: {error}") from error
    return parse_file(text, args.hostfile)


def as_places(hosts: Sequence[NamedHost], np: int | None, way: Ssh | Srun) -> list[Place]:
    """The hosts with their ranks, and the commands that start agents."""
    return [
        Place(share.host.name, share.ranks, None if share.host.is_here else way.command(share.host.address))
        for share in share_out(hosts, np)
    ]


def places_of(args: argparse.Namespace) -> list[Place]:
    """The hosts of the job with their ranks: those that the user names, or that Slurm has allocated, or this one.

    Raises ConfigError.
    """
    hosts = hosts_of(args)
    if hosts is not None:
        return as_places(hosts, args.np, Ssh(args.ssh_port, args.ssh_identity_file))
    hosts = allocated(os.environ)
    if hosts is not None:
        return as_places(hosts, args.np, Srun())
    return [Place(socket.gethostname(), range(args.np or usable_cores()))]
