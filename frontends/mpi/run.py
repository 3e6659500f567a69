"""Run a script with this room under the name mpi4py: `python -m ronde.mpi script.py`.

An exception that ends the script ends the job: the pending calls of the other ranks raise an error that names this one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import collectives
from frontends.mpi.alias import VERSION as ALIAS_VERSION
from frontends.mpi.alias import install
from frontends.mpi.constants import SUBVERSION, VERSION
from frontends.mpi.rc import rc
from frontends.programs import prepared

USAGE: Final = """\
usage: python -m ronde.mpi [-rc NAME=VALUE,...] (script.py | -m module | -c command) [argument ...]

Runs a program that imports mpi4py on Ronde. Start the ranks with: ronde run -np 4 python -m ronde.mpi script.py

--version shows the version of mpi4py whose API this is; --mpi-std-version, --mpi-lib-version and --prefix show others.
"""
_SHOWN: Final = {
    "-h": USAGE,
    "--help": USAGE,
    "--version": f"mpi4py {ALIAS_VERSION}\n",
    "--prefix": f"{Path(__file__).parent}\n",
    "--mpi-std-version": f"MPI {VERSION}.{SUBVERSION}\n",
    "--mpi-lib-version": f"Ronde {collectives.__version__}\n",
}
"""Texts that options show, in the place of running a program."""


def main(words: Sequence[str] | None = None) -> None:
    """Run the program of a command line."""
    arguments = list(sys.argv[1:] if words is None else words)
    while arguments and arguments[0] in ("-rc", "--rc"):
        _set(arguments[1] if len(arguments) > 1 else "")
        arguments = arguments[2:]
    if arguments and arguments[0] in _SHOWN:
        sys.stdout.write(_SHOWN[arguments[0]])
        raise SystemExit(0)
    run = prepared(arguments, USAGE)
    install()
    run(run_name="__main__")


def _set(text: str) -> None:
    """Set settings given as NAME=VALUE,..."""
    for pair in filter(None, text.split(",")):
        name, _, value = pair.partition("=")
        rc.read(name.strip(), value)


if __name__ == "__main__":
    main()
