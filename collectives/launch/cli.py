"""The `ronde` command. A subcommand is a module that implements `Command` and is listed in COMMANDS."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol

from collectives.launch import bench, doctor, drain, draw, run_command, simulate, timeline, tune
from collectives.launch.processes import exit_code
from collectives.version import __version__
from transports.errors import RondeError
from transports.settings import did_you_mean


class Command(Protocol):
    """The interface of a subcommand's module."""

    def add_parser(self, subparsers: Any) -> None:
        """Add the subcommand's parser, with a default `main`: a function of the parsed arguments.

        `main` returns the exit code. Among the arguments are the `words` of the whole command line. A RondeError that
        it raises is printed as one line, with exit code 1.
        """


COMMANDS: Final[tuple[Command, ...]] = (run_command, drain, bench, tune, doctor, timeline, draw, simulate)

DESCRIPTION: Final = "Collective communication in pure Python."
EXAMPLES: Final = """\
examples:
  ronde run -np 4 train.py          four ranks of train.py on this machine
  ronde drain h2                    let the ranks of host h2 leave an elastic job
  ronde bench -np 4                 measure allreduce over a range of sizes
  ronde tune -np 4                  find the fastest algorithms on this machine and write them to a table
  ronde doctor                      show available transports, and every setting with its source
  ronde doctor -H h1,h2,h3          check a cluster: versions, clocks, and the links between the hosts
  ronde timeline merge all.json run.rank*.json
                                    merge the timelines of all ranks into one file
  ronde draw allreduce --algorithm ring -np 8
                                    draw an algorithm: who sends which part to whom, and when
  ronde simulate allreduce --topology cluster.toml --ranks 16..10000 --size 1K..1G
                                    predict times on a network that you do not have
  ronde COMMAND --help              show the options of a command
"""


class Parser(argparse.ArgumentParser):
    """A parser, of the command or of a subcommand, that reports an unknown option itself, with the one that is like
    it."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [option for action in self._actions for option in action.option_strings]
            hint = did_you_mean(unknown[0].partition("=")[0], options)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = Parser(
        prog="ronde",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"ronde {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. For a bad command line argparse exits with 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(words, argparse.Namespace(words=words))
    try:
        return int(args.main(args))
    except RondeError as error:
        sys.stderr.write(f"ronde: {type(error).__name__}: {error}\n")
        return 1
    except KeyboardInterrupt:
        return exit_code(-signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
