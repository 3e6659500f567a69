"""The `ronde` command. A subcommand is a module that fulfils `Command`; list it in COMMANDS."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol

import collectives
from collectives.launch import bench, doctor, run_command, timeline, tune
from transports.errors import RondeError


class Command(Protocol):
    """What a subcommand's module offers."""

    def add_parser(self, subparsers: Any) -> None:
        """Add the subcommand's parser, whose default `main` is what to call with the parsed arguments. It returns the
        exit code; a RondeError that it raises is shown to the user as one line, with exit code 1."""


COMMANDS: Final[tuple[Command, ...]] = (run_command, bench, tune, doctor, timeline)

DESCRIPTION: Final = "Collective communication in pure Python."
EXAMPLES: Final = """\
examples:
  ronde run -np 4 train.py          four ranks of train.py on this machine
  ronde bench -np 4                 time allreduce over a range of sizes
  ronde tune -np 4                  write a table of the algorithms that are fastest on this machine
  ronde doctor                      what works here, and every setting with its source
  ronde timeline merge all.json run.rank*.json   one timeline of those of all ranks
  ronde run --help                  more about starting ranks
"""


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="ronde",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"ronde {collectives.__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code. 2 for a bad command line, which argparse reports itself."""
    args = parser().parse_args(argv)
    try:
        return int(args.main(args))
    except RondeError as error:
        sys.stderr.write(f"ronde: {type(error).__name__}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
