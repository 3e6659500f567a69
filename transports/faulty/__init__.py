"""Wraps any transport and injects faults by rules: frames late, lost or corrupt, ranks that hang or die.

In tests:  FaultyTransport(inner, [Rule("drop", "send", peer=1, nth=3)])
By name:   transport "faulty" with settings inner="tcp", rules=("drop send peer=1 nth=3",); see `rules` for the words.

Rules for receives hit those from one rank; receives from any source are those of the inner transport.
"""

from __future__ import annotations

from dataclasses import dataclass

from transports import registry
from transports.base import Group, Transport
from transports.errors import ConfigError
from transports.faulty.rules import Operation, Rule, parse_rule
from transports.faulty.transport import FaultyTransport
from transports.settings import pairs

__all__ = ["FaultyTransport", "Operation", "Options", "Rule", "create", "parse_rule", "usable"]


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the transport `faulty`. Raises ConfigError for a bad value.

    inner          name of the transport that is wrapped
    inner_options  settings of the transport `inner`, each "setting=value"
    rules          the faults, each in the notation of `rules`; none: no faults
    seed           seed of the random numbers, together with the rank
    """

    inner: str = "local"
    inner_options: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.inner == "faulty":
            raise ConfigError("inner='faulty': must be another transport")
        for rule in self.rules:
            parse_rule(rule)


def create(group: Group, options: Options) -> Transport:
    """The wrapped transport, not yet open. No I/O. Raises ConfigError for a bad setting of the inner one."""
    settings = registry.make_options(options.inner, pairs(options.inner_options, "setting inner_options"))
    inner = registry.backend(options.inner).create(group, settings)
    return FaultyTransport(inner, tuple(map(parse_rule, options.rules)), options.seed)


def usable() -> str | None:
    """None: the wrapper runs everywhere. `open` raises if the inner transport cannot be used."""
    return None
