"""The checks of settings that a rank makes on its own host: files and interfaces that they name. (The program may
make the folder of a timeline.)"""

from __future__ import annotations

from collections.abc import Iterator

from collectives.config import Config
from collectives.planning import Rules
from transports.errors import ConfigError
from transports.interfaces import choose_address


def problems_here(config: Config) -> Iterator[ConfigError]:
    """The errors that ranks on this host would raise for these settings."""
    for check in (Config.load_tls, _check_rules, _check_interface):
        try:
            check(config)
        except ConfigError as error:
            yield error


def _check_interface(config: Config) -> None:
    interface = config.transport_options("tcp").interface
    if interface:
        choose_address(interface, None)


def _check_rules(config: Config) -> None:
    Rules.read(config.rules)
