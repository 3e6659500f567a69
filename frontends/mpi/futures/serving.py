"""`python -m ronde.mpi.futures script.py`: rank 0 runs the script, the other ranks work for its executors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from frontends.mpi import MPI, install
from frontends.mpi.futures.executors import master
from frontends.mpi.futures.workers import TASK, serve
from frontends.programs import prepared

_USAGE: Final = "usage: python -m ronde.mpi.futures (script.py | -m module | -c command) [argument ...]\n"
_WORKER: Final = "__worker__"
"""The name that the script has on workers, where it must not run as the main program."""


def main(words: Sequence[str] | None = None) -> None:
    """Run the program of a command line on rank 0, and serve it on the others."""
    run = prepared(sys.argv[1:] if words is None else words, _USAGE)
    install()
    alias = ModuleType(_WORKER)  # classes of the script that workers send are said to be of that module
    alias.__dict__["__getattr__"] = lambda name: getattr(sys.modules["__main__"], name)
    sys.modules[_WORKER] = alias
    comm = MPI.COMM_WORLD.Dup()
    if comm.rank == 0:
        master.comm = comm
        after = ModuleType("__main__")  # the main module once the script has ended, in which its last tasks find names
        after.__dict__["__getattr__"] = lambda name: getattr(master.program, name)
        sys.modules["__main__"] = after
        try:
            run(run_name="__main__")
        except SystemExit:
            _end(comm)
            raise
        _end(comm)
        return
    master.workers = comm.Create_group(comm.group.Excl([0]))
    program = ModuleType("__main__")
    program.__dict__.update(run(run_name=_WORKER))
    program.__dict__["__name__"] = "__main__"
    sys.modules["__main__"] = program  # tasks name the functions of the script so
    while serve(comm, 0):
        pass


def _end(comm: MPI.Intracomm) -> None:
    """End the workers, once they have done what the script has left to them."""
    master.end()
    for rank in range(1, comm.size):
        comm.send(None, rank, TASK)
