"""Tools on top of MPI, with mpi4py's names.

`dtlib` makes datatypes of NumPy's dtypes, and dtypes of datatypes. `pkl5` has communicators whose objects travel with
their large buffers apart from the pickle, `pool` pools as those of multiprocessing, `sync` locks and counters of all
ranks; importing one of these three initializes MPI.
"""

from __future__ import annotations

from frontends.mpi.util.dtlib import from_numpy_dtype, to_numpy_dtype

__all__ = ["from_numpy_dtype", "to_numpy_dtype"]
