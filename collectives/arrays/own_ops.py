"""Op: a reduction that the user defines by a function of two arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collectives.arrays.views import Array, check_dtype, type_name
from collectives.numeric import flag


class Op:
    """A reduction of the user's own, for `op=` of allreduce, reduce, reduce_scatter, scan and exscan.

        larger = ronde.Op(lambda a, b: np.where(abs(b) > abs(a), b, a))
        comm.allreduce(x, larger)

    function     combines two flat NumPy arrays of one length and dtype, element by element. The first has the
                 contributions of lower ranks and is read-only; the second is a private copy. It returns a new array of
                 the same length and dtype; or it writes the result into the second array and returns None, as MPI's
                 functions do. A ufunc works too. The arrays are pieces of any length of the ranks' arrays
    commutative  False: contributions are combined in rank order, in the tree of `reproducible=True`
    name         for messages; by default that of the function. The same on all ranks
    trial        False: the function is not tried before a call, for one that fails on zeros or has effects

    The function must be associative. All ranks get the same bits as long as it gives the same result for the same
    arguments. Arrays may have a structured dtype, if it has no Python objects. Arrays on GPUs are combined in host
    memory.

    Raises TypeError for a function that cannot be called. The first call with a dtype tries the function on arrays of
    two zeros, and raises what it raises there, or TypeError if it returns another dtype or length, before anything is
    sent. An error that it raises later aborts the communicator.

    Source: MPI_Op_create of MPI 4.1, section 6.9.5.
    """

    __slots__ = ("_text", "_tried", "commutative", "function", "name", "trial")

    def __init__(
        self,
        function: Callable[[Array, Array], Any],
        commutative: bool = True,
        *,
        name: str = "",
        trial: bool = True,
    ) -> None:
        if not callable(function):
            raise TypeError(f"function={function!r}: must be a function of two arrays")
        self.function = function
        self.commutative = flag(commutative, "commutative")
        self.trial = flag(trial, "trial")
        self._tried: set[np.dtype[Any]] = set()
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self._text = f"Op({self.name})" if commutative else f"Op({self.name}, commutative=False)"

    def __repr__(self) -> str:
        return self._text

    def combine(self, a: Array, b: Array, out: Array) -> None:
        """Write the combination of two flat arrays of one dtype into `out`, which may be `a` or `b`."""
        left, right = a.view(), b.copy()
        left.flags.writeable = False
        result = self.function(left, right)
        if result is None:
            result = right
        if not isinstance(result, np.ndarray) or result.dtype != out.dtype or result.shape != out.shape:
            is_array = isinstance(result, np.ndarray)
            given = f"{result.dtype} of shape {result.shape}" if is_array else type_name(result)
            raise TypeError(
                f"op={self}: its function returned {given}; it must return {out.dtype} of shape {out.shape}, or None "
                f"after it has written into its second argument"
            )
        out[...] = result

    def check(self, dtype: np.dtype[Any]) -> None:
        """Try the function on arrays of a dtype, if it may be tried and has not been. Raises what it raises, and
        TypeError if its result does not fit or the dtype cannot be communicated."""
        if dtype.names is None or dtype.hasobject or not dtype.isnative:
            check_dtype(dtype, "x")
        if not self.trial or dtype in self._tried:
            return
        zeros = np.zeros(2, dtype)
        with np.errstate(all="ignore"):
            self.combine(zeros, zeros, np.empty_like(zeros))
        self._tried.add(dtype)
