"""The transport over a fake NCCL: how ranks meet, calls, polling, failures, aborts, ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.gpu.machine import FakeNccl, Machine
from tests.transports.groups import groups, soon
from transports import registry
from transports.base import Group, Transport
from transports.errors import (
    AbortedError,
    ConfigError,
    DeadlineExceeded,
    MismatchError,
    PeerLost,
    RondeError,
    TransportError,
)
from transports.local import LocalTransport
from transports.native import NativeCollectives, NativeGroup, NotNative
from transports.nccl import INSTALL, NcclTransport, Options, create, missing, usable
from transports.nccl.api import IN_PROGRESS, INVALID_ARGUMENT, REMOTE, NcclError
from transports.nccl.bootstrap import Assembly, identity
from transports.rendezvous.bootstrap import open_store
from transports.rendezvous.server import TcpStoreServer
from transports.testing import check_transport, run_threads

TAG = 5 << 32
BODY_SECONDS = 40.0


class Bench:
    """One rank of a test."""

    def __init__(self, machine: Machine, transport: NcclTransport, api: FakeNccl) -> None:
        self.machine = machine
        self.transport = transport
        self.api = api
        self.rank = transport.rank
        self.size = transport.size
        self.stream = machine.handle()
        self.kept: list[Any] = []

    @property
    def native(self) -> NativeCollectives:
        native = self.transport.ability(NativeCollectives)
        assert native is not None
        return native

    def join(self, key: str = "all", deadline: float | None = None) -> NativeGroup:
        ranks = tuple(range(self.size))
        return self.native.join(key, ranks, self.rank, TAG, soon() if deadline is None else deadline)

    def memory(self, values: Any) -> np.ndarray[Any, Any]:
        """Device memory that holds `values`."""
        values = np.asarray(values)
        raw = self.machine.allocate(values.nbytes)
        made = raw[: values.nbytes].view(values.dtype).reshape(values.shape)
        made[...] = values
        self.kept.append(made)
        return made

    def finish(self, group: NativeGroup, keep: object = None) -> None:
        """End a call and wait until the device has done it."""
        group.leave(self.stream, keep)
        self.machine.synchronize(lambda: self.machine.drained(self.stream))

    def wait_for_failure(self) -> RondeError:
        deadline = time.monotonic() + 10
        while self.transport.failure is None:
            assert time.monotonic() < deadline, "nothing failed"
            time.sleep(0.001)
        return self.transport.failure


def at(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


def on_ranks(
    body: Callable[[Bench], Any], size: int = 2, machine: Machine | None = None, given: Sequence[Group] | None = None
) -> list[Any]:
    """Run body(bench) on `size` threads, each with a device of its own."""
    machine = machine or Machine(size)
    opened = threading.Barrier(size)
    made = groups(size) if given is None else given

    def run(rank: int) -> Any:
        machine.device = rank % machine.devices
        api = FakeNccl(machine)
        transport = NcclTransport(LocalTransport(made[rank]), lambda: api, lambda: None)
        try:
            transport.open(soon())
            opened.wait(10)
            return body(Bench(machine, transport, api))
        except BaseException as error:
            transport.abort(AbortedError(f"a test failed: {error!r}"))
            raise
        finally:
            transport.close(soon())

    results = run_threads(run, size, timeout=BODY_SECONDS)
    assert machine.violations == []
    return results


# ---- the contract, and the registry


def test_it_keeps_the_contract_of_transports() -> None:
    def make(group: Group) -> Transport:
        return NcclTransport(LocalTransport(group), lambda: FakeNccl(Machine(group.size)), lambda: None)

    report = check_transport(make, sizes=(1, 2, 3))
    assert report.transport == "nccl"
    assert len(report.outcomes) > 50


def test_without_the_packages_the_error_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.nccl._there", lambda name: name == "cupy")
    assert missing() == f"NCCL needs nccl, cuda.bindings, not installed: {INSTALL}"
    assert usable() == missing()
    assert "-m pip install 'ronde[cuda12]'" in INSTALL
    assert "\n" not in INSTALL
    with pytest.raises(ConfigError, match=r"ronde\[cuda12\]"):
        create(groups(1)[0], Options())


def test_without_a_gpu_it_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.nccl.missing", lambda: None)
    monkeypatch.setattr("transports.nccl._DEVICE_FILES", ("/nowhere/nvidia*",))
    assert usable() == "no NVIDIA GPU was found: none of /nowhere/nvidia* exists"


def test_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.options_class("nccl") is Options
    monkeypatch.setattr("transports.nccl.missing", lambda: None)
    transport = create(groups(1)[0], Options("local", ("eager_bytes=7",)))
    assert isinstance(transport, NcclTransport)
    assert isinstance(transport.host, LocalTransport)
    with pytest.raises(ConfigError, match=r"host='nccl': .*another transport"):
        Options("nccl")
    with pytest.raises(ConfigError, match=r"'local' .*'speed'"):
        create(groups(1)[0], Options("local", ("speed=7",)))


# ---- how ranks meet


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_meet_over_a_tcp_store(size: int) -> None:
    """The id has NUL bytes, and all 128 must arrive."""
    with TcpStoreServer("127.0.0.1", secret=b"a secret for tests only") as server:
        stores = [open_store(server.url, b"a secret for tests only", soon()) for _ in range(size)]
        try:
            made = [
                Group(group.rank, group.members, store.prefixed("g"), group.secret)
                for group, store in zip(groups(size), stores, strict=True)
            ]
            ids = on_ranks(lambda bench: [bench.join().size, bench.join("again").rank], size, given=made)
        finally:
            for store in stores:
                store.close()
    assert ids == [[size, rank] for rank in range(size)]


def test_the_unique_id_is_keyed_by_generation() -> None:
    """Ranks of different generations, in one store, do not read each other's ids."""
    machine = Machine(1)
    (first,) = groups(1)
    ids = []
    for generation in (0, 1):
        group = Group(0, first.members, first.store, first.secret, generation)
        api = FakeNccl(machine)
        assembly = Assembly(group, (0,), "all", lambda: None)
        meeting = assembly.meet(lambda api=api: (api, identity(api, api.device(0), "here")), soon())  # type: ignore[misc]
        assert b"\0" in meeting.unique_id
        assert len(meeting.unique_id) == 128
        ids.append(meeting.unique_id)
    assert ids[0] != ids[1]
    assert [first.store.get(f"nccl/{generation}/all/verdict", soon()) for generation in (0, 1)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda bench: setattr(bench.api, "version", lambda: 22800 + bench.rank), r"rank 0 .* NCCL 2.28.0, rank 1 "
         r".* 2.28.1; "),
        (lambda bench: setattr(bench.machine, "nccl_version", 21705), r"rank 0 .* NCCL 2\.17\.5; .*2\.18\.0"),
        (lambda bench: setattr(bench.machine, "id_error", "no network"), r"rank 0 .*unique id: no"),
        (lambda bench: setattr(bench.machine, "uuids", ["GPU-a", "GPU-a"]), r"rank 0 .* rank 1 .* same GPU "
         r"\(a GPU that is not there, GPU-a\)"),
        (lambda bench: setattr(bench.machine, "devices", 1), r"rank 1 .*: .*device 1"),
        (lambda bench: bench.machine.call_errors.update({(1, "init"): 5}), r"init failed"),
    ],
    ids=["versions differ", "too old", "no id", "one GPU", "no device", "init fails"],
)  # fmt: skip
def test_an_obstacle_on_one_rank_raises_on_all(spoil: Callable[[Bench], None], message: str) -> None:
    """Every rank raises the same, nobody waits, and the transport is sound."""

    def body(bench: Bench) -> str:
        spoil(bench)
        with pytest.raises(NotNative, match=message) as caught:
            bench.join()
        assert bench.transport.failure is None
        swap(bench)
        return caught.value.message.split(": ")[-1]

    first, second = on_ranks(body)
    assert first == second


def swap(bench: Bench) -> None:
    """The transport works."""
    buffer = bytearray(1)
    right, left = (bench.rank + 1) % bench.size, (bench.rank - 1) % bench.size
    receiving = bench.transport.irecv(left, 1, memoryview(buffer))
    bench.transport.isend(right, 1, memoryview(bytes([bench.rank]))).wait(soon())
    receiving.wait(soon())
    assert buffer[0] == left


def test_ranks_may_share_a_gpu_where_nccl_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(2)
    machine.uuids = ["GPU-a", "GPU-a"]
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")

    def refused(bench: Bench) -> None:
        with pytest.raises(NotNative, match=r"rank 0 .*rank 1 .*same GPU"):
            bench.join()

    on_ranks(refused, machine=machine)
    machine.nccl_version = 23000
    assert on_ranks(lambda bench: bench.join().size, machine=machine) == [2, 2]


def test_one_rank_without_nccl_is_enough_for_a_refusal() -> None:
    """A rank without a GPU says so when it opens the transport, and never comes to a meeting."""

    def body(bench: Bench) -> None:
        if bench.rank == 0:
            with pytest.raises(NotNative, match=r"rank 1 .*: no GPU"):
                bench.join()

    machine, made = Machine(2), groups(2)
    opened, done = threading.Barrier(2), threading.Barrier(2)

    def run(rank: int) -> None:
        transport = NcclTransport(
            LocalTransport(made[rank]), lambda: FakeNccl(machine), lambda: "no GPU here" if rank else None
        )
        transport.open(soon())
        opened.wait(10)
        body(Bench(machine, transport, FakeNccl(machine)))
        done.wait(10)
        transport.close(soon())

    run_threads(run, 2, timeout=BODY_SECONDS)


def test_a_rank_that_does_not_come_is_named() -> None:
    together = threading.Barrier(3)

    def body(bench: Bench) -> None:
        if bench.rank != 1:
            with pytest.raises(DeadlineExceeded, match=r"rank 1 .* did not come .*NCCL communicator"):
                bench.join(deadline=time.monotonic() + 0.5)
        together.wait(10)

    on_ranks(body, 3)


def test_a_communicator_that_is_never_made_is_aborted() -> None:
    machine = Machine(2)
    machine.hung_inits.add(1)

    def body(bench: Bench) -> list[str]:
        with pytest.raises((DeadlineExceeded, NotNative), match="in time"):
            bench.join(deadline=time.monotonic() + 0.5)
        assert bench.transport.failure is None
        return bench.api.calls

    assert on_ranks(body, machine=machine) == [["init", "abort"]] * 2


def test_an_abort_ends_the_meeting() -> None:
    def body(bench: Bench) -> None:
        if bench.rank == 1:
            bench.transport.abort(AbortedError("enough", rank=1))
        else:
            with pytest.raises(AbortedError, match="enough"):
                bench.join()

    on_ranks(body)


# ---- calls


def test_every_collective() -> None:
    def body(bench: Bench) -> None:
        group, rank, size, stream = bench.join(), bench.rank, bench.size, bench.stream
        x = bench.memory(np.arange(6, dtype=np.float32) + rank)
        y = bench.memory(np.zeros(6, np.float32))
        wide = bench.memory(np.zeros(6 * size, np.float32))

        def call(enqueue: Callable[[], None]) -> None:
            group.enter(7, soon(), "a call")
            enqueue()
            bench.finish(group)

        whole = [np.arange(6, dtype=np.float32) + other for other in range(size)]
        call(lambda: group.all_reduce(at(x), at(y), 6, "float32", "sum", stream))
        np.testing.assert_array_equal(y, sum(whole))
        call(lambda: group.all_reduce(at(x), at(y), 6, "float32", "average", stream))
        np.testing.assert_allclose(y, sum(whole) / np.float32(size))
        call(lambda: group.all_reduce(at(x), at(y), 6, "float32", "sum", stream, 0.5))
        np.testing.assert_array_equal(y, sum(whole) * np.float32(0.5))
        call(lambda: group.all_reduce(at(x), at(y), 6, "float32", "average", stream, 3.0))
        np.testing.assert_array_equal(y, sum(part * np.float32(3 / size) for part in whole))
        call(lambda: group.all_reduce(at(x), at(y), 3, "complex64", "sum", stream))
        np.testing.assert_array_equal(y, sum(whole))
        y[:] = 0
        call(lambda: group.reduce(at(x), at(y) if rank == 1 else 0, 6, "float32", "max", 1, stream, None))
        np.testing.assert_array_equal(y, whole[-1] if rank == 1 else np.zeros(6))
        call(lambda: group.reduce_scatter(at(x), at(y), 6 // size, "float32", "sum", stream))
        np.testing.assert_array_equal(y[: 6 // size], sum(whole)[rank * 6 // size : (rank + 1) * 6 // size])
        call(lambda: group.broadcast(at(x), at(y), 24, 2, stream))
        np.testing.assert_array_equal(y, whole[2])
        call(lambda: group.all_gather(at(x), at(wide), [24] * size, stream))
        np.testing.assert_array_equal(wide, np.concatenate(whole))
        sizes = [8, 0, 12]
        call(lambda: group.all_gather(at(x), at(wide), sizes, stream))
        np.testing.assert_array_equal(wide[:5], [0, 1, 2, 3, 4])
        wide[:] = 0
        call(lambda: group.gather(at(x), at(wide) if rank == 1 else 0, sizes, 1, stream))
        np.testing.assert_array_equal(wide[:5], [0, 1, 2, 3, 4] if rank == 1 else np.zeros(5))
        call(lambda: group.scatter(at(x), at(y), sizes, 0, stream))
        np.testing.assert_array_equal(y[: sizes[rank] // 4], np.arange(6)[sum(sizes[:rank]) // 4 :][: sizes[rank] // 4])
        table = np.arange(9).reshape(3, 3) * 4 % 12
        sent, received = table[rank].tolist(), table[:, rank].tolist()
        call(lambda: group.alltoall(at(x), at(wide), sent, received, stream))
        parts = [whole[o][sum(table[o, :rank]) // 4 :][: table[o, rank] // 4] for o in range(size)]
        np.testing.assert_array_equal(wide[: sum(received) // 4], np.concatenate(parts))

    on_ranks(body, 3)


def test_every_call_is_polled_until_nccl_has_begun_it() -> None:
    """The fake fails if a call comes while the one before is in progress."""
    machine = Machine(2)
    machine.busy_polls = 3

    def body(bench: Bench) -> None:
        group = bench.join()
        x = bench.memory(np.ones(4, np.float32))
        for number in range(3):
            group.enter(number, soon(), "a call")
            group.all_reduce(at(x), at(x), 4, "float32", "sum", bench.stream)
            group.all_gather(at(x), at(x), [4, 8], bench.stream)
            bench.finish(group)

    on_ranks(body, machine=machine)


def test_calls_enqueued_together_are_one_operation() -> None:
    """Sends before receives on both ranks: only as a group can that end."""

    def body(bench: Bench) -> list[str]:
        group, peer = bench.join(), 1 - bench.rank
        x, y = bench.memory(np.full(3, bench.rank, np.int32)), bench.memory(np.zeros(3, np.int32))
        group.enter(1, soon(), "an exchange")
        with group.together():
            group.send(peer, at(x), 12, bench.stream)
            group.receive(peer, at(y), 12, bench.stream)
        bench.finish(group)
        np.testing.assert_array_equal(y, [peer] * 3)
        return bench.api.calls

    assert on_ranks(body) == [["init", "send", "recv", "group_end", "finalize", "destroy"]] * 2


def test_memory_is_kept_until_the_device_is_done() -> None:
    """Without that the fake finds an access to memory that was given up."""
    machine = Machine(2)
    together = threading.Barrier(2)

    def body(bench: Bench) -> None:
        group = bench.join()
        memory = machine.allocate(16)
        release = machine.gate(bench.stream)
        group.enter(1, soon(), "a call")
        group.all_reduce(memory.ctypes.data, memory.ctypes.data, 4, "float32", "sum", bench.stream)
        group.leave(bench.stream, memory)
        address = memory.ctypes.data
        del memory
        time.sleep(0.1)  # the watch looks, and the device has not come past
        assert machine.has(address)
        together.wait(10)
        release()
        machine.synchronize(lambda: machine.drained(bench.stream))
        deadline = time.monotonic() + 10
        while machine.has(address):
            assert time.monotonic() < deadline, "the memory is kept though the device is done"
            time.sleep(0.001)

    on_ranks(body, machine=machine)
    assert machine.events == 0


# ---- failures


def test_calls_that_do_not_fit_together_are_noticed_while_the_device_hangs() -> None:
    def body(bench: Bench) -> str:
        group = bench.join()
        x = bench.memory(np.ones(8, np.float32))
        count = 4 + 4 * bench.rank
        group.enter(count, soon(), "a call")
        group.all_reduce(at(x), at(x), count, "float32", "sum", bench.stream)
        group.leave(bench.stream, x)
        failure = bench.wait_for_failure()
        machine.synchronize(lambda: machine.drained(bench.stream))  # the abort has freed the stream
        with pytest.raises(MismatchError):
            group.enter(9, soon(), "another")
        return type(failure).__name__

    machine = Machine(2)
    assert on_ranks(body, machine=machine) == ["MismatchError"] * 2


def test_a_call_whose_time_is_over_is_aborted() -> None:
    """Rank 1 never calls; the kernel of rank 0 must not wait for ever."""

    def body(bench: Bench) -> list[str]:
        group = bench.join()
        x = bench.memory(np.ones(4, np.float32))
        if bench.rank == 0:
            group.enter(1, time.monotonic() + 0.2, "allreduce(float32)")
            group.all_reduce(at(x), at(x), 4, "float32", "sum", bench.stream)
            group.leave(bench.stream, x)
        failure = bench.wait_for_failure()
        assert isinstance(failure, DeadlineExceeded)
        assert "NCCL did not end in time: allreduce(float32)" in failure.message
        bench.machine.synchronize(lambda: bench.machine.drained(bench.stream))
        bench.transport.close(soon())
        return bench.api.calls

    first, second = on_ranks(body)
    assert first == ["init", "all_reduce", "abort"]
    assert second == ["init", "abort"]


def test_a_call_that_nccl_does_not_begin_in_time_is_aborted() -> None:
    machine = Machine(1)

    def body(bench: Bench) -> None:
        group = bench.join()
        x = bench.memory(np.ones(4, np.float32))
        machine.busy_polls = 10**9
        group.enter(1, time.monotonic() + 0.1, "a call")
        with pytest.raises(DeadlineExceeded, match=r"NCCL did not begin .*: a call"):
            group.all_reduce(at(x), at(x), 4, "float32", "sum", bench.stream)
        assert bench.api.calls[-1] == "abort"
        with pytest.raises(DeadlineExceeded):
            group.enter(2, soon(), "another")

    on_ranks(body, 1, machine)


@pytest.mark.parametrize(
    ("code", "kind"), [(REMOTE, PeerLost), (2, PeerLost), (3, TransportError), (INVALID_ARGUMENT, TransportError)]
)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failure_of_nccl_aborts_all_ranks(code: int, kind: type[RondeError], asynchronous: bool) -> None:
    def body(bench: Bench) -> RondeError:
        group = bench.join()
        x = bench.memory(np.ones(4, np.float32))
        if bench.rank == 0:
            group.enter(1, soon(), "a call")
            if asynchronous:
                group.all_reduce(at(x), at(x), 4, "float32", "sum", bench.stream)
                group.leave(bench.stream, x)
                bench.machine.fail(bench.machine.comms(0)[0], code)
            else:
                bench.machine.call_errors[0, "all_reduce"] = code
                with pytest.raises(kind, match=r"NCCL: .*all_reduce"):
                    group.all_reduce(at(x), at(x), 4, "float32", "sum", bench.stream)
        failure = bench.wait_for_failure()
        bench.machine.synchronize(lambda: bench.machine.drained(bench.stream))
        return failure

    for failure in on_ranks(body):
        assert type(failure) is kind
        assert "as it happens" in failure.message
        assert "a call" in failure.message


def test_a_group_that_is_left_in_the_middle_is_aborted() -> None:
    """NCCL enqueues what a group has when it ends, even after an exception; then only an abort helps."""

    def body(bench: Bench) -> list[str]:
        group = bench.join()
        x = bench.memory(np.ones(4, np.float32))
        if bench.rank == 0:
            group.enter(1, soon(), "a call")
            with pytest.raises(ZeroDivisionError):
                send_and_stumble(group, at(x), bench.stream)
        failure = bench.wait_for_failure()
        assert "left in the middle of a call: ZeroDivisionError" in failure.message
        return bench.api.calls

    assert on_ranks(body)[0] == ["init", "send", "group_end", "abort"]


def send_and_stumble(group: NativeGroup, address: int, stream: int) -> None:
    with group.together():
        group.send(1, address, 4, stream)
        raise ZeroDivisionError


def test_an_abort_of_the_transport_frees_the_device() -> None:
    def body(bench: Bench) -> None:
        group = bench.join()
        x = bench.memory(np.ones(4, np.float32))
        if bench.rank == 0:
            group.enter(1, soon(), "a call")
            group.all_reduce(at(x), at(x), 4, "float32", "sum", bench.stream)
            group.leave(bench.stream, x)
            bench.machine.synchronize(lambda: bench.machine.drained(bench.stream))
            assert isinstance(bench.transport.failure, AbortedError)
        else:
            time.sleep(0.05)
            bench.transport.abort(AbortedError("enough", rank=1))

    on_ranks(body)


def test_closing_waits_for_enqueued_calls_and_finalizes() -> None:
    machine = Machine(2)
    machine.busy_polls = 2

    def body(bench: Bench) -> list[str]:
        group = bench.join()
        x = bench.memory(np.full(4, bench.rank + 1, np.float32))
        group.enter(1, soon(), "a call")
        group.all_reduce(at(x), at(x), 4, "float32", "sum", bench.stream)
        group.leave(bench.stream, x)
        group.close(soon())
        group.close(soon())
        np.testing.assert_array_equal(x, [3] * 4)
        with pytest.raises(TransportError, match="closed"):
            group.enter(2, soon(), "another")
        return bench.api.calls

    assert on_ranks(body, machine=machine) == [["init", "all_reduce", "finalize", "destroy"]] * 2
    assert machine.events == 0


def test_closing_has_a_deadline() -> None:
    machine = Machine(1)

    def body(bench: Bench) -> list[str]:
        group = bench.join()
        x = bench.memory(np.ones(4, np.float32))
        release = machine.gate(bench.stream)
        group.enter(1, soon(), "a call")
        group.all_reduce(at(x), at(x), 4, "float32", "sum", bench.stream)
        group.leave(bench.stream, x)
        with pytest.raises(DeadlineExceeded, match="NCCL did not end"):
            group.close(time.monotonic() + 0.1)
        release()
        return bench.api.calls

    assert on_ranks(body, 1, machine) == [["init", "all_reduce", "abort"]]


def test_ranks_of_a_group_are_positions() -> None:
    """A group of some ranks, in another order: peers and roots count within it."""

    def body(bench: Bench) -> Any:
        if bench.rank == 1:
            return None
        group = bench.native.join("two", (2, 0), bench.rank, TAG, soon())
        x, y = bench.memory(np.full(2, bench.rank, np.int64)), bench.memory(np.zeros(4, np.int64))
        group.enter(1, soon(), "a call")
        group.all_gather(at(x), at(y), [16, 16], bench.stream)
        group.broadcast(at(x), at(x), 16, 0, bench.stream)
        bench.finish(group)
        np.testing.assert_array_equal(y, [2, 2, 0, 0])
        np.testing.assert_array_equal(x, [2, 2])
        with pytest.raises(ValueError, match=r"distinct, rank \d "):
            bench.native.join("bad", (1,), bench.rank, TAG, soon())
        return group.rank

    assert on_ranks(body, 3) == [1, None, 0]


def test_errors_carry_their_code() -> None:
    assert NcclError(IN_PROGRESS, "text").code == IN_PROGRESS
