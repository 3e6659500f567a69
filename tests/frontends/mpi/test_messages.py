"""Messages between two ranks: buffers and objects, modes, requests, probes, errors."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

from tests.frontends.mpi.conftest import Run
from tests.worlds import world_of
from transports.driver import Awaited
from transports.engine import Engine


def mpi() -> Any:
    from frontends.mpi import MPI

    return MPI


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_a_ring_of_buffers_and_objects(ranks: Run, transport: str) -> None:
    def body(comm: Any) -> Any:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        got = np.empty(1000)
        comm.Sendrecv(np.full(1000, comm.rank, float), right, 3, got, left, 3)
        return got[0], comm.sendrecv({"from": comm.rank}, right, source=left)

    assert ranks(3, body, transport) == [(float(left), {"from": left}) for left in (2, 0, 1)]


def test_a_bool_of_numpy_is_a_color_a_rank_and_a_tag(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        half = comm.Split(np.bool_(comm.rank > 0))
        other = np.bool_(comm.rank == 0)
        got, late = np.empty(1), np.empty(1)
        comm.Sendrecv(np.array([comm.rank]) * 1.0, other, np.True_, got, other, np.True_)
        request = comm.Irecv(late, other, np.False_)
        comm.send(half.size, comm.rank, 5)
        comm.Send(np.array([comm.rank]) * 1.0, other, np.False_)
        request.Wait()
        return comm.recv(source=comm.rank, tag=5), got[0], late[0]

    assert ranks(2, body) == [(1, 1.0, 1.0), (1, 0.0, 0.0)]


def test_a_receive_takes_shorter_messages_and_tells_their_length(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        if comm.rank == 0:
            comm.Send(np.arange(3.0), 1, 7)
            return None
        status, got = MPI.Status(), np.full(5, -1.0)
        comm.Recv(got, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        return got.tolist(), status.source, status.tag, status.Get_count(MPI.DOUBLE), status.Get_count(MPI.BYTE)

    assert ranks(2, body)[1] == ([0.0, 1.0, 2.0, -1.0, -1.0], 0, 7, 3, 24)


def test_a_message_that_is_too_long_is_truncation_and_no_more(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        if comm.rank == 0:
            comm.Send(np.arange(9.0), 1)
            comm.send("next", 1)
            return None
        with pytest.raises(MPI.Exception) as caught:
            comm.Recv(np.empty(2), 0)
        return caught.value.Get_error_class() == MPI.ERR_TRUNCATE, comm.recv(source=0)

    assert ranks(2, body)[1] == (True, "next")


def test_a_synchronous_send_ends_at_the_match_also_in_a_barrier(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 0:
            comm.Ssend(np.arange(4), 1)
            comm.Barrier()
            return None
        got = np.zeros(4, int)
        request = comm.Irecv(got, 0)
        comm.Barrier()  # the sender waits for the news of the match, and gets it from here
        request.Wait()
        return got.tolist()

    for transport in ("local", "shm", "tcp"):
        assert ranks(2, body, transport)[1] == [0, 1, 2, 3]


def test_a_synchronous_send_does_not_end_before_the_receive(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 0:
            request = comm.issend("late", 1)
            early = request.test()[0]
            comm.Barrier()
            request.wait()
            return early
        comm.Barrier()
        return comm.recv(source=0)

    assert ranks(2, body, "shm") == [False, "late"]


def test_a_receive_can_be_cancelled(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        request = comm.Irecv(np.empty(3), (comm.rank + 1) % 2, 5)
        request.Cancel()
        status = MPI.Status()
        request.Wait(status)
        return status.Is_cancelled(), bool(request)

    assert ranks(2, body) == [(True, False)] * 2


def test_an_operation_goes_on_after_its_request_is_freed(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        columns = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
        got = [np.zeros(4) for _ in range(4)]
        target = [[one, 1, columns] for one in got]
        given, left = np.array([1.0, 2.0]), (comm.rank - 1) % comm.size
        persistent = comm.Recv_init(target[1], left, 1)
        persistent.Start()
        comm.Isend(given, comm.rank, 2).Free()
        requests = [comm.Irecv(target[0], left), persistent, comm.mprobe(comm.rank, 2).Irecv(target[2])]
        requests.append(comm.Ibcast(target[3] if comm.rank else given))
        for request in requests:
            request.Free()
        late = comm.irecv(source=left, tag=3)
        late.free()
        comm.Barrier()
        for tag in range(2):
            comm.Isend(given, (comm.rank + 1) % comm.size, tag).Free()
        comm.isend("late", (comm.rank + 1) % comm.size, 3).Free()
        return got, [bool(request) for request in (*requests, late)]

    found = ranks(2, body)
    for thread in threading.enumerate():
        if thread.name == "ronde message with a callback":
            thread.join(20)
    for rank, (got, alive) in enumerate(found):
        assert [one.tolist() for one in got[: 3 + rank]] == [[1.0, 0.0, 2.0, 0.0]] * (3 + rank)
        assert alive == [False] * 5


def test_a_generalized_request_tells_of_its_end_however_it_is_freed(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI, told = mpi(), []

        def new() -> Any:
            told.append([])
            return MPI.Grequest.Start(lambda status: told[-1].append("asked"), lambda: told[-1].append("freed"))

        first = new()
        first.Free()
        assert told[-1] == []
        first.Complete()
        second = new()
        second.Complete()
        second.Free()
        third = new()
        third.Complete()
        MPI.Request(third).Wait(MPI.Status())
        for request in (first, second, third):
            with pytest.raises(MPI.Exception, match="generalized"):
                request.Complete()
        return told

    assert ranks(1, body) == [[["freed"], ["freed"], ["asked", "freed"]]]


def test_matched_probes_take_the_message_that_they_found(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        if comm.rank:
            comm.send(comm.rank * 10, 0, tag=comm.rank)
            return None
        status = MPI.Status()
        found = comm.mprobe(status=status)
        other = comm.recv(source=3 - status.source)
        return sorted([found.recv(), other])

    assert ranks(3, body)[0] == [10, 20]


def test_a_matched_probe_whose_message_is_received_meanwhile_looks_again(
    ranks: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collectives.operations.channel import Channel

    look, taken = Channel.probe, list[str]()

    def body(comm: Any) -> Any:
        def look_and_lose(channel: Channel, *arguments: Any) -> Any:
            found = look(channel, *arguments)
            if found is not None and not taken:
                taken.append(comm.recv(source=1))
            return found

        if comm.rank:
            for each in ("one", "two"):
                comm.send(each, 0)
            return None
        comm.Probe(source=1)
        monkeypatch.setattr(Channel, "probe", look_and_lose)
        return comm.mprobe().recv(), comm.improbe()

    assert ranks(2, body)[0] == ("two", None)
    assert taken == ["one"]


def test_requests_of_several_kinds_are_waited_for_together(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        other = 1 - comm.rank
        total = np.zeros(2)
        requests = [comm.irecv(source=other), comm.isend(comm.rank, other), comm.Iallreduce(np.ones(2), total)]
        results = MPI.Request.waitall(requests)
        return results[0], total.tolist(), MPI.Request.Waitany(requests) == MPI.UNDEFINED

    assert ranks(2, body) == [(1, [2.0, 2.0], True), (0, [2.0, 2.0], True)]


def test_persistent_requests_send_what_the_memory_holds_at_each_start(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        data, got, seen = np.zeros(1), np.zeros(1), []
        send, receive = comm.Send_init(data, 1 - comm.rank), comm.Recv_init(got, 1 - comm.rank)
        for step in range(3):
            data[0] = step + 10 * comm.rank
            MPI.Prequest.Startall([send, receive])
            MPI.Request.Waitall([send, receive])
            seen.append(got[0])
        return seen

    assert ranks(2, body) == [[10.0, 11.0, 12.0], [0.0, 1.0, 2.0]]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda comm: comm.Send(b"", 9), "ERR_RANK"),
        (lambda comm: comm.Send(b"", 0, -5), "ERR_TAG"),
        (lambda comm: comm.Recv(bytearray(1), 9), "ERR_RANK"),
        (lambda comm: comm.Bcast(bytearray(1), 7), "ERR_ROOT"),
        (lambda comm: comm.Create_group(comm.group, 1 << 28), "ERR_TAG"),
    ],
)
def test_bad_arguments_have_their_error_class(ranks: Run, call: Any, name: str) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        with pytest.raises(MPI.Exception) as caught:
            call(comm)
        return caught.value.Get_error_class() == getattr(MPI, name)

    assert ranks(2, body) == [True, True]


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_a_float_is_no_rank_or_tag_and_the_job_goes_on(ranks: Run, transport: str) -> None:
    def body(comm: Any) -> Any:
        numbers = np.ones(1)
        for call in (
            lambda: comm.Send(numbers, 1.0),
            lambda: comm.Send(numbers, 1, 2.0),
            lambda: comm.send(1, 1.0),
            lambda: comm.isend(1, 1, 2.0),
            lambda: comm.Recv(numbers, 0.0),
            lambda: comm.recv(source=0, tag=2.0),
            lambda: comm.Sendrecv(numbers, 1.0, 0, np.zeros(1), 0, 0),
            lambda: comm.sendrecv(1, 1, 2.0, None, 0, 0),
            lambda: comm.iprobe(0.0),
        ):
            with pytest.raises(TypeError, match=r"=.*\.\d.*: .* int"):
                call()
        peer = np.int64(1 - comm.rank)
        return comm.sendrecv(comm.rank, peer, np.int8(3), None, peer, np.int8(3))

    assert ranks(2, body, transport) == [1, 0]


def test_a_rank_that_gives_up_ends_the_waits_of_the_others(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        if comm.rank == 1:
            with pytest.raises(SystemExit):
                comm.Abort(3)
            return None
        with pytest.raises(MPI.Exception) as caught:
            comm.recv(source=1)
        return caught.value.Get_error_class() == MPI.ERR_PROC_FAILED, "rank 1" in str(caught.value)

    assert ranks(2, body)[0] == (True, True)


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize(
    "call",
    [
        lambda comm: comm.Recv(np.empty(3), 1, 5),
        lambda comm: comm.Recv([np.empty(3), 1, mpi().DOUBLE.Create_vector(2, 1, 2)], 1, 5),
        lambda comm: comm.recv(source=1, tag=5),
        lambda comm: comm.Ssend(np.ones(3), 1, 5),
        lambda comm: comm.ssend({}, 1, 5),
        lambda comm: comm.Sendrecv(np.ones(3), 1, 5, np.empty(3), 1, 5),
        lambda comm: comm.Sendrecv_replace(np.ones(3), 1, 5, 1, 5),
        lambda comm: comm.sendrecv({}, 1, 5, None, 1, 5),
        lambda cart: cart.Neighbor_alltoall(np.ones(2), np.empty(2)),
        lambda cart: cart.neighbor_alltoall([1, 2]),
    ],
)
def test_an_interrupt_of_a_blocking_message_aborts_since_its_receive_would_take_the_next(
    ranks: Run, monkeypatch: pytest.MonkeyPatch, call: Any, transport: str
) -> None:
    chosen, wait, gate = set[int](), Engine.wait, threading.Barrier(2)

    def interrupted(engine: Engine, awaited: Awaited, deadline: float) -> bool:
        if threading.get_ident() in chosen:
            chosen.clear()
            raise KeyboardInterrupt
        return wait(engine, awaited, deadline)

    def body(comm: Any) -> Any:
        MPI = mpi()
        cart = comm.Create_cart([2])
        comm.Barrier()
        gate.wait(20)
        if comm.rank == 0:
            chosen.add(threading.get_ident())
            with pytest.raises(KeyboardInterrupt):
                call(cart)
        gate.wait(20)
        with pytest.raises(MPI.Exception) as caught:
            comm.Recv(np.empty(3), 1 - comm.rank, 5)
        return "rank 0 left a message: KeyboardInterrupt" in str(caught.value)

    monkeypatch.setattr(Engine, "wait", interrupted)
    assert ranks(2, body, transport) == [True, True]


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_rank_that_computes_after_dup_holds_up_nobody(transport: str) -> None:
    made = threading.Event()

    def body(comm: Any) -> bool:
        copy = mpi().COMM_WORLD.Dup()
        if copy.rank == 0:
            return made.wait(20)
        made.set()
        return True

    with world_of(transport, 2) as world:
        assert world.run(body) == [True, True]


def test_other_picklers_and_buffers_apart(ranks: Run) -> None:
    from frontends.mpi.util import pkl5

    def body(comm: Any) -> Any:
        own = pkl5.Intracomm(comm)
        array = np.arange(1 << 17, dtype=float)
        got = own.sendrecv({"a": array, "b": comm.rank}, 1 - comm.rank, source=1 - comm.rank)
        shared = own.bcast(array if comm.rank == 0 else None)
        return got["b"], bool((got["a"] == array).all()), bool((shared == array).all())

    assert ranks(2, body) == [(1, True, True), (0, True, True)]


def test_the_protocol_of_pickles_may_change_and_be_the_default_again() -> None:
    import pickle

    MPI = mpi()
    own = MPI.Pickle()
    for protocol, used in ((0, 0), (None, pickle.HIGHEST_PROTOCOL)):
        own.PROTOCOL = protocol
        assert used == own.PROTOCOL
        assert own.dumps([1]) == pickle.dumps([1], used)
    other = MPI.Pickle(lambda *arguments: str(arguments[1:]).encode())
    for protocol, told in ((None, b"()"), (3, b"(3,)"), (None, b"()")):
        other.PROTOCOL = protocol
        assert other.dumps("x") == told


def test_threads_make_communicators_at_the_same_time(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        from collectives import world, world_scope

        parents, mine, found = [comm.Dup(), comm.Dup()], world(), {}

        def work(number: int) -> None:
            with world_scope(mine):
                own = parents[number].Dup()
                found[number] = own.sendrecv((comm.rank, number), 1 - comm.rank, source=1 - comm.rank)

        order = (0, 1) if comm.rank == 0 else (1, 0)
        threads = [threading.Thread(target=work, args=(number,)) for number in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found

    assert ranks(2, body, "shm") == [{0: (1, 0), 1: (1, 1)}, {0: (0, 0), 1: (0, 1)}]


def test_handles_of_predefined_objects_are_pickled_by_name() -> None:
    MPI = mpi()
    for one in (MPI.INT, MPI.SUM, MPI.COMM_NULL, MPI.COMM_WORLD, MPI.INFO_NULL):
        assert pickle.loads(pickle.dumps(one)) is one
    handler = MPI.Comm.Create_errhandler(print)
    with pytest.raises(ValueError):
        pickle.dumps(handler)
    handler.Free()


@pytest.mark.parametrize("buf", [None, "text", [None, 3], np.zeros((4, 4))[:, ::2], b"read-only"], ids=repr)
def test_a_message_to_no_rank_may_be_anything(ranks: Run, buf: Any) -> None:
    """A rank at the edge of a grid has no neighbour, and no buffer for it."""

    def body(comm: Any) -> None:
        nobody = mpi().PROC_NULL
        comm.Send(buf, nobody)
        comm.Bsend(buf, nobody)
        comm.Issend(buf, nobody).Wait()
        comm.Recv(buf, nobody)
        comm.Irecv(buf, nobody).Wait()
        comm.Mprobe(nobody).Recv(buf)
        comm.Sendrecv(buf, nobody, 0, buf, nobody)
        comm.Sendrecv_replace(buf, nobody, 0, nobody)
        comm.Isendrecv_replace(buf, nobody, 0, nobody).Wait()
        for request in (comm.Send_init(buf, nobody), comm.Recv_init(buf, nobody)):
            request.Start()
            request.Wait()
        got = np.zeros(1)
        comm.Sendrecv(np.ones(1), comm.rank, 0, got, comm.rank)
        assert got == 1

    ranks(1, body)


@pytest.mark.parametrize("name", ["Send", "Isend", "Recv", "Irecv", "Bcast", "Ibcast"])
@pytest.mark.parametrize("constant", ["", "BOTTOM", "IN_PLACE"])
def test_a_message_needs_a_buffer(ranks: Run, name: str, constant: str) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(TypeError):
            getattr(comm, name)(getattr(mpi(), constant) if constant else None, 0)

    ranks(1, body)


def test_a_count_and_a_displacement_may_be_a_list_too(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        got = np.zeros(4, int)
        comm.Sendrecv([np.arange(8), [2, 5]], 0, 0, [got, (2, 1), mpi().LONG], 0)
        return got.tolist()

    assert ranks(1, body) == [[0, 5, 6, 0]]


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_sendrecv_is_a_send_and_a_receive_whatever_is_exchanged(ranks: Run, transport: str) -> None:
    """Short and long, of arrays and of objects, from any source, with the own rank, with no rank, and too long."""

    def body(comm: Any) -> Any:
        MPI = mpi()
        other, seen = 1 - comm.rank, []
        for size in (1, 100, 3000, 300_000):
            for number in range(40 if size < 300_000 else 3):
                data, got, status = np.full(size, comm.rank + number), np.zeros(size + 3, int), MPI.Status()
                comm.Sendrecv(data, other, number, got, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
                told = status.source, status.tag, status.Get_count(MPI.LONG)
                assert told == (other, number, size)
                assert (got[:size] == other + number).all()
                assert not got[size:].any()
                sent = {"data": bytes(size), "from": (comm.rank, number)}
                found = comm.sendrecv(sent, other, number, None, other, number, status)
                assert found == {"data": bytes(size), "from": (other, number)}
                assert (status.source, status.tag) == (other, number)
        got = np.zeros(2)
        comm.Sendrecv(np.full(2, 7.0), comm.rank, 1, got, comm.rank, 1)
        seen += got.tolist(), comm.sendrecv("own", comm.rank, source=comm.rank)
        comm.Sendrecv(got, MPI.PROC_NULL, 0, np.zeros(2), MPI.PROC_NULL)
        seen.append(comm.sendrecv("none", MPI.PROC_NULL, source=MPI.PROC_NULL))
        with pytest.raises(MPI.Exception) as caught:
            comm.Sendrecv(np.zeros(5), other, 0, got, other, 0)
        seen.append(caught.value.Get_error_class() == MPI.ERR_TRUNCATE)
        for bad in (
            lambda: comm.Sendrecv(got, other, -3, got.copy(), other),
            lambda: comm.Sendrecv(got, other, 0, got.copy(), 9),
            lambda: comm.sendrecv(1, 9, source=other),
            lambda: comm.sendrecv(1, other, source=other, recvtag=-7),
        ):
            with pytest.raises(MPI.Exception):
                bad()
        fixed = np.zeros(2)
        fixed.flags.writeable = False
        with pytest.raises(BufferError):
            comm.Sendrecv(got, other, 0, fixed, other)
        seen.append(comm.sendrecv(comm.rank, other, source=other))  # nothing was sent by those that were refused
        return seen

    assert ranks(2, body, transport) == [[[7.0, 7.0], "own", None, True, other] for other in (1, 0)]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_short_messages_keep_their_order_among_others(ranks: Run, transport: str) -> None:
    """Long and synchronous ones, immediate receives and probes between short ones."""

    def body(comm: Any) -> Any:
        MPI = mpi()
        if comm.rank == 0:
            for number in range(60):
                comm.send((number, bytes(number % 7 * 9000)), 1, number % 3)
                if number % 5 == 0:
                    comm.ssend(("met", number), 1, 5)
                comm.Send(np.full(1 + number * 997 % 5000, number), 1, 9)
            return comm.recv()
        for number in range(60):
            request = comm.irecv(source=0, tag=5) if number % 5 == 0 else None
            assert comm.recv(tag=number % 3) == (number, bytes(number % 7 * 9000))
            if request is not None:
                assert request.wait() == ("met", number)
            if number % 4 == 0:
                assert comm.probe(tag=9)
            got, status = np.zeros(5000, int), MPI.Status()
            comm.Recv(got, 0, 9, status)
            length = status.Get_count(MPI.LONG)
            assert length == 1 + number * 997 % 5000
            assert (got[:length] == number).all()
            assert not got[length:].any()
        comm.send("all", 0)
        return "all"

    assert ranks(2, body, transport) == ["all", "all"]


@pytest.mark.parametrize("call", ["Waitall", "Testall", "Waitsome", "Testsome"])
def test_one_of_several_requests_fails(ranks: Run, call: str) -> None:
    MPI = mpi()

    def body(comm: Any) -> Any:
        seen = []
        for statuses in ([MPI.Status(), MPI.Status()], None):
            short, long = np.zeros(1, "i"), np.zeros(4, "i")
            requests = [comm.Irecv(short, 0, 1), comm.Irecv(long, 0, 2)]
            for tag in (1, 2):
                comm.Send(np.full(4, tag, "i"), 0, tag)
            with pytest.raises(MPI.Exception) as failed:
                getattr(MPI.Request, call)(requests, statuses)
            assert long.tolist() == [2] * 4
            assert requests == [MPI.REQUEST_NULL] * 2
            seen.append(failed.value.Get_error_class())
            seen += [status.Get_error() for status in statuses or ()]
        return seen

    assert ranks(1, body) == [[MPI.ERR_IN_STATUS, MPI.ERR_TRUNCATE, MPI.SUCCESS, MPI.ERR_TRUNCATE]]
