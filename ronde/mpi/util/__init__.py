"""Tools on top of MPI. The code is in frontends.mpi.util."""

from __future__ import annotations

from frontends.mpi.util import from_numpy_dtype, to_numpy_dtype

__all__ = ["from_numpy_dtype", "to_numpy_dtype"]
