"""Datatypes: handles of layouts, and the constructors of derived ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from frontends.mpi import constants, packing, predefined
from frontends.mpi import layout as layouts
from frontends.mpi.array_parts import distributed, real_code, selected
from frontends.mpi.attributes import Attributed, AttributedBody
from frontends.mpi.blocks import Block
from frontends.mpi.constants import (
    COMBINER_NAMED,
    ORDER_C,
    TYPECLASS_COMPLEX,
    TYPECLASS_INTEGER,
    TYPECLASS_LOGICAL,
    TYPECLASS_REAL,
)
from frontends.mpi.errors import error
from frontends.mpi.handles import SURFACE
from frontends.mpi.ints import as_int, as_ints
from frontends.mpi.layout import Layout
from frontends.mpi.memory import as_memory


class DatatypeBody(AttributedBody):
    """A datatype.

    layout     the places of its data
    dtype      NumPy's dtype of one element, if it has one: then reductions can combine it
    combiner   name of the constructor
    params     the constructor's arguments by their names
    old        the datatype that it was made of; None without one
    """

    def __init__(
        self,
        layout: Layout,
        dtype: np.dtype[Any] | None,
        combiner: str,
        params: dict[str, Any],
        old: Datatype | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.dtype = dtype
        self.combiner = combiner
        self.params = params
        self.old = old

    def twin(self) -> DatatypeBody:
        """The same datatype without attributes, for a handle that is freed on its own."""
        return DatatypeBody(self.layout, self.dtype, self.combiner, self.params, self.old)


_INTS: Final = {
    "DUP": (),
    "CONTIGUOUS": ("count",),
    "VECTOR": ("count", "blocklength", "stride"),
    "HVECTOR": ("count", "blocklength"),
    "INDEXED": ("+blocklengths", "displacements"),
    "HINDEXED": ("+blocklengths",),
    "INDEXED_BLOCK": ("+displacements", "blocklength"),
    "HINDEXED_BLOCK": ("-displacements", "blocklength"),
    "STRUCT": ("+blocklengths",),
    "SUBARRAY": ("+sizes", "subsizes", "starts", "order"),
    "DARRAY": ("size", "rank", "+gsizes", "distribs", "dargs", "psizes", "order"),
    "RESIZED": (),
    "VALUE_INDEX": (),
    "F90_INTEGER": ("r",),
    "F90_REAL": ("p", "r"),
    "F90_COMPLEX": ("p", "r"),
}
"""The parameters that MPI counts as integers, in its order; before the one with + or - stands their number."""
_ADDRESSES: Final = {
    "HVECTOR": ("stride",),
    "HINDEXED": ("displacements",),
    "HINDEXED_BLOCK": ("displacements",),
    "STRUCT": ("displacements",),
    "RESIZED": ("lb", "extent"),
}
_F90: Final = ("F90_INTEGER", "F90_REAL", "F90_COMPLEX")


class Datatype(Attributed):
    """A datatype: the places and kinds of the data of one element of a message."""

    __module__ = SURFACE
    null = "DATATYPE_NULL"
    error_class = "ERR_TYPE"

    @property
    def layout(self) -> Layout:
        """The places of its data. Raises Exception for DATATYPE_NULL."""
        return self._known().layout

    def _known(self) -> DatatypeBody:
        body: DatatypeBody | None = self._body
        if body is None:
            raise error("ERR_TYPE", "it is DATATYPE_NULL")
        return body

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """NumPy's dtype of one element, None for a datatype without one."""
        return self._known().dtype

    # ---- size and extent

    def Get_size(self) -> int:
        return self.layout.size

    def Get_extent(self) -> tuple[int, int]:
        return self.layout.lb, self.layout.extent

    def Get_true_extent(self) -> tuple[int, int]:
        return self.layout.true_lb, self.layout.true_extent

    @property
    def size(self) -> int:
        return self.Get_size()

    @property
    def extent(self) -> int:
        return self.layout.extent

    @property
    def lb(self) -> int:
        return self.layout.lb

    @property
    def ub(self) -> int:
        return self.layout.lb + self.layout.extent

    @property
    def true_extent(self) -> int:
        return self.layout.true_extent

    @property
    def true_lb(self) -> int:
        return self.layout.true_lb

    @property
    def true_ub(self) -> int:
        return self.layout.true_lb + self.layout.true_extent

    # ---- constructors

    def _derived(self, layout: Layout, combiner: str, **params: Any) -> Datatype:
        return type(self).of(DatatypeBody(layout, None, combiner, params, Datatype(self)))

    def Dup(self) -> Datatype:
        body = self._known()
        made = type(self).of(DatatypeBody(body.layout, body.dtype, "DUP", {}, Datatype(self)))
        self.copy_attributes(made)
        return made

    Create_dup = Dup

    def Create_contiguous(self, count: int) -> Datatype:
        part = self.layout
        layout = layouts.strided(part, _count(count), 1, part.extent)
        return self._derived(layout, "CONTIGUOUS", count=int(count))

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        part, stride = self.layout, as_int(stride, "stride")
        layout = layouts.strided(part, _count(count), _count(blocklength, "blocklength"), stride * part.extent)
        return self._derived(layout, "VECTOR", count=int(count), blocklength=int(blocklength), stride=stride)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        stride = as_int(stride, "stride")
        layout = layouts.strided(self.layout, _count(count), _count(blocklength, "blocklength"), stride)
        return self._derived(layout, "HVECTOR", count=int(count), blocklength=int(blocklength), stride=stride)

    def _indexed(self, blocklengths: Any, displacements: Any, unit: int) -> tuple[Layout, list[int], list[int]]:
        places = as_ints(displacements, "displacements")
        lengths = [_count(n, "blocklengths") for n in blocklengths]
        if len(lengths) != len(places):
            raise ValueError(f"{len(lengths)} blocklengths and {len(places)} displacements: must be equally many")
        part = self.layout
        return layouts.blocks_of([part] * len(places), lengths, [at * unit for at in places], one=part), lengths, places

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        layout, lengths, places = self._indexed(blocklengths, displacements, self.extent)
        return self._derived(layout, "INDEXED", blocklengths=lengths, displacements=places)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        layout, lengths, places = self._indexed(blocklengths, displacements, 1)
        return self._derived(layout, "HINDEXED", blocklengths=lengths, displacements=places)

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        layout, _, places = self._indexed([blocklength] * len(displacements), displacements, self.extent)
        return self._derived(layout, "INDEXED_BLOCK", blocklength=int(blocklength), displacements=places)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        layout, _, places = self._indexed([blocklength] * len(displacements), displacements, 1)
        return self._derived(layout, "HINDEXED_BLOCK", blocklength=int(blocklength), displacements=places)

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        lengths = [_count(n, "blocklengths") for n in blocklengths]
        places = as_ints(displacements, "displacements")
        if not len(lengths) == len(places) == len(datatypes):
            raise ValueError(
                f"{len(lengths)} blocklengths, {len(places)} displacements and {len(datatypes)} datatypes: "
                f"must be equally many"
            )
        layout = layouts.blocks_of([kind.layout for kind in datatypes], lengths, places, aligned=True)
        params = {"blocklengths": lengths, "displacements": places, "datatypes": [Datatype(kind) for kind in datatypes]}
        return cls.of(DatatypeBody(layout, None, "STRUCT", params))

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        lists = [as_ints(given, "sizes, subsizes, starts") for given in (sizes, subsizes, starts)]
        if not len(lists[0]) == len(lists[1]) == len(lists[2]):
            raise ValueError("sizes, subsizes, starts: must be equally many")
        for size, part, start in zip(*lists, strict=True):
            if size < 1 or not 0 <= start <= start + part <= size:
                raise error("ERR_ARG", f"sizes={lists[0]}, subsizes={lists[1]}, starts={lists[2]}: must lie inside")
        chosen = [np.arange(start, start + part) for _, part, start in zip(*lists, strict=True)]
        layout = selected(self.layout, lists[0], chosen, order)
        params = dict(zip(("sizes", "subsizes", "starts"), lists, strict=True))
        return self._derived(layout, "SUBARRAY", **params, order=order)

    def Create_darray(
        self,
        size: int,
        rank: int,
        gsizes: Sequence[int],
        distribs: Sequence[int],
        dargs: Sequence[int],
        psizes: Sequence[int],
        order: int = ORDER_C,
    ) -> Datatype:
        lists = [as_ints(given, "gsizes, distribs, dargs, psizes") for given in (gsizes, distribs, dargs, psizes)]
        size, rank = as_int(size, "size"), as_int(rank, "rank")
        if int(np.prod(lists[3])) != size or not 0 <= rank < size:
            raise error("ERR_ARG", f"size={size}, rank={rank}, psizes={lists[3]}: must be a grid of size ranks")
        place = np.unravel_index(rank, lists[3])
        chosen = [
            distributed(n, distribution, darg, parts, int(at))
            for n, distribution, darg, parts, at in zip(*lists, place, strict=True)
        ]
        layout = selected(self.layout, lists[0], chosen, order)
        params = dict(zip(("gsizes", "distribs", "dargs", "psizes"), lists, strict=True))
        return self._derived(layout, "DARRAY", size=size, rank=rank, **params, order=order)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        lb, extent = as_int(lb, "lb"), as_int(extent, "extent")
        return self._derived(layouts.resized(self.layout, lb, extent), "RESIZED", lb=lb, extent=extent)

    Resized = Create_resized

    @classmethod
    def Get_value_index(cls, value: Datatype, index: Datatype) -> Datatype:
        first, second = value._known().dtype, index._known().dtype
        if first is None or first.kind not in "iuf" or second is None or second.kind not in "iu":
            return cls()
        name = predefined.PAIRS.get(first) if second == np.dtype("i") else None
        if name is not None:
            return PREDEFINED[name]
        dtype = np.dtype([("value", first), ("index", second)], align=True)
        params = {"value": Datatype(value), "index": Datatype(index)}
        return cls.of(DatatypeBody(layouts.basic(dtype), dtype, "VALUE_INDEX", params))

    @classmethod
    def Create_f90_integer(cls, r: int) -> Datatype:
        code = next((code for digits, code in ((2, "i1"), (4, "i2"), (9, "i4"), (18, "i8")) if r <= digits), None)
        if code is None:
            raise error("ERR_ARG", f"r={r}: no integer has so many decimal digits")
        return _f90("F90_INTEGER", predefined.number(code), r=r)

    @classmethod
    def Create_f90_real(cls, p: int, r: int) -> Datatype:
        return _f90("F90_REAL", np.dtype(real_code(p, r)), p=p, r=r)

    @classmethod
    def Create_f90_complex(cls, p: int, r: int) -> Datatype:
        return _f90("F90_COMPLEX", np.dtype(real_code(p, r).upper()), p=p, r=r)

    @classmethod
    def Match_size(cls, typeclass: int, size: int) -> Datatype:
        kinds = {TYPECLASS_INTEGER: "INTEGER", TYPECLASS_REAL: "REAL", TYPECLASS_COMPLEX: "COMPLEX"}
        kinds[TYPECLASS_LOGICAL] = "LOGICAL"
        found = PREDEFINED.get(f"{kinds.get(typeclass, '')}{size}")
        if found is None:
            raise error("ERR_ARG", f"typeclass={typeclass}, size={size}: there is no such datatype")
        return found

    def Commit(self) -> Datatype:
        self._known()
        return self

    def Free(self) -> None:
        if self._known().predefined:
            raise error("ERR_TYPE", f"{self._body.name} is predefined and cannot be freed")
        self._release()
        self._body = None

    def _release(self) -> None:
        self.delete_attributes()

    # ---- packing

    def _elements(self, buf: Any, *, writable: bool) -> Block:
        """All elements in a buffer, or as many as [buffer, count] tells."""
        buf, count = (buf[0], buf[1]) if isinstance(buf, (list, tuple)) and len(buf) > 1 else (buf, None)
        data = as_memory(buf).data
        if writable and not data.flags.writeable and len(data):
            raise BufferError("the buffer is read-only")
        if not isinstance(count, (int, np.integer)):
            count = len(data) // self.extent if self.extent > 0 else 0
        return Block(data, 0, int(count), self)

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        return packing.pack(self._elements(inbuf, writable=False), outbuf, as_int(position, "position"))

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        return packing.unpack(inbuf, as_int(position, "position"), self._elements(outbuf, writable=True))

    def Pack_size(self, count: int, comm: Any) -> int:
        return self.layout.size * as_int(count, "count")

    def Pack_external(self, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
        elements = self._elements(inbuf, writable=False)
        return packing.pack_external(datarep, elements, outbuf, as_int(position, "position"))

    def Unpack_external(self, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
        elements = self._elements(outbuf, writable=True)
        return packing.unpack_external(datarep, inbuf, as_int(position, "position"), elements)

    def Pack_external_size(self, datarep: str, count: int) -> int:
        return packing.external_size(datarep, self.layout, as_int(count, "count"))

    # ---- how it was made

    def Get_envelope(self) -> tuple[int, int, int, int, int]:
        ints, addresses, counts, kinds = self._contents()
        return len(ints), len(addresses), len(counts), len(kinds), self.combiner

    def Get_contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        if self.is_named:
            raise error("ERR_TYPE", f"{self._body.name} is predefined: it has no contents")
        return self._contents()

    def _contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        body = self._known()
        if body.combiner == "NAMED":
            return [], [], [], []
        params = body.params
        ints: list[int] = []
        for name in _INTS[body.combiner]:
            value = params[name.lstrip("+-")]
            if name[0] in "+-":
                ints.append(len(value))
            if name[0] != "-":
                ints += value if isinstance(value, list) else [value]
        addresses: list[int] = []
        for name in _ADDRESSES.get(body.combiner, ()):
            addresses += params[name] if isinstance(params[name], list) else [params[name]]
        kinds = params.get("datatypes") or [params[name] for name in ("value", "index") if name in params]
        if body.old is not None:
            kinds = [body.old]
        return ints, addresses, [], [_twin(kind) for kind in kinds]

    def decode(self) -> tuple[Datatype, str, dict[str, Any]]:
        body = self._known()
        if body.combiner == "NAMED":
            return self, "NAMED", {}
        params = {name: list(value) if isinstance(value, list) else value for name, value in body.params.items()}
        if "datatypes" in params:
            params["datatypes"] = [_twin(kind) for kind in params["datatypes"]]
        return (Datatype() if body.old is None else _twin(body.old)), body.combiner, params

    @property
    def combiner(self) -> int:
        return int(getattr(constants, f"COMBINER_{self._known().combiner}"))

    @property
    def envelope(self) -> tuple[int, int, int, int, int]:
        return self.Get_envelope()

    @property
    def contents(self) -> tuple[list[int], list[int], list[int], list[Datatype]]:
        return self.Get_contents()

    @property
    def is_named(self) -> bool:
        return self.combiner == COMBINER_NAMED

    @property
    def is_predefined(self) -> bool:
        return self._body is None or self._known().combiner in ("NAMED", *_F90)

    def __reduce__(self) -> Any:
        if self._body is None or self._body.predefined:
            return super().__reduce__()
        old, combiner, params = self.decode()
        return _remade, (type(self), old, combiner, params)

    # ---- codes

    @property
    def _code(self) -> str | None:
        """The code of a program for it, None for a datatype without one."""
        body: DatatypeBody | None = self._body
        if body is None:
            return None
        if body.combiner == "DUP" and body.old is not None:
            return body.old._code
        if body.combiner in _F90 and body.dtype is not None:
            return body.dtype.str[1:]
        return predefined.CODES.get(body.predefined or "")

    @property
    def typechar(self) -> str:
        code = self._code
        if code is None:
            return "" if self._body is None else "V"
        return code if len(code) == 1 else np.dtype(code).char

    @property
    def typestr(self) -> str:
        if self._body is None:
            return ""
        dtype = self.dtype
        return f"V{self.extent}" if dtype is None or dtype.names is not None else dtype.str[1:]

    def tocode(self) -> str:
        code = self._code
        if code is None:
            raise ValueError(f"{self.Get_name() or 'a derived datatype'}: has no code")
        return code

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        found = BY_CODE.get(code)
        if found is None:
            raise ValueError(f"code={code!r}: no predefined datatype has it")
        return found


Datatype.family = Datatype


def alignment(datatype: Datatype) -> int | None:
    """The alignment of a number or a pair; None for a derived datatype."""
    dtype = datatype.dtype
    return None if dtype is None else dtype.alignment


def _count(n: int, name: str = "count") -> int:
    number = as_int(n, name)
    if number < 0:
        raise error("ERR_ARG" if name != "count" else "ERR_COUNT", f"{name}={n}: must be 0 or more")
    return number


def _twin(kind: Datatype) -> Datatype:
    """A handle that the caller may free, as MPI gives for the datatypes of a constructor."""
    return kind if kind._known().combiner in ("NAMED", *_F90) else type(kind).of(kind._known().twin())


def _remade(cls: type[Datatype], old: Datatype, combiner: str, params: dict[str, Any]) -> Datatype:
    prefix = "Get" if combiner == "VALUE_INDEX" else "Create"
    made: Datatype = getattr(old, f"{prefix}_{combiner.lower()}")(**params)
    return cls(made)


def _f90(combiner: str, dtype: np.dtype[Any], **params: int) -> Datatype:
    return Datatype.of(DatatypeBody(layouts.basic(dtype), dtype, combiner, params))


def _made() -> dict[str, Datatype]:
    found = {}
    for name, dtype in predefined.DTYPES.items():
        body = DatatypeBody(layouts.basic(dtype), dtype, "NAMED", {})
        body.predefined, body.name = name, f"MPI_{predefined.STANDARD_NAMES.get(name, name)}"
        found[name] = Datatype.of(body)
    return found


DATATYPE_NULL: Final = Datatype()
PREDEFINED: Final[dict[str, Datatype]] = _made()
"""The predefined datatypes by their names."""
PREDEFINED.update({alias: PREDEFINED[name] for alias, name in predefined.ALIASES.items()})
BY_CODE: Final = {code: PREDEFINED[name] for code, name in predefined.codes().items()}
"""The predefined datatypes by the codes of a program."""
BYTE: Final = PREDEFINED["BYTE"]
