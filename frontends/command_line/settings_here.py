"""The checks of settings that a rank makes on its own host: files, folders and interfaces that they name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from collectives.config import Config
from collectives.metering import rank_path
from collectives.planning import Rules
from frontends.command_line.arguments import output_file
from transports.errors import ConfigError
from transports.interfaces import choose_address


def problems_here(config: Config) -> Iterator[ConfigError]:
    """The errors that ranks on this host would raise for these settings."""
    for check in (Config.load_tls, _check_rules, _check_interface, _check_timeline):
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


def _check_timeline(config: Config) -> None:
    """Raise ConfigError if rank 0 cannot write its timeline."""
    if config.timeline:
        path = Path(config.timeline)
        try:
            output_file(str(rank_path(path, 0) if config.timeline_style == "ronde" and path.name else path))
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"timeline={config.timeline!r}: cannot be written by rank 0: {error}") from error
