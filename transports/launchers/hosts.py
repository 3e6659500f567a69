"""Lists of hosts as schedulers write them."""

from __future__ import annotations

import itertools
import re
from typing import Final

from transports.errors import ConfigError

MAX_HOSTS: Final = 1 << 16


def expand(text: str, source: str) -> list[str]:
    """The hosts of a list as Slurm writes it: 'login,node[01-03,7],rack[1-2]n[1,5]'.

    Several brackets multiply, the last changing fastest; numbers keep their leading zeros. Raises ConfigError that
    names `source`, the variable with the list.
    """
    bad = ConfigError(f"{source}={text!r}: must be a list of hosts, such as node[01-03],login")
    hosts: list[str] = []
    for item in re.split(r",(?![^\[\]]*\])", text):  # at commas outside brackets
        pieces = re.split(r"\[([^\[\]]*)\]", item)
        if any(set(piece) & set("[], ") for piece in pieces[::2]):
            raise bad
        choices = [[piece] if i % 2 == 0 else _numbers(piece, bad) for i, piece in enumerate(pieces)]
        for host in itertools.product(*choices):
            hosts.append("".join(host))
            if len(hosts) > MAX_HOSTS:
                raise ConfigError(f"{source}: has more than {MAX_HOSTS} hosts")
    if not hosts or not all(hosts):
        raise bad
    return hosts


def _numbers(text: str, bad: ConfigError) -> list[str]:
    """'01-03,7' as ['01', '02', '03', '7']."""
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None:
            raise bad
        first, last = match[1], match[2] or match[1]
        if not int(first) <= int(last) < int(first) + MAX_HOSTS:
            raise bad
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
