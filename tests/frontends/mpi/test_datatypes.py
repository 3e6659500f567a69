"""Datatypes as offsets: what travels, in which order, and where it arrives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.mpi.conftest import Run


def mpi() -> Any:
    from frontends.mpi import MPI

    return MPI


def read(array: np.ndarray[Any, Any], count: int, datatype: Any) -> np.ndarray[Any, Any]:
    from frontends.mpi.specs import message

    return message([array, count, datatype], writable=False).read()


@pytest.mark.parametrize(
    "make",
    [
        lambda kind: kind.Create_contiguous(2.5),
        lambda kind: kind.Create_vector(2, 1, 1.5),
        lambda kind: kind.Create_hvector(2, 1, 1.5),
        lambda kind: kind.Create_indexed([1], [0.5]),
        lambda kind: kind.Create_indexed([1.5], [0]),
        lambda kind: kind.Create_struct([1], [0.5], [kind]),
        lambda kind: kind.Create_subarray([4], [2.5], [0]),
        lambda kind: kind.Create_resized(0, 4.5),
    ],
)
def test_a_float_is_no_count_or_place(make: Any) -> None:
    with pytest.raises(TypeError, match=r"=.*\.\d.*: .* int"):
        make(mpi().INT)


def test_a_column_of_a_matrix() -> None:
    MPI = mpi()
    matrix = np.arange(12, dtype="i4").reshape(3, 4)
    column = MPI.INT.Create_vector(3, 1, 4).Create_resized(0, 4).Commit()
    assert read(matrix, 2, column).view("i4").tolist() == [0, 4, 8, 1, 5, 9]


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_subarray_is_a_slice(order: str) -> None:
    MPI = mpi()
    array = np.arange(60, dtype="i2").reshape(3, 4, 5)
    given = np.asfortranarray(array) if order == "F" else array
    kind = MPI.SHORT.Create_subarray([3, 4, 5], [2, 2, 3], [1, 0, 2], MPI.ORDER_F if order == "F" else MPI.ORDER_C)
    part = array[1:3, 0:2, 2:5]
    assert read(given.ravel(order="K"), 1, kind).view("i2").tolist() == part.ravel(order=order).tolist()  # type: ignore[call-overload]
    assert kind.Get_extent() == (0, 120)
    assert kind.size == part.nbytes


def test_parts_of_a_distributed_array_are_all_of_it() -> None:
    MPI = mpi()
    array = np.arange(35, dtype="f8").reshape(5, 7)
    seen = []
    for rank in range(4):
        kinds = [MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC]
        kind = MPI.DOUBLE.Create_darray(4, rank, [5, 7], kinds, [MPI.DISTRIBUTE_DFLT_DARG] * 2, [2, 2])
        seen.append(read(array, 1, kind).view("f8").tolist())
    assert sorted(number for part in seen for number in part) == array.ravel().tolist()
    assert seen[1][:3] == [1.0, 3.0, 5.0]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=5),
    st.integers(1, 3),
    st.sampled_from(["i1", "i2", "i4", "f8"]),
)
def test_blocks_at_any_places_in_their_order(blocks: list[tuple[int, int]], count: int, code: str) -> None:
    MPI = mpi()
    lengths, places = [n for n, _ in blocks], [at for _, at in blocks]
    kind = MPI.Datatype.fromcode(code).Create_indexed(lengths, places).Create_resized(0, 16 * np.dtype(code).itemsize)
    data = np.arange(16 * count).astype(code)
    expected = [data[16 * i + at + j] for i in range(count) for n, at in blocks for j in range(n)]
    found = read(data, count, kind)
    assert found.view(code).tolist() == expected
    assert kind.size == sum(lengths) * np.dtype(code).itemsize


def test_what_is_written_is_where_it_was_read() -> None:
    from frontends.mpi.specs import message

    MPI = mpi()
    kind = MPI.Datatype.Create_struct([1, 2], [0, 8], [MPI.INT, MPI.DOUBLE])
    source = np.arange(48, dtype="u1")
    target = np.zeros(48, "u1")
    message([target, 2, kind], writable=True).write(message([source, 2, kind], writable=False).read())
    places = [*range(4), *range(8, 24), *range(24, 28), *range(32, 48)]
    assert target[places].tolist() == places
    assert target[[4, 5, 6, 7, 28, 29, 30, 31]].tolist() == [0] * 8


def test_memory_outside_of_the_buffer_is_refused() -> None:
    MPI = mpi()
    for spec in ([np.zeros(3), 4, MPI.DOUBLE], [np.zeros(3), 2, MPI.DOUBLE.Create_vector(2, 1, 3)]):
        with pytest.raises(ValueError, match="bytes"):
            read(spec[0], spec[1], spec[2])


def test_derived_datatypes_travel(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        matrix = np.arange(9.0).reshape(3, 3) if comm.rank == 0 else np.zeros((3, 3))
        column = MPI.DOUBLE.Create_vector(3, 1, 3).Commit()
        if comm.rank == 0:
            comm.Send([matrix, 1, column], 1)
        else:
            comm.Recv([matrix, 1, column], 0)
        rows = np.zeros((2, 3))
        comm.Allgather([matrix, 1, column], rows)
        return matrix[:, 0].tolist(), rows.tolist()

    assert ranks(2, body) == [([0.0, 3.0, 6.0], [[0.0, 3.0, 6.0]] * 2)] * 2


def test_elements_of_a_message_are_counted() -> None:
    MPI = mpi()
    status, pair = MPI.Status(), MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE])
    for elements, nbytes, count in ((4, 24, 2), (3, 16, MPI.UNDEFINED), (0, 0, 0)):
        status.Set_elements(pair, elements)
        assert status.count == nbytes
        assert status.Get_count(pair) == count
        assert status.Get_elements(pair) == elements


def test_packing_and_the_portable_representation() -> None:
    MPI = mpi()
    numbers, packed = np.array([1, -2], "i4"), np.zeros(8, "u1")
    assert MPI.INT.Pack_external("external32", numbers, packed, 0) == 8
    assert packed.tolist() == [0, 0, 0, 1, 255, 255, 255, 254]
    back = np.zeros(2, "i4")
    assert MPI.INT.Unpack_external("external32", packed, 0, back) == 8
    assert back.tolist() == [1, -2]


def test_a_count_to_be_packed_may_be_a_number_of_numpy() -> None:
    MPI = mpi()
    packed = np.zeros(32, "u1")
    assert MPI.INT.Pack([np.arange(8, dtype="i4"), np.int64(2)], packed, 0, MPI.COMM_SELF) == 8


def test_dtypes_of_numpy_and_back() -> None:
    from frontends.mpi.util.dtlib import from_numpy_dtype, to_numpy_dtype

    for dtype in (np.dtype("f8"), np.dtype("(2,3)i4"), np.dtype("i2,f8,(3,)u1", align=True)):
        assert to_numpy_dtype(from_numpy_dtype(dtype)) == dtype


@pytest.mark.parametrize("name", ["INT64_T", "UINT64_T", "AINT", "OFFSET", "COUNT", "INTEGER8", "LONG_LONG", "DOUBLE"])
def test_numbers_of_64_bits_have_them_in_external32(name: str) -> None:
    MPI = mpi()
    kind = getattr(MPI, name)
    given = np.array([1 << 40, 7], np.dtype(kind.typestr))
    buffer, found = bytearray(16), np.empty_like(given)
    assert kind.Pack_external_size("external32", 2) == 16
    assert kind.Pack_external("external32", [given, 2, kind], buffer, 0) == 16
    assert int.from_bytes(buffer[8:], "big") == (7 if kind.typestr[0] != "f" else 0x401C000000000000)
    kind.Unpack_external("external32", buffer, 0, [found, 2, kind])
    assert found.tolist() == given.tolist()


def test_integers_of_18_digits_have_64_bits_in_external32() -> None:
    assert mpi().Datatype.Create_f90_integer(18).Pack_external_size("external32", 2) == 16


def test_a_long_beyond_external32_is_an_error() -> None:
    MPI = mpi()
    with pytest.raises(MPI.Exception) as failed:
        MPI.LONG.Pack_external("external32", np.array([1 << 40], "l"), bytearray(8), 0)
    assert failed.value.Get_error_class() == MPI.ERR_CONVERSION


@pytest.mark.parametrize(("position", "name"), [(2, "ERR_TRUNCATE"), (-1, "ERR_ARG")])
@pytest.mark.parametrize("call", ["Pack", "Unpack", "Pack_external", "Unpack_external"])
def test_packing_beyond_the_buffer_is_an_error(ranks: Run, call: str, position: int, name: str) -> None:
    MPI = mpi()
    buffer, array = bytearray(8), np.zeros(2, "i")

    def body(comm: Any) -> Any:
        order = (array, buffer, position) if call.startswith("Pack") else (buffer, position, array)
        arguments = ("external32", *order) if call.endswith("external") else (*order, comm)
        with pytest.raises(MPI.Exception) as failed:
            getattr(MPI.INT, call)(*arguments)
        return failed.value.Get_error_class()

    assert ranks(1, body) == [getattr(MPI, name)]


CODES = {
    "AINT": "p", "OFFSET": "p", "COUNT": "p", "CHAR": "c", "WCHAR": "U", "C_BOOL": "b1", "CXX_BOOL": "?", "LONG": "l",
    "LONG_LONG": "q", "INT64_T": "i8", "UINT8_T": "u1", "FLOAT": "f", "REAL8": "f8", "COMPLEX": "F", "COMPLEX16": "c16",
    "LOGICAL": "i", "LOGICAL1": "b1", "BYTE": "B", "FLOAT64_T": "d",
}  # fmt: skip
"""The codes that mpi4py 4.1.2 gives."""


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_codes_are_those_of_mpi4py(name: str, code: str) -> None:
    MPI = mpi()
    kind = getattr(MPI, name)
    assert kind.tocode() == kind.Dup().tocode() == code
    assert kind.typechar == (code if len(code) == 1 else np.dtype(code).char)
    found = MPI.Datatype.fromcode(code)
    assert (found.typechar, found.Get_size()) == (kind.typechar, kind.Get_size())


def test_a_datatype_has_its_name_of_the_standard() -> None:
    MPI = mpi()
    assert [kind.Get_name() for kind in (MPI.TWOINT, MPI.INT_INT, MPI.LONG_INT)] == ["MPI_2INT"] * 2 + ["MPI_LONG_INT"]


def test_datatypes_without_codes() -> None:
    MPI = mpi()
    assert (MPI.DATATYPE_NULL.typestr, MPI.DATATYPE_NULL.typechar) == ("", "")
    assert MPI.Datatype.Create_f90_real(6, 30).tocode() == "f4"
    for kind in (MPI.DATATYPE_NULL, MPI.DOUBLE_INT, MPI.INT.Create_contiguous(2)):
        with pytest.raises(ValueError, match="no code"):
            kind.tocode()


def test_a_struct_of_resized_parts_is_as_long_as_they_are(ranks: Run) -> None:
    """Values of Open MPI 5 and MPICH 5, which both have no padding there."""

    def body(comm: Any) -> Any:
        MPI = mpi()
        packed = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.CHAR]).Create_resized(0, 9)
        kinds = [
            MPI.Datatype.Create_struct([2], [0], [packed]),
            MPI.Datatype.Create_struct([1, 1], [0, 9], [packed, packed.Dup()]),
            MPI.Datatype.Create_struct([1], [0], [packed.Create_vector(2, 1, 2)]),
            MPI.Datatype.Create_struct([1, 0], [0, 9], [packed, MPI.DOUBLE]),
            MPI.Datatype.Create_struct([1], [0], [MPI.CHAR.Create_subarray([5], [2], [1])]),
            MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.CHAR]),
        ]
        pair = kinds[0].Commit()
        given, got = np.arange(54, dtype=np.uint8), np.zeros(54, np.uint8)
        comm.Sendrecv([given, 3, pair], comm.rank, 0, [got, 3, pair], comm.rank, 0)
        return [kind.extent for kind in kinds], got.tolist()

    assert ranks(1, body) == [([18, 18, 27, 9, 5, 16], list(range(54)))]
