"""Arguments that several commands have: numbers, sizes, and files to write."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from transports.base import MOST_RANKS
from transports.errors import ConfigError
from transports.moments import LONGEST_WAIT

MOST_BYTES: Final = 1 << 50
"""The largest size that a command takes, also of an array that is only simulated."""
_DIGITS: Final = 100
"""Digits of the longest number that is read: Python reads no number of some thousands."""


def _integer(least: int, most: int, allowed: str) -> Callable[[str], int]:
    """A reader of integers, for argparse."""

    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > _DIGITS or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: must be {allowed}")
        return int(text)

    return read


whole = _integer(0, 1 << 62, "an integer, 0 or more")
count = _integer(1, MOST_RANKS, f"an integer, 1 to {MOST_RANKS}")
port = _integer(1, 65535, "a port, 1 to 65535")


def _duration(fits: Callable[[float], bool], allowed: str) -> Callable[[str], float]:
    """A reader of seconds, for argparse."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"{text!r}: must be a number of seconds, {allowed}")
        return value

    return read


seconds = _duration(lambda value: 0 <= value < math.inf, "0 or more")
positive = _duration(lambda value: 0 < value < math.inf, "more than 0")
interval = _duration(lambda value: 0 < value <= LONGEST_WAIT, f"more than 0 and at most {LONGEST_WAIT:g}")


def byte_count(text: str) -> int:
    """A number of bytes, for argparse: '64M' gives 67108864."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdecimal() or len(number) > _DIGITS or not 0 < int(number) * unit <= MOST_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a positive number of bytes, such as 4, 64K, 1M or 1G, at most 1024T"
        )
    return int(number) * unit


def output_file(text: str) -> Path:
    """The path of a file that the command will write, for argparse: a mistake is found before the work."""
    path = Path(text)
    try:
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r}: is a folder; it must be a file to write")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r}: there is no folder {str(path.parent)!r}")
        writable = os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as error:  # a name too long, or a folder that may not be entered
        raise argparse.ArgumentTypeError(f"{text!r}: cannot be written: {error.strerror}") from error
    if not writable:
        raise argparse.ArgumentTypeError(f"{text!r}: cannot be written")
    return path


@contextlib.contextmanager
def writing(path: Path, option: str = "") -> Iterator[None]:
    """The body writes this file, which an option has named: its OSError becomes a ConfigError that names both."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be written: {error.strerror}".lstrip()) from error


def output_folder(text: str) -> Path:
    """The path of a folder that the command will make if it is not there, for argparse: a mistake is found before the
    work."""
    path = Path(text)
    if not text:
        raise argparse.ArgumentTypeError("'': must be the path of a folder")
    try:
        found = next((each for each in (path, *path.absolute().parents) if each.exists()), path)
        if not found.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r}: must be a folder, and {str(found)!r} is none")
        writable = os.access(found, os.W_OK | os.X_OK)
    except OSError as error:  # a name too long, or a folder that may not be entered
        raise argparse.ArgumentTypeError(f"{text!r}: cannot be written: {error.strerror}") from error
    if not writable:
        raise argparse.ArgumentTypeError(f"{text!r}: cannot be written")
    return path


def identity_file(text: str) -> str:
    """The path of a private key for ssh, for argparse: ssh itself would go on without a file that is not there. It may
    begin with ~, and have ssh's tokens such as %d."""
    if "%" not in text and not os.path.isfile(os.path.expanduser(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such file")
    return text


def new_folder(text: str) -> Path:
    """The path of a folder that the command will make, for argparse."""
    path = output_folder(text)
    if path.exists():
        raise argparse.ArgumentTypeError(f"{text!r}: is there already; it must be a new folder")
    return path


def check_use(args: argparse.Namespace, option: str, value: object, needed: str, given: object) -> None:
    """End with a usage error if an option has a value without the one that it is for."""
    if value is not None and not given:
        args.parser.error(f"{option} {value}: is for {needed}; give it as well")


def add_ssh(group: Any, whose: str) -> None:
    """Add the options on how ssh reaches hosts."""
    group.add_argument("-p", "--ssh-port", type=port, metavar="PORT", help=f"port of {whose}")
    group.add_argument("-i", "--ssh-identity-file", type=identity_file, metavar="FILE", help="private key for ssh")


def check_ssh(args: argparse.Namespace, needed: str, given: object) -> None:
    """End with a usage error if there are options of `add_ssh` without hosts that ssh is to reach."""
    check_use(args, "--ssh-port", args.ssh_port, needed, given)
    check_use(args, "--ssh-identity-file", args.ssh_identity_file, needed, given)


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
