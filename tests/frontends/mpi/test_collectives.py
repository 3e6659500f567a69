"""Collectives: one body for the blocking, immediate and persistent form; groups, topologies, two groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.mpi.conftest import Run


def mpi() -> Any:
    from frontends.mpi import MPI

    return MPI


def forms(comm: Any, name: str, *arguments: Any) -> None:
    """Make a call in each form; what it does to memory is the same each time."""
    getattr(comm, name)(*arguments)
    getattr(comm, f"I{name.lower()}")(*arguments).Wait()
    prepared = getattr(comm, f"{name}_init")(*arguments)
    for _ in range(2):
        prepared.Start()
        prepared.Wait()


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_every_form_gives_the_same(ranks: Run, transport: str) -> None:
    def body(comm: Any) -> Any:
        MPI, rank, size = mpi(), comm.rank, comm.size
        found = []
        out = np.zeros(size, int)
        forms(comm, "Allgather", np.array([rank]), out)
        found.append(out.tolist())
        total = np.zeros(3)
        forms(comm, "Allreduce", np.full(3, rank + 1.0), total, MPI.MAX)
        found.append(total.tolist())
        part = np.zeros(1, int)
        forms(comm, "Scatter", np.arange(size) * 5 if rank == 0 else None, part)
        found.append(part.tolist())
        got = np.zeros(size, int)
        forms(comm, "Alltoall", np.arange(size) + 10 * rank, got)
        found.append(got.tolist())
        data = np.array([rank])
        forms(comm, "Bcast", data, 1)
        found.append(data.tolist())
        prefix = np.zeros(1, int)
        forms(comm, "Scan", np.array([rank + 1]), prefix)
        found.append(prefix.tolist())
        forms(comm, "Barrier")
        return found

    size = 3
    expected = [[[0, 1, 2], [3.0] * 3, [5 * r], [r, 10 + r, 20 + r], [1], [sum(range(1, r + 2))]] for r in range(size)]
    assert ranks(size, body, transport) == expected


def test_counts_and_displacements_leave_gaps_as_they_are(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        got = np.full(6, -1)
        comm.Allgatherv(np.full(comm.rank + 1, comm.rank), [got, ([1, 2], [4, 1]), MPI.LONG])
        return got.tolist()

    assert ranks(2, body) == [[-1, 1, 1, -1, 0, -1]] * 2


def test_in_place(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        data = np.full(2, comm.rank + 1)
        comm.Allreduce(MPI.IN_PLACE, data)
        rows = np.zeros(comm.size, int)
        rows[comm.rank] = comm.rank + 7
        comm.Allgather(MPI.IN_PLACE, rows)
        return data.tolist(), rows.tolist()

    assert ranks(2, body) == [([3, 3], [7, 8])] * 2


def test_read_only_memory_is_broadcast_from_the_root(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        data = b"abcd" if comm.rank == 0 else bytearray(4)
        comm.Bcast(data)
        return bytes(data)

    assert ranks(2, body) == [b"abcd"] * 2


def test_ops_of_the_program_and_pairs(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()

        def join(a: Any, b: Any, datatype: Any) -> None:
            left, right = np.frombuffer(a, "i4"), np.frombuffer(b, "i4")
            right[:] = 10 * left + right

        op = MPI.Op.Create(join, commute=False)
        out = np.zeros(1, "i4")
        comm.Allreduce(np.array([comm.rank + 1], "i4"), out, op)
        gaps = MPI.INT.Create_resized(0, 8)
        wide, result = np.full(2, comm.rank + 1, "i8"), np.zeros(2, "i8")

        def add(a: Any, b: Any, datatype: Any) -> None:
            np.frombuffer(b, "i8")[:] += np.frombuffer(a, "i8")

        adding = MPI.Op.Create(add, commute=True)
        comm.Allreduce([wide, 2, gaps], [result, 2, gaps], adding)
        adding.Free()
        assert result.tolist() == [6, 6]
        op.Free()
        pair = np.zeros(1, MPI.DOUBLE_INT.dtype)
        pair["value"], pair["index"] = [3.0, 1.0, 1.0][comm.rank], comm.rank
        least = np.zeros(1, MPI.DOUBLE_INT.dtype)
        comm.Allreduce([pair, MPI.DOUBLE_INT], [least, MPI.DOUBLE_INT], MPI.MINLOC)
        return out.tolist(), least["value"][0], least["index"][0], comm.allreduce((comm.rank, 5), MPI.MAXLOC)

    assert ranks(3, body) == [([123], 1.0, 1, (2, 5))] * 3


def test_an_op_of_the_program_gets_elements_that_overlap(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()

        def add(a: Any, b: Any, datatype: Any) -> None:
            np.frombuffer(b, "f8")[:] += np.frombuffer(a, "f8")

        column = MPI.DOUBLE.Create_vector(3, 1, 4).Create_resized(0, 8)
        adding = MPI.Op.Create(add, commute=True)
        matrix, result = np.arange(12.0) * (comm.rank + 1), np.zeros(12)
        comm.Allreduce([matrix, 2, column], [result, 2, column], adding)
        adding.Free()
        return result.reshape(3, 4).tolist()

    assert ranks(2, body) == [[[0.0, 3.0, 0.0, 0.0], [12.0, 15.0, 0.0, 0.0], [24.0, 27.0, 0.0, 0.0]]] * 2


@pytest.mark.parametrize("form", ["Exscan", "Iexscan", "Exscan_init"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["DOUBLE", "DOUBLE_INT", "SHORT_INT"])
def test_an_exscan_leaves_the_result_of_rank_0_as_it_is(ranks: Run, form: str, in_place: bool, name: str) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        kind = getattr(MPI, name)
        result = np.full(50, 7, kind.dtype)
        given = MPI.IN_PLACE if in_place else [np.full(50, 3, kind.dtype), 50, kind]
        request = getattr(comm, form)(given, [result, 50, kind], MPI.SUM if name == "DOUBLE" else MPI.MAXLOC)
        if request is not None:
            if form == "Exscan_init":
                request.Start()
            request.Wait()
        return bool((result == np.full(50, 7 if in_place or comm.rank == 0 else 3, kind.dtype)).all())

    assert ranks(2, body) == [True, True]


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("method", ["Alltoallw", "Ialltoallw", "Alltoallv", "Allgatherv", "Scatterv"])
def test_blocks_without_elements_may_be_anywhere(ranks: Run, method: str, vector: bool) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        size = comm.size
        kind = MPI.DOUBLE.Create_vector(2, 1, 2) if vector else MPI.DOUBLE.Create_contiguous(2)
        given, result = np.array([1.0, 2.0, 3.0, 4.0]) + 10 * comm.rank, np.zeros(4)
        mine = (
            [int(rank == comm.rank) for rank in range(size)],
            [0 if rank == comm.rank else 800 for rank in range(size)],
        )
        last = [int(rank == size - 1) for rank in range(size)], [-100] * (size - 1) + [0]
        if method.endswith("w"):
            request = getattr(comm, method)([given, mine, [kind] * size], [result, mine, [kind] * size])
            if request is not None:
                request.Wait()
        elif method == "Alltoallv":
            comm.Alltoallv([given, mine, kind], [result, mine, kind])
        elif method == "Allgatherv":
            comm.Allgatherv([given, last[0][comm.rank], kind], [result, last, kind])
        else:
            comm.Scatterv([given, last, kind], [result, last[0][comm.rank], kind], root=size - 1)
        return result.tolist()

    first = np.array([1.0, 0.0, 3.0, 0.0] if vector else [1.0, 2.0, 0.0, 0.0])
    parts = [(first + 10 * rank * (first > 0)).tolist() for rank in range(3)]
    expected = {"Allgatherv": [parts[2]] * 3, "Scatterv": [[0.0] * 4, [0.0] * 4, parts[2]]}
    assert ranks(3, body) == expected.get(method, parts)


@pytest.mark.parametrize("method", ["Allreduce", "Iallreduce", "Reduce", "Scan", "Reduce_scatter_block"])
@pytest.mark.parametrize(
    ("op", "code"), [("MAXLOC", "i"), ("MINLOC", "d"), ("SUM", "?"), ("MAX", "F"), ("BAND", "f"), ("REPLACE", "i")]
)
def test_an_op_that_is_not_defined_for_the_numbers_is_refused_before_the_call(
    ranks: Run, method: str, op: str, code: str
) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        with pytest.raises(MPI.Exception) as caught:
            getattr(comm, method)(
                np.ones(comm.size, code), np.ones(1 if "block" in method else comm.size, code), getattr(MPI, op)
            )
        return caught.value.Get_error_class() == MPI.ERR_OP, comm.allreduce(1)

    assert ranks(2, body) == [(True, 2)] * 2


def test_objects(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        rank = comm.rank
        return (
            comm.bcast({"a": [1]} if rank == 1 else None, 1),
            comm.gather(rank, 0),
            comm.scatter([f"for {r}" for r in range(comm.size)] if rank == 0 else None),
            comm.allgather(str(rank)),
            comm.alltoall([(rank, r) for r in range(comm.size)]),
            comm.allreduce(rank + 1),
            comm.reduce([rank], root=1),
            comm.scan(rank),
            comm.exscan(rank),
        )

    expected = [
        ({"a": [1]}, [0, 1], "for 0", ["0", "1"], [(0, 0), (1, 0)], 3, None, 0, None),
        ({"a": [1]}, None, "for 1", ["0", "1"], [(0, 1), (1, 1)], 3, [0, 1], 1, 0),
    ]
    assert ranks(2, body) == expected


def test_the_root_of_a_broadcast_has_a_copy_of_its_own(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        from frontends.mpi.util import pkl5

        given = np.zeros(3)
        for communicator in (comm, pkl5.Intracomm(comm), mpi().COMM_SELF):
            found = communicator.bcast(given, 0)
            found += 1
        return given.tolist()

    assert ranks(2, body) == [[0.0] * 3] * 2


def test_elements_of_derived_datatypes_are_scanned_in_place(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        def multiply(a: Any, b: Any, _: Any) -> None:
            result = np.frombuffer(b).reshape(-1, 2, 2)
            result[:] = np.frombuffer(a).reshape(-1, 2, 2) @ result

        MPI = mpi()
        matrix, product = MPI.DOUBLE.Create_contiguous(4).Commit(), MPI.Op.Create(multiply)
        before, own = np.array([[1.0, comm.rank], [1, 1]]), np.array([[1.0, comm.rank], [1, 1]])
        comm.Exscan(MPI.IN_PLACE, [before, 1, matrix], product)
        comm.Scan(MPI.IN_PLACE, [own, 1, matrix], product)
        product.Free()
        return before.tolist(), own.tolist()

    first, second = [[1.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [2.0, 2.0]]
    assert ranks(2, body) == [(first, first), (first, second)]


class _Counted:
    """Counts its pickles."""

    made = 0

    def __reduce__(self) -> Any:
        type(self).made += 1
        return _Counted, ()


@pytest.mark.parametrize("own", [False, True], ids=["default", "pickler of the program"])
def test_the_root_of_a_broadcast_pickles_once(ranks: Run, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if own:
        monkeypatch.setattr(mpi().pickle, "is_default", False)
    monkeypatch.setattr(_Counted, "made", 0)
    found = ranks(2, lambda comm: type(comm.bcast(_Counted() if comm.rank == 0 else None)))
    assert (found, _Counted.made) == ([_Counted] * 2, 1)


@pytest.mark.parametrize("root", [True, np.bool_(True), np.uint8(1)])
def test_what_counts_as_1_is_a_root(ranks: Run, root: Any) -> None:
    def body(comm: Any) -> Any:
        first, second = np.full(2, comm.rank), np.zeros(2, int)
        comm.Bcast(first, root)
        comm.Reduce(first, second, root=root)
        comm.Gather(first[:1], second, root=root)
        comm.Scatter(first, second[:1], root=root)
        objects = comm.bcast(comm.rank, root), comm.reduce(1, root=root), comm.scatter([3, 4], root)
        return first.tolist(), second.tolist(), objects

    assert ranks(2, body) == [([1, 1], [1, 0], (1, None, 3)), ([1, 1], [1, 1], (1, 2, 4))]


def test_groups_are_made_by_their_members_alone(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        if comm.rank == 1:
            return comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL  # the others split too, below
        group = comm.Get_group().Incl([2, 0])
        some = comm.Create_group(group, tag=4)
        found = some.rank, some.allgather(comm.rank)
        some.Free()
        half = comm.Split(0, key=-comm.rank)
        return found, half.allgather(comm.rank)

    assert ranks(3, body) == [((1, [2, 0]), [2, 0]), True, ((0, [2, 0]), [2, 0])]


def test_ranges_of_a_group_may_be_short_ints_of_numpy(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        backwards = comm.group.Range_incl([(1, 0, -1)])
        unsigned = comm.group.Range_incl([(np.uint8(1), np.uint8(0), np.int8(-1))])
        return mpi().Group.Compare(backwards, unsigned) == mpi().IDENT

    assert ranks(2, body) == [True, True]


def test_a_grid_exchanges_halos_also_with_one_neighbour_on_both_sides(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        cart = comm.Create_cart([comm.size], periods=[True])
        left, right = cart.Shift(0, 1)
        got = np.zeros(2)
        cart.Neighbor_alltoall(np.array([10.0 * cart.rank + 1, 10.0 * cart.rank + 2]), got)
        objects = cart.neighbor_alltoall([f"{cart.rank} down", f"{cart.rank} up"])
        return left, right, got.tolist(), objects

    # what the lower neighbour sends upwards arrives first, then what the upper one sends downwards
    assert ranks(2, body) == [
        (1, 1, [12.0, 11.0], ["1 up", "1 down"]),
        (0, 0, [2.0, 1.0], ["0 up", "0 down"]),
    ]


def test_neighbours_of_a_graph_and_edges_of_a_grid_that_does_not_wrap(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        cart = comm.Create_cart([comm.size], periods=[False])
        got = np.full(2, -1)
        cart.Neighbor_allgather(np.array([cart.rank]), got)
        graph = comm.Create_dist_graph([comm.rank], [1], [(comm.rank + 1) % comm.size])
        return (
            cart.Shift(0, 1) == (MPI.PROC_NULL, 1) or comm.rank > 0,
            got.tolist(),
            graph.neighbor_allgather(comm.rank),
        )

    assert ranks(3, body) == [(True, [-1, 1], [2]), (True, [0, 2], [0]), (True, [1, -1], [1])]


def test_grids_and_graphs_refuse_what_is_outside_of_them(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        line = comm.Create_cart([comm.size], [False])
        for bad, kind in (
            (lambda: line.Get_cart_rank([comm.size]), MPI.Exception),
            (lambda: line.Get_cart_rank([-1]), MPI.Exception),
            (lambda: line.Sub([True, False]), ValueError),
            (lambda: comm.Create_graph([1], [7]), MPI.Exception),
            (lambda: comm.Create_graph([2, 1], [0, 0]), MPI.Exception),
            (lambda: comm.Create_graph([3], [0]), MPI.Exception),
            (lambda: comm.Create_dist_graph_adjacent([comm.size], []), MPI.Exception),
            (lambda: comm.Create_dist_graph_adjacent([], [-1]), MPI.Exception),
            (lambda: comm.Create_dist_graph([0], [1], [comm.size]), MPI.Exception),
        ):
            with pytest.raises(kind):
                bad()
        ring = comm.Create_cart([comm.size], [True])
        return ring.Get_cart_rank([-1]), line.Shift(0, 5) == (MPI.PROC_NULL, MPI.PROC_NULL)

    assert ranks(2, body) == [(1, True)] * 2


def test_a_float_is_refused_before_a_communicator_is_made(ranks: Run) -> None:
    """`Split(rank / 2)` was made by the ranks whose color had no fraction, who waited for the others."""

    def body(comm: Any) -> Any:
        grid = comm.Create_cart([comm.size])
        for call in (
            lambda: comm.Split(comm.rank / 2),
            lambda: comm.Split(0, comm.rank / 2),
            lambda: comm.Create_cart([2.0]),
            lambda: comm.Create_dist_graph_adjacent([0.5], []),
            lambda: comm.Create_dist_graph([0.5], [1], [0]),
            lambda: comm.Reduce_scatter(np.ones(2), np.ones(1), [1.0, 1.0]),
            lambda: comm.bcast(None, 0.0),
            lambda: grid.Get_cart_rank([0.5]),
            lambda: grid.Shift(0, 0.5),
        ):
            with pytest.raises(TypeError, match=r"=.*\.\d.*: .* int"):
                call()
        return comm.Split(comm.rank // 2).size

    assert ranks(2, body) == [2, 2]


def test_arrays_may_name_the_neighbours_of_a_graph(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        everyone = np.arange(comm.size)
        graph = comm.Create_dist_graph_adjacent(everyone, everyone)
        return graph.neighbor_allgather(comm.rank), graph.inedges

    assert ranks(2, body) == [([0, 1], [0, 1])] * 2


@pytest.mark.parametrize(
    ("nodes", "dims", "lengths"),
    [
        (72, 2, [9, 8]),
        (180, 2, [15, 12]),
        (24, 3, [4, 3, 2]),
        (7, 2, [7, 1]),
        (1, 3, [1, 1, 1]),
        (72, [0, 2, 0], [6, 2, 6]),
        (6, [3, 2], [3, 2]),
        (10**9 + 7, 2, [10**9 + 7, 1]),
        (720720, 6, [13, 11, 10, 9, 8, 7]),
    ],
)
def test_the_lengths_of_a_grid_are_as_equal_as_possible(nodes: int, dims: Any, lengths: list[int]) -> None:
    assert mpi().Compute_dims(nodes, dims) == lengths


def test_two_groups(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        low = comm.rank < 1
        local = comm.Split(0 if low else 1)
        inter = local.Create_intercomm(0, comm, 1 if low else 0, tag=3)
        total = np.zeros(1)
        inter.Allreduce(np.array([comm.rank + 1.0]), total)
        root = (MPI.ROOT if inter.rank == 0 else MPI.PROC_NULL) if low else 0
        said = inter.bcast("hello" if low else None, root)
        merged = inter.Merge(high=not low)
        return inter.remote_size, total.tolist(), inter.allgather(comm.rank), said, merged.allgather(comm.rank)

    assert ranks(3, body) == [
        (2, [5.0], [1, 2], None, [0, 1, 2]),
        (1, [1.0], [0], "hello", [0, 1, 2]),
        (1, [1.0], [0], "hello", [0, 1, 2]),
    ]


@pytest.mark.parametrize("name", ["Allreduce", "Iallreduce", "Allgather", "Neighbor_allgather"])
def test_a_message_shorter_than_its_place_is_an_error(ranks: Run, name: str) -> None:
    """A reduction took what was in memory for the numbers that did not come."""

    def body(comm: Any) -> Any:
        MPI = mpi()
        two = comm.Split(comm.rank).Create_intercomm(0, comm, 1 - comm.rank)
        if name.startswith("Neighbor"):
            two = comm.Create_dist_graph_adjacent([1 - comm.rank], [1 - comm.rank])
        sent, received = (np.ones(2), np.zeros(2)) if comm.rank == 0 else (np.ones(2), np.zeros(3))
        try:
            request = getattr(two, name)(sent, received)
            if request is not None:
                request.Wait()
        except MPI.Exception as error:
            return error.Get_error_class() == MPI.ERR_NOT_SAME and str(error)
        return received.tolist()

    first, second = ranks(2, body)
    assert first == [1.0, 1.0]
    assert "rank 0 sends 16 bytes, 24 are received" in second


def test_calls_that_do_not_fit_together_are_an_error_that_names_them(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        with pytest.raises(MPI.Exception) as caught:
            comm.Barrier() if comm.rank else comm.Bcast(np.zeros(4))
        return "barrier" in str(caught.value) and "broadcast" in str(caught.value)

    assert ranks(2, body) == [True, True]


@pytest.mark.parametrize(
    ("name", "sent", "received"),
    [
        ("Gather", np.zeros(2), np.zeros(6)),
        ("Allgather", np.zeros(2), np.zeros(6)),
        ("Allgatherv", np.zeros(2), [np.zeros(6), [3, 3]]),
        ("Scatter", np.zeros(4), np.zeros(3)),
        ("Alltoall", np.zeros(4), np.zeros(6)),
        ("Alltoallv", [np.zeros(4), [2, 2]], [np.zeros(6), [3, 3]]),
    ],
)
def test_a_rank_that_sends_itself_more_or_less_than_it_receives_is_told_so(
    ranks: Run, name: str, sent: Any, received: Any
) -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 0:
            with pytest.raises(ValueError, match="16 bytes and receives 24"):
                getattr(comm, name)(sent, received)
        return comm.allreduce(1)

    assert ranks(2, body) == [2, 2]


def test_what_is_left_out_says_so() -> None:
    MPI = mpi()
    for call in (
        MPI.Open_port,
        lambda: MPI.COMM_WORLD.Spawn("program"),
    ):
        with pytest.raises(NotImplementedError):
            call()


@pytest.mark.parametrize("call", ["Allreduce", "Ireduce", "allreduce", "reduce", "scan", "exscan"])
def test_an_op_is_one_of_mpi_and_the_job_goes_on(ranks: Run, call: str) -> None:
    def body(comm: Any) -> Any:
        with pytest.raises(TypeError, match="op='sum': must be an Op"):
            getattr(comm, call)(*[np.ones(1)] * (1 if call.islower() else 2), op="sum")
        return comm.allreduce(1)

    assert ranks(2, body) == [2, 2]


def test_elements_without_a_datatype_are_named(ranks: Run) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(KeyError, match="kind 'M'"):
            comm.Bcast(np.zeros(1, "M8[s]"))

    ranks(1, body)


def test_arrays_that_are_not_plain_take_the_long_way(ranks: Run) -> None:
    """The same calls on strided, read-only, differently shaped, small, structured and shared arrays."""

    def body(comm: Any) -> Any:
        MPI = mpi()
        mine, seen = float(comm.rank + 1), []
        strided = np.zeros((4, 2))[:, 0]
        with pytest.raises((BufferError, ValueError)):
            comm.Allreduce(np.full(4, mine), strided)
        out = np.zeros((2, 2))
        comm.Allreduce(np.full(4, mine), out)
        seen.append(out.tolist())
        same = np.full(3, mine)
        comm.Allreduce(MPI.IN_PLACE, same)
        seen.append(same.tolist())
        fixed = np.full(2, mine)
        fixed.flags.writeable = comm.rank != 0
        comm.Bcast(fixed)
        seen.append(fixed.tolist())
        halves = np.zeros(2, np.float16)
        comm.Allreduce(np.full(2, mine, np.float16), halves)
        seen.append(halves.tolist())
        turned = np.full((2, 2), mine, order="F")
        comm.Allreduce(turned if comm.rank else np.full(4, mine), out)
        seen.append(out.tolist())
        both = np.zeros((2, 2), np.int32)
        sent = np.full(2, comm.rank, np.int32)
        comm.Allgather(sent if comm.rank else [sent, 8, MPI.BYTE], both)
        seen.append(both.tolist())
        request, total = comm.Irecv(np.zeros(1), 1 - comm.rank), np.zeros(1)  # it is looked after meanwhile
        comm.Allreduce(np.full(1, mine), total, op=MPI.MAX)
        comm.Send(np.zeros(1), 1 - comm.rank)
        request.Wait()
        seen.append(total.tolist())
        with pytest.raises(ValueError):
            comm.Allreduce(np.full(2, mine), np.zeros(3))
        with pytest.raises(MPI.Exception) as caught:
            comm.Bcast(np.zeros(1), 9)
        return seen, caught.value.Get_error_class() == MPI.ERR_ROOT

    expected = [
        [[3.0, 3.0], [3.0, 3.0]],
        [3.0] * 3,
        [1.0, 1.0],
        [3.0, 3.0],
        [[3.0, 3.0], [3.0, 3.0]],
        [[0, 0], [1, 1]],
        [2.0],
    ]
    assert ranks(2, body) == [(expected, True)] * 2


def _fresh(comm: Any, number: int) -> tuple[Any, Any, Any]:
    mine = float(comm.rank + 1 + 10 * number)
    return np.full(2, mine), np.zeros(2), np.zeros(2 * comm.size)


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_calls_that_are_repeated_work_on_the_arrays_of_each(ranks: Run, transport: str) -> None:
    """Each call is made again with other arrays of the same kinds, in every form of its buffers."""

    def body(comm: Any) -> Any:
        MPI, size, root = mpi(), comm.size, comm.rank == 1
        calls = {
            "allreduce": lambda x, out, all_: comm.Allreduce(x, out),
            "max": lambda x, out, all_: comm.Allreduce(x, out, op=MPI.MAX),
            "min": lambda x, out, all_: comm.Allreduce(x, out, MPI.MIN),
            "in place": lambda x, out, all_: comm.Allreduce(MPI.IN_PLACE, x),
            "lists": lambda x, out, all_: comm.Allreduce([x, 1, MPI.DOUBLE], [out, 1, MPI.DOUBLE]),
            "other shapes": lambda x, out, all_: comm.Allreduce(x.reshape(2, 1), out),
            "bcast": lambda x, out, all_: comm.Bcast(x, 1),
            "bcast list": lambda x, out, all_: comm.Bcast([x, MPI.DOUBLE], root=1),
            "reduce": lambda x, out, all_: comm.Reduce(x, out if root else None, root=1),
            "allgather": lambda x, out, all_: comm.Allgather(x, all_),
            "allgatherv": lambda x, out, all_: comm.Allgatherv(x, [all_, [2] * size]),
            "allgather in place": lambda x, out, all_: comm.Allgather(MPI.IN_PLACE, all_),
            "gather": lambda x, out, all_: comm.Gather(x, all_ if root else None, 1),
            "scatter": lambda x, out, all_: comm.Scatter(np.arange(2.0 * size) + x[0] if root else None, out, 1),
            "alltoall": lambda x, out, all_: comm.Alltoall(np.arange(2.0 * size) + x[0], all_),
            "block": lambda x, out, all_: comm.Reduce_scatter_block(np.arange(2.0 * size) + x[0], out),
            "scan": lambda x, out, all_: comm.Scan(x, out),
            "exscan": lambda x, out, all_: comm.Exscan(x, out),
        }
        found = {}
        for name, call in calls.items():
            found[name] = []
            for number in range(4):
                arrays = _fresh(comm, number)
                if number == 2:  # memory that overlaps, or that others may not write to, is another kind
                    room = np.zeros(6)
                    room[:2] = arrays[0]
                    arrays = room[:2], *arrays[1:]
                call(*arrays)
                found[name].append([array.tolist() for array in arrays])
        return found

    def expected(rank: int, size: int = 3) -> Any:
        found: dict[str, Any] = {}
        for number in range(4):
            values = [float(r + 1 + 10 * number) for r in range(size)]
            x, out, all_ = [values[rank]] * 2, [0.0] * 2, [0.0] * 2 * size
            gathered = [v for v in values for _ in range(2)]
            spread = [[float(k) + v for k in range(2 * size)] for v in values]
            both = slice(2 * rank, 2 * rank + 2)
            cases = {
                "allreduce": (x, [sum(values)] * 2, all_),
                "max": (x, [max(values)] * 2, all_),
                "min": (x, [min(values)] * 2, all_),
                "in place": ([sum(values)] * 2, out, all_),
                "lists": (x, [sum(values), 0.0], all_),
                "other shapes": (x, [sum(values)] * 2, all_),
                "bcast": ([values[1]] * 2, out, all_),
                "bcast list": ([values[1]] * 2, out, all_),
                "reduce": (x, [sum(values)] * 2 if rank == 1 else out, all_),
                "allgather": (x, out, gathered),
                "allgatherv": (x, out, gathered),
                "allgather in place": (x, out, all_),
                "gather": (x, out, gathered if rank == 1 else all_),
                "scatter": (x, spread[1][both], all_),
                "alltoall": (x, out, [v for one in spread for v in one[both]]),
                "block": (x, [sum(column) for column in list(zip(*spread, strict=True))[both]], all_),
                "scan": (x, [sum(values[: rank + 1])] * 2, all_),
                "exscan": (x, [sum(values[:rank])] * 2 if rank else out, all_),
            }
            for name, arrays in cases.items():
                found.setdefault(name, []).append([list(array) for array in arrays])
        return found

    for rank, found in enumerate(ranks(3, body, transport)):
        assert found == expected(rank)


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_a_call_like_a_repeated_one_raises_as_the_first_would(ranks: Run, transport: str) -> None:
    """Arguments that are the same but for what makes them bad are refused on every rank, and nothing is sent."""

    def body(comm: Any) -> Any:
        MPI = mpi()
        x, out = np.ones(2), np.zeros(2)
        mine = MPI.Op.Create(lambda a, b, _: None, commute=True)
        copy = MPI.Op(MPI.SUM)
        for _ in range(3):
            comm.Allreduce(x, out)
            comm.Allreduce(x, out, copy)
            comm.Bcast(x, 0)
            comm.Bcast(np.arange(2, dtype=np.int16), 0)
        copy.free()
        mine.Free()
        fixed = np.zeros(2)
        fixed.flags.writeable = False
        bad = (
            lambda: comm.Allreduce(x, fixed),
            lambda: comm.Allreduce(x, np.zeros(3)),
            lambda: comm.Allreduce(x, np.zeros(2, np.float32)),
            lambda: comm.Allreduce(x, out, copy),
            lambda: comm.Allreduce(x, out, mine),
            lambda: comm.Allreduce(x),
            lambda: comm.Bcast(x, 7),
            lambda: comm.Bcast(np.array([x, out, None], object)[:2], 0),
            lambda: comm.Bcast(np.zeros((2, 2))[:, 0], 0),
        )
        for call in bad:
            with pytest.raises((TypeError, ValueError, KeyError, BufferError, MPI.Exception)):
                call()
        comm.Allreduce(x, out)
        twin = comm.Dup()
        twin.Allreduce(x, out)
        twin.Revoke()
        with pytest.raises(MPI.Exception) as caught:
            twin.Allreduce(x, out)
        return out.tolist(), caught.value.Get_error_class() == MPI.ERR_REVOKED

    assert ranks(2, body, transport) == [([2.0, 2.0], True)] * 2
