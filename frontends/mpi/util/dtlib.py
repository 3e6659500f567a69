"""Datatypes of MPI from NumPy's dtypes, and the other way round."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.mpi.datatypes import BY_CODE, Datatype


def from_numpy_dtype(dtype: Any) -> Datatype:
    """A datatype with the layout of a dtype; free it if it is not needed any more. Raises ValueError."""
    kind = np.dtype(dtype)
    if kind.hasobject or not kind.isnative:
        raise ValueError(f"dtype={kind}: must be native and without Python objects")
    if kind.subdtype is not None:
        base, shape = kind.subdtype
        element = from_numpy_dtype(base)
        made = element.Create_subarray(shape, shape, [0] * len(shape)) if shape else element.Dup()
        element.Free()
        return made
    if kind.names is not None and kind.fields is not None:
        parts = [from_numpy_dtype(kind.fields[name][0]) for name in kind.names]
        made = Datatype.Create_struct([1] * len(parts), [kind.fields[name][1] for name in kind.names], parts)
        for part in parts:
            part.Free()
        if made.Get_extent() == (0, kind.itemsize):
            return made
        whole = made.Create_resized(0, kind.itemsize)
        made.Free()
        return whole
    found = BY_CODE.get("i8" if kind.kind in "mM" else kind.char)  # times are integers
    if found is None or kind.itemsize != found.size:
        raise ValueError(f"dtype={kind}: no datatype has it")
    return found.Dup()


def to_numpy_dtype(datatype: Datatype) -> np.dtype[Any]:
    """The dtype with the layout of a datatype. Raises ValueError if NumPy has none."""
    if not datatype:
        raise ValueError("datatype: is DATATYPE_NULL")
    if datatype.dtype is not None:
        fields = datatype.dtype.fields
        if fields is None:
            return datatype.dtype
        return np.dtype([(f"f{i}", kind) for i, (kind, *_) in enumerate(fields.values())], align=True)
    old, combiner, params = datatype.decode()
    layout = datatype.layout
    if combiner == "DUP":
        return to_numpy_dtype(old)
    if combiner == "RESIZED":
        return _resized(to_numpy_dtype(old), datatype)
    if combiner == "CONTIGUOUS":
        return np.dtype((to_numpy_dtype(old), (params["count"],)))
    if combiner == "SUBARRAY":
        if params["sizes"] != params["subsizes"]:
            raise ValueError(f"datatype: a part {params['subsizes']} of an array of {params['sizes']} has no dtype")
        return np.dtype((to_numpy_dtype(old), tuple(params["sizes"])))
    if combiner == "STRUCT":
        lengths, kinds = params["blocklengths"], [to_numpy_dtype(kind) for kind in params["datatypes"]]
        formats = [kind if n == 1 else (kind, (n,)) for n, kind in zip(lengths, kinds, strict=True)]
        end = max(layout.extent, layout.true_lb + layout.true_extent)
        return _struct(formats, params["displacements"], end)
    blocks = _blocks(combiner, params, old)
    if blocks is None:
        raise ValueError(f"datatype: {combiner} has no dtype")
    kind = to_numpy_dtype(old)
    return _struct([(kind, (n,)) for n, _ in blocks], [at for _, at in blocks], layout.lb + layout.extent)


def _blocks(combiner: str, params: dict[str, Any], old: Datatype) -> list[tuple[int, int]] | None:
    """Lengths and displacements in bytes of the blocks of a datatype."""
    unit = 1 if combiner.startswith("H") else old.extent
    if combiner in ("VECTOR", "HVECTOR"):
        return [(params["blocklength"], i * params["stride"] * unit) for i in range(params["count"])]
    places = [at * unit for at in params.get("displacements", ())]
    if combiner in ("INDEXED", "HINDEXED"):
        return list(zip(params["blocklengths"], places, strict=True))
    if combiner in ("INDEXED_BLOCK", "HINDEXED_BLOCK"):
        return [(params["blocklength"], at) for at in places]
    return None


def _struct(formats: list[Any], places: list[int], itemsize: int) -> np.dtype[Any]:
    """A structured dtype; aligned where its fields and its size are."""
    names = [f"f{i}" for i in range(len(formats))]
    spec = {"names": names, "formats": formats, "offsets": places, "itemsize": itemsize}
    try:
        return np.dtype({**spec, "aligned": True})  # type: ignore[call-overload, no-any-return]
    except ValueError:
        return np.dtype(spec)  # type: ignore[call-overload, no-any-return]


def _resized(dtype: np.dtype[Any], datatype: Datatype) -> np.dtype[Any]:
    lb, extent = datatype.Get_extent()
    if lb or (dtype.names is None and extent != dtype.itemsize) or dtype.fields is None:
        if not lb and extent == dtype.itemsize:
            return dtype
        raise ValueError(f"datatype: lb {lb}, extent {extent}: has no dtype")
    fields = [dtype.fields[name] for name in dtype.names or ()]
    return _struct([kind for kind, *_ in fields], [at for _, at, *_ in fields], extent)
