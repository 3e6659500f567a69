"""Datatypes of MPI from NumPy's dtypes, and the other way round. The code is in frontends.mpi.util.dtlib."""

from __future__ import annotations

from frontends.mpi.util.dtlib import from_numpy_dtype, to_numpy_dtype

__all__ = ["from_numpy_dtype", "to_numpy_dtype"]
