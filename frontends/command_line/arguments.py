"""Arguments that several commands have: numbers, sizes, files to write, and the hosts of ranks."""

from __future__ import annotations

import argparse
import math
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collectives.launch.hosts import Srun, Ssh
from collectives.launch.job import NamedHost, Place, allocated, parse_file, parse_list, share_out
from transports.core_count import usable_cores
from transports.errors import ConfigError


def _integer(least: int, most: int, allowed: str) -> Callable[[str], int]:
    """A reader of integers, for argparse."""

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: must be {allowed}")
        return int(text)

    return read


whole = _integer(0, 1 << 62, "an integer, 0 or more")
count = _integer(1, 65536, "an integer, 1 or more")
port = _integer(1, 65535, "a port, 1 to 65535")


def seconds(text: str) -> float:
    """A number of seconds, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of seconds, 0 or more")
    return value


def positive(text: str) -> float:
    """A number of seconds above 0, for argparse."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of seconds, more than 0")
    return value


def byte_count(text: str) -> int:
    """A number of bytes, for argparse: '64M' gives 67108864."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a positive number of bytes, such as 4, 64K, 1M or 1G")
    return int(number) * unit


def output_file(text: str) -> Path:
    """The path of a file that the command will write, for argparse: a mistake is found before the work."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: is a folder; it must be a file to write")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no folder {str(path.parent)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r}: cannot be written")
    return path


def add_sizes(parser: argparse.ArgumentParser, smallest: str, largest: str) -> None:
    """Add the options for a range of sizes, with these defaults."""
    for option, default, text in (("--min", smallest, "smallest"), ("--max", largest, "largest")):
        parser.add_argument(
            option, type=byte_count, default=default, metavar="SIZE", help=f"{text} size in bytes (default: {default})"
        )
    parser.add_argument(
        "--factor",
        type=_integer(2, 1 << 30, "an integer, 2 or more"),
        default=4,
        metavar="F",
        help="ratio of successive sizes (default: 4)",
    )


def sizes_of(args: argparse.Namespace) -> tuple[int, ...]:
    """The sizes that the options of `add_sizes` give. Ends by a usage error for a range without sizes, and for sizes
    beyond the memory of this machine."""
    if args.min > args.max:
        args.parser.error(f"--min {args.min}: must not be greater than --max {args.max}")
    memory = _memory()
    if args.max > memory:
        args.parser.error(f"--max {args.max}: must not be greater than the memory of this machine, {memory} bytes")
    sizes = [args.min]
    while sizes[-1] * args.factor <= args.max:
        sizes.append(sizes[-1] * args.factor)
    return tuple(sizes)


def _memory() -> int:
    """Bytes of this machine's memory; very many where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


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
    group.add_argument("-p", "--ssh-port", type=port, metavar="PORT", help="port of the hosts' ssh servers")
    group.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    group.add_argument(
        "--network-interface",
        "--network-interfaces",
        metavar="NAME",
        help="network interface that the ranks connect by, on every host (default: the one that leads to the others)",
    )


def hosts_of(args: argparse.Namespace) -> list[NamedHost] | None:
    """The hosts of `-H` or `--hostfile`; None if neither was given. Raises ConfigError."""
    if args.hosts is not None:
        return parse_list(args.hosts)
    if args.hostfile is not None:
        try:
            text = Path(args.hostfile).read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--hostfile {args.hostfile}: cannot be read: {error}") from error
        return parse_file(text, args.hostfile)
    return None


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
