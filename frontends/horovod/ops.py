"""The reduction operators, and the arguments that say how a reduction is carried out."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, Final

from collectives import OpName
from collectives.arrays import ALIASES
from frontends.horovod.arguments import check_number
from frontends.horovod.errors import UnsupportedOpError

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "check_linear",
    "check_passes",
    "choose_op",
    "predivided",
    "scale_options",
]

Average: Final = "average"
Sum: Final = "sum"
Adasum: Final = "adasum"
Min: Final = "min"
Max: Final = "max"
Product: Final = "prod"


def choose_op(op: OpName | None, average: bool | None = None) -> OpName:
    """Return `op`, or the operator that the deprecated `average` means; Average if neither is given.

    The other names of the core for the average, "mean" and "avg", are accepted. Raises ValueError if both arguments are
    given or `op` is unknown.
    """
    if average is not None:
        if op is not None:
            raise ValueError("op and average: give one of them; average is deprecated")
        return Average if average else Sum
    if op is None:
        return Average
    if not isinstance(op, str) or op not in (Average, Sum, Adasum, Min, Max, Product, *ALIASES):
        raise ValueError(f"op={op!r}: must be Average, Sum, Adasum, Min, Max or Product")
    return Average if op in ALIASES else op


def check_linear(op: OpName, operation: str) -> None:
    """Raise UnsupportedOpError unless `op` is Average or Sum, the only operators that `operation` supports."""
    if op not in (Average, Sum):
        raise UnsupportedOpError(f"op={op!r}: {operation} takes Average and Sum only")


def check_passes(number: int) -> None:
    """Raise ValueError unless the argument `backward_passes_per_step` is an int above 0."""
    if isinstance(number, bool) or not isinstance(number, Integral) or number < 1:
        raise ValueError(f"backward_passes_per_step={number!r}: must be an int, 1 or more")


def scale_options(prescale: float, postscale: float) -> dict[str, Any]:
    """Return the scale factors as keyword arguments of a Communicator method; None for a factor of 1. Raises TypeError
    for what is no number."""
    return {
        "prescale": None if prescale == 1.0 else check_number(prescale, "prescale_factor"),
        "postscale": None if postscale == 1.0 else check_number(postscale, "postscale_factor"),
    }


def predivided(op: OpName, factor: float) -> tuple[float, float]:
    """Return the factors before and after the reduction for Horovod's `gradient_predivide_factor`.

    Raises TypeError if the factor is no number, ValueError if it is not finite and above 0, or not 1 and `op` is not
    Average.
    """
    check_number(factor, "gradient_predivide_factor")
    if not 0 < factor < math.inf:
        raise ValueError(f"gradient_predivide_factor={factor!r}: must be a finite number above 0")
    if op == Average:
        return 1.0 / factor, factor
    if factor != 1.0:
        raise ValueError("gradient_predivide_factor: can be given with op=Average only")
    return 1.0, 1.0
