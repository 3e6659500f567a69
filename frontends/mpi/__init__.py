"""MPI for Python without MPI: `from ronde.mpi import MPI` has mpi4py's API on Ronde.

docs/mpi.md is its guide. Modules of the room, from below: constants, errors, handles; info, groups, attributes,
errhandlers; memory, layout, datatypes, specs (what a program gives as a buffer); ops, pickles, status; processes (the
state of a rank), peers (the ranks of a communicator), operations, partitions and requests; plans with intra, inter,
neighbors and objects (the collectives); comm_base, comm_messages, comm_collectives, comm, intercomm, topocomm; win,
file, sessions. `MPI` has all public names.

Add a collective as a function that returns a Plan, in intra or inter, and a row of `forms` in comm_collectives.
"""

from __future__ import annotations

from frontends.mpi.alias import VERSION as __version__
from frontends.mpi.alias import get_config, get_include, install, profile
from frontends.mpi.rc import rc

__all__ = ["__version__", "get_config", "get_include", "install", "profile", "rc"]
