"""`ronde drain`: let the ranks of a host leave an elastic job, without the loss of a step."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from collectives.folders import runtime_folders
from collectives.launch.supervision import ask_job, running_jobs
from transports.errors import ConfigError

DESCRIPTION: Final = """\
Let the ranks of a host leave an elastic job of `ronde run`, which goes on without the host.

The ranks leave at their next step boundary (ronde.regroup), so no step is lost. The host is used again once the host
discovery has stopped listing it and lists it again. The command returns when the launcher has asked the ranks to leave.
Run it as the user who started the job, on the machine of its launcher.
"""
EXAMPLES: Final = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    parser.add_argument("host", help="name of the host, as the launcher prints it")
    parser.add_argument("--job", metavar="ID", help="id of the job (default: the only one of this user here)")


def main(args: argparse.Namespace) -> int:
    """Ask the launcher; the exit code. Raises ConfigError."""
    name = args.job
    if name is None:
        found = running_jobs()
        if len(found) != 1:
            listed = (
                f"several elastic jobs run ({', '.join(found)}); name one by --job" if found else "no elastic job runs"
            )
            raise ConfigError(f"{listed} in {' or '.join(map(str, runtime_folders()))}")
        name = found[0]
    sys.stdout.write(ask_job(name, {"drain": args.host}) + "\n")
    return 0
