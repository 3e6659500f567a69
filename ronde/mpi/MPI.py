"""All public names of MPI for Python; importing it initializes MPI. The code is in frontends.mpi.MPI."""

from __future__ import annotations

from frontends.mpi.MPI import *  # noqa: F403
from frontends.mpi.MPI import __all__ as __all__
