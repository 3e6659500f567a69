"""The `ronde` command. A subcommand is a module that implements `Command` and is listed in COMMANDS. It is imported
when it runs, and `collectives` with it: the help of all commands needs neither."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

from transports.errors import ConfigError, RondeError
from transports.settings import did_you_mean


class Command(Protocol):
    """The interface of a subcommand's module: the texts around the options in its help, the options, and the command.

    `main` returns the exit code. Among its arguments are `parser`, the parser of the subcommand, and `words`, those of
    the whole command line. A RondeError that it raises is printed as one line.

    Exit codes: 0 done, and nothing is wrong; 1 something is wrong, or the work failed; 2 the command line, a setting or
    a file cannot be used, and nothing has begun; 130 Ctrl-C; 141 the reader of the output has gone. `ronde run` has the
    code of the rank that failed first.
    """

    DESCRIPTION: str
    EXAMPLES: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options and arguments to the subcommand's parser."""

    def main(self, args: argparse.Namespace) -> int:
        """Run the subcommand; its exit code."""


COMMANDS: Final = {
    "run": ("run", "start a program on several ranks, of this machine or of several hosts"),
    "drain": ("drain", "let the ranks of a host leave an elastic job"),
    "bench": ("bench", "time collectives and check their results"),
    "tune": ("tune", "measure which algorithms are fastest here, and write a rule table"),
    "top": ("top.command", "see into a running job: who waits for whom, and who makes the others wait"),
    "doctor": ("doctor.machine", "show what works here, and where settings come from"),
    "why": ("why", "tell for which reason a job has failed or hangs, from the records of its ranks"),
    "timeline": ("timeline", "merge the timelines of several ranks, to view them in Perfetto, or draw them"),
    "draw": ("draw", "draw an algorithm: who sends which part to whom, and when"),
    "simulate": ("simulate", "predict times on a network that you do not have"),
}
"""Each command's module, and its line in the help."""

_CLOSED_PIPE: Final = 128 + 13
"""The exit code of programs that SIGPIPE ends."""
DESCRIPTION: Final = "Collective communication in pure Python."
EXAMPLES: Final = """\
examples:
  ronde run -np 4 train.py          four ranks of train.py on this machine
  ronde drain h2                    let the ranks of host h2 leave an elastic job
  ronde bench -np 4                 measure allreduce over a range of sizes
  ronde tune -np 4                  find the fastest algorithms on this machine and write them to a table
  ronde top                         see into a running job
  ronde doctor                      show available transports, and where settings come from
  ronde doctor -H h1,h2,h3          check a cluster: versions, clocks, and the links between the hosts
  ronde why                         tell for which reason the last job has failed, or hangs
  ronde timeline merge all.json run.rank*.json
                                    merge the timelines of all ranks into one file
  ronde draw allreduce --algorithm ring -np 8
                                    draw an algorithm: who sends which part to whom, and when
  ronde simulate allreduce --topology cluster.toml --ranks 16..10000 --size 1K..1G
                                    predict times on a network that you do not have
  ronde COMMAND --help              show the options of a command

exit codes: 0 nothing is wrong; 1 something is wrong, or the work failed; 2 the command line, a setting or a file cannot
be used; 130 Ctrl-C; 141 the reader of the output has gone. `ronde run` has that of the rank that failed first.
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


class _Version(argparse.Action):
    """Print the version, which is imported for it, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from collectives.version import __version__

        sys.stdout.write(f"ronde {__version__}\n")
        parser.exit()


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of the command line. `only`: the command whose options are needed; None for those of all."""
    layout: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    top = Parser(prog="ronde", description=DESCRIPTION, epilog=EXAMPLES, **layout)
    top.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        if only not in (None, name):
            subparsers.add_parser(name, help=summary)
            continue
        command = cast(Command, importlib.import_module(f"{__package__}.{module}"))
        made = subparsers.add_parser(
            name, help=summary, description=command.DESCRIPTION, epilog=command.EXAMPLES, **layout
        )
        made.set_defaults(main=command.main, parser=made)
        command.add_options(made)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. For a bad command line argparse exits with 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    first = words[0] if words else "--help"
    known = parser(first)
    if first not in (*COMMANDS, "-h", "--help", "--version"):
        hint = did_you_mean(first, COMMANDS) if first.isalpha() else ""  # else it is a program or an option of `run`
        known.error(f"COMMAND={first}: must be one of {', '.join(COMMANDS)}{hint}; `ronde run` starts a program")
    args = known.parse_args(words, argparse.Namespace(words=words))
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without the characters of a table, or of a program's name
        sys.stdout.reconfigure(errors="replace")
    try:
        code = int(args.main(args))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return _CLOSED_PIPE
    except (RondeError, OSError, ModuleNotFoundError) as error:  # the last: an extra is not installed
        sys.stderr.write(f"{args.parser.prog}: {error}\n")
        return 2 if isinstance(error, (ConfigError, ModuleNotFoundError)) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code


if __name__ == "__main__":
    sys.exit(main())
