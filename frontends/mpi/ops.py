"""Ops: the reductions of MPI, on objects and on arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import collectives
from collectives.arrays import allowed_ops, can_be_sent
from frontends.mpi.blocks import Block, check_kinds
from frontends.mpi.datatypes import Datatype, DatatypeBody
from frontends.mpi.errors import error
from frontends.mpi.handles import SURFACE, Body, Handle
from frontends.mpi.memory import buffer
from frontends.mpi.specs import message

MOST_CREATED: Final = 32
"""The most ops of a program at a time: mpi4py has the same bound."""
_MOVES: Final = ("replace", "no_op")
"""Ops that combine nothing."""


class OpBody(Body):
    """A reduction.

    function     of two objects; for an op of the program, its function of two buffers and a datatype
    commutes     True if the order of the operands does not matter
    name         name of Ronde's op for arrays, empty for an op of the program and for pairs
    """

    def __init__(self, function: Callable[..., Any], commutes: bool, name: str = "", own: bool = False) -> None:
        self.function = function
        self.commutes = commutes
        self.name = name
        self.own = own
        self._ops: dict[DatatypeBody, collectives.Op] = {}

    def on_arrays(self, datatype: Datatype, *, moves: bool = False) -> tuple[Any, np.dtype[Any]]:
        """Ronde's op, and the dtype by which arrays are combined. Raises Exception where there is none. `moves`: also
        for REPLACE and NO_OP, which collectives do not have."""
        dtype = datatype.dtype
        if dtype is None and moves and not self.own:
            dtype = datatype.layout.dtype
        if not self.own and not self._is_defined(dtype, moves):  # before the call begins: then the ranks can go on
            needs = "" if self.name else ": it needs pairs of a value and an index"
            name = datatype.Get_name() or dtype or "a derived datatype"
            raise error("ERR_OP", f"{self.predefined} is not defined for {name}{needs}")
        if dtype is not None and dtype.fields is not None and dtype.itemsize != datatype.layout.size:
            # the data travel without the gaps
            dtype = np.dtype([(name, dtype.fields[name][0]) for name in dtype.names or ()])
        if self.name and dtype is not None:
            return self.name, dtype
        if dtype is None or (dtype.names is None and dtype.kind in "SUV"):
            dtype = np.dtype([("bytes", f"V{datatype.layout.size}")])
        body = datatype._known()
        made = self._ops.get(body)
        if made is None:
            combine = self._pairs if not self.own else _on_buffers(self.function, datatype)
            made = self._ops[body] = collectives.Op(
                combine, self.commutes, name=self.predefined or "of the program", trial=False
            )
        return made, dtype

    def _is_defined(self, dtype: np.dtype[Any] | None, moves: bool) -> bool:
        """True if a predefined op is defined for a datatype with this dtype."""
        if dtype is None:
            return False
        if not self.name:
            return dtype.names is not None and len(dtype.names) == 2
        if self.name in _MOVES:
            return moves
        return can_be_sent(dtype) and self.name in allowed_ops(dtype)

    def _pairs(self, a: Any, b: Any) -> Any:
        """MINLOC or MAXLOC of arrays of pairs."""
        value, index = a.dtype.names
        better = np.less if self.predefined == "MINLOC" else np.greater
        first = better(a[value], b[value]) | ((a[value] == b[value]) & (a[index] <= b[index]))
        return np.where(first, a, b)


def _on_buffers(function: Callable[..., Any], datatype: Datatype) -> Callable[[Any, Any], None]:
    layout = datatype.layout

    def combine(a: Any, b: Any) -> None:
        packed = a.view(np.uint8), b.view(np.uint8)
        if layout.whole:
            function(buffer.frombuffer(packed[0]), buffer.frombuffer(packed[1]), Datatype(datatype))
            return
        first, end = layout.span(len(a))
        start = max(0, -first)
        nbytes = start + max(end, len(a) * layout.extent)
        places = [Block(np.zeros(nbytes, np.uint8), start, len(a), datatype) for _ in packed]
        for place, data in zip(places, packed, strict=True):
            place.write(data)
        given, result = (buffer.frombuffer(place.memory[start:]) for place in places)
        function(given, result, Datatype(datatype))
        packed[1][:] = places[1].read()

    return combine


class Op(Handle):
    """A reduction."""

    __module__ = SURFACE
    null = "OP_NULL"
    _is_original = False
    """True for the handle of an op of the program that knows its function."""

    def _known(self) -> OpBody:
        body: OpBody | None = self._body
        if body is None:
            raise error("ERR_OP", "it is OP_NULL")
        return body

    @staticmethod
    def _copy(made: Any, other: Any) -> None:
        made._body = other._body
        made._is_original = other._is_original

    def __call__(self, x: Any, y: Any, /) -> Any:
        if self._body is None:
            raise ValueError("it is OP_NULL")
        body = self._known()
        return body.function(x, y, None) if body.own else body.function(x, y)

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Datatype], None], commute: bool = False) -> Op:
        if len(_created) >= MOST_CREATED:
            raise RuntimeError(f"there are {MOST_CREATED} ops of the program: free one first")
        body = OpBody(function, bool(commute), own=True)
        _created.append(body)
        made = cls.of(body)
        made._is_original = True
        return made

    def Free(self) -> None:
        if self._known().predefined:
            raise error("ERR_OP", f"{self._body.predefined} is predefined and cannot be freed")
        self._release()
        self._body = None

    def _release(self) -> None:
        if self._body in _created:
            _created.remove(self._body)

    def Is_commutative(self) -> bool:
        return self._known().commutes

    @property
    def is_commutative(self) -> bool:
        return self.Is_commutative()

    @property
    def is_predefined(self) -> bool:
        return self._body is None or bool(self._body.predefined)

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Combine two buffers; the result goes into the second one."""
        given, result = message(inbuf, writable=False), message(inoutbuf, writable=True)
        if given.count != result.count:
            raise ValueError(f"{given.count} and {result.count} elements: must be equally many")
        op, dtype = self._known().on_arrays(result.datatype, moves=True)
        if op not in _MOVES:
            check_kinds(given, result)
        target, scatter = result.target()
        combine_arrays(op, given.array(dtype), result.array(dtype), target.view(dtype))
        if scatter is not None:
            scatter(target)

    def __reduce__(self) -> Any:
        body = self._body
        if body is not None and body.own:
            if not self._is_original:
                raise ValueError("the handle does not know the function of the op")
            return type(self).Create, (body.function, body.commutes)
        return super().__reduce__()


Op.family = Op
_created: Final[list[OpBody]] = []


def known(op: Any) -> OpBody:
    """The reduction of an argument. Raises TypeError for something else, Exception for OP_NULL."""
    if not isinstance(op, Op):
        raise TypeError(f"op={op!r}: must be an Op")
    return op._known()


def combine_arrays(op: Any, a: Any, b: Any, out: Any) -> None:
    """out = a op b, for an op of Ronde, its name, 'replace' or 'no_op'."""
    if isinstance(op, collectives.Op):
        op.combine(a, b, out)
    elif op in _MOVES:
        out[...] = a if op == "replace" else b
    else:
        with np.errstate(all="ignore"):
            out[...] = _UFUNCS[op](a, b)


_UFUNCS: Final[dict[str, Any]] = {
    "max": np.maximum,
    "min": np.minimum,
    "sum": np.add,
    "prod": np.multiply,
    "land": np.logical_and,
    "band": np.bitwise_and,
    "lor": np.logical_or,
    "bor": np.bitwise_or,
    "lxor": np.logical_xor,
    "bxor": np.bitwise_xor,
}


def _max(x: Any, y: Any) -> Any:
    return y if y > x else x


def _min(x: Any, y: Any) -> Any:
    return y if y < x else x


def _maxloc(x: Any, y: Any) -> Any:
    return _located(x, y, y[0] > x[0])


def _minloc(x: Any, y: Any) -> Any:
    return _located(x, y, y[0] < x[0])


def _located(x: Any, y: Any, second: bool) -> Any:
    if second or (x[0] == y[0] and y[1] < x[1]):
        return (y[0], y[1])
    return (x[0], x[1])


def _predefined(name: str, function: Callable[..., Any], on_arrays: str = "") -> Op:
    body = OpBody(function, True, on_arrays)
    body.predefined = name
    return Op.of(body)


OP_NULL: Final = Op()
MAX: Final = _predefined("MAX", _max, "max")
MIN: Final = _predefined("MIN", _min, "min")
SUM: Final = _predefined("SUM", operator.add, "sum")
PROD: Final = _predefined("PROD", operator.mul, "prod")
LAND: Final = _predefined("LAND", lambda x, y: bool(x) & bool(y), "land")
BAND: Final = _predefined("BAND", operator.and_, "band")
LOR: Final = _predefined("LOR", lambda x, y: bool(x) | bool(y), "lor")
BOR: Final = _predefined("BOR", operator.or_, "bor")
LXOR: Final = _predefined("LXOR", lambda x, y: bool(x) ^ bool(y), "lxor")
BXOR: Final = _predefined("BXOR", operator.xor, "bxor")
MAXLOC: Final = _predefined("MAXLOC", _maxloc)
MINLOC: Final = _predefined("MINLOC", _minloc)
REPLACE: Final = _predefined("REPLACE", lambda x, y: y, "replace")
NO_OP: Final = _predefined("NO_OP", lambda x, y: x, "no_op")
