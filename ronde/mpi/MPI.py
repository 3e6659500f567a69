"""All public names of MPI for Python; importing it initializes MPI. The code is in frontends.mpi.MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frontends.mpi.MPI import *  # noqa: F403

if not TYPE_CHECKING:  # see there
    from frontends.mpi.MPI import __all__ as __all__
    from frontends.mpi.MPI import __getattr__ as __getattr__
    from frontends.mpi.MPI import _typealign as _typealign
    from frontends.mpi.MPI import _typedict as _typedict
