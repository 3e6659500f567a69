"""The meeting of ranks where rank 0 serves the store: at an address, through a launcher's values, as the user says."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import pytest

from tests.transports.groups import free_port
from transports.errors import ConfigError, RendezvousError
from transports.launchers import dialing, find, meet, serving
from transports.launchers.address import AtAddress
from transports.launchers.given import GivenByHand
from transports.launchers.keyvalue import KeyValue, Published
from transports.launchers.serving import derived_ports
from transports.launchers.ways import History, Meeting, Way
from transports.rendezvous import MemoryStore, TcpStore, TcpStoreServer, join, open_store
from transports.rendezvous import server as store_server
from transports.store import Store

SECRET = "5a" * 16
BOUND = 60.0


class Ranks:
    """Ranks as threads, each with the resources of its meetings."""

    def __init__(self, size: int, pool: ThreadPoolExecutor) -> None:
        self.size = size
        self._pool = pool

    def meet(
        self, ways: Sequence[Way], histories: Sequence[History] = (), job: str = "job", patience: float = BOUND
    ) -> list[bytes]:
        """Meet, say hello to each other, leave; the secrets of all ranks."""
        outcomes: list[Future[bytes]] = [
            self._pool.submit(self.rank, rank, way, histories[rank] if histories else History(), job, patience)
            for rank, way in enumerate(ways)
        ]
        return [outcome.result(BOUND) for outcome in outcomes]

    def rank(self, rank: int, way: Way, history: History, job: str, patience: float) -> bytes:
        with contextlib.ExitStack() as resources:
            deadline = time.monotonic() + patience
            meeting = Meeting(rank, self.size, job, history, True, "", deadline, None, resources)
            store, secret = way.open(meeting)
            history.number += 1
            group = join(rank, self.size, store, secret=secret, generation=None, deadline=deadline)
            group.store.set(f"from {rank}", b"hello")
            for peer in range(self.size):
                assert group.store.get(f"from {peer}", deadline) == b"hello"
            return secret


@pytest.fixture
def three() -> Iterator[Ranks]:
    with ThreadPoolExecutor(3) as pool:
        yield Ranks(3, pool)


@pytest.mark.parametrize("by_hand", [False, True])
def test_address_of_a_job(three: Ranks, by_hand: bool) -> None:
    """Twice, as after `shutdown`: the second time a fast rank may still find the server of the first meeting."""
    env = {"RONDE_SECRET": SECRET}
    way = GivenByHand(env, f"tcp://localhost:{free_port()}") if by_hand else AtAddress(env, "localhost")
    histories = [History() for _ in range(3)]
    for _ in range(2):
        assert three.meet([way] * 3, histories) == [bytes.fromhex(SECRET)] * 3


@pytest.mark.parametrize("kind", ["address", "folder"])
def test_a_job_whose_id_is_not_utf_8(three: Ranks, tmp_path: Path, kind: str) -> None:
    env = {"RONDE_SECRET": SECRET}
    way = AtAddress(env, "localhost") if kind == "address" else GivenByHand(env, (tmp_path / "store").as_uri())
    assert three.meet([way] * 3, job=os.fsdecode(b"job \xff")) == [bytes.fromhex(SECRET)] * 3


def test_fixed_port(three: Ranks) -> None:
    way = AtAddress({"RONDE_SECRET": SECRET, "RONDE_PORT": str(free_port())}, "localhost")
    assert three.meet([way] * 3) == [bytes.fromhex(SECRET)] * 3


def test_ports_of_jobs() -> None:
    ports = derived_ports("job")
    assert ports == derived_ports("job") != derived_ports("another")
    assert len(ports) == 8
    assert all(10000 <= port < 32768 for job in range(100) for port in derived_ports(str(job)))


@pytest.mark.parametrize("strangers", ["secret", "purpose", "no store"])
def test_other_services_at_the_ports_are_passed_over(
    strangers: str, three: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialing, "ATTEMPT_SECONDS", 0.1)
    way = AtAddress({"RONDE_SECRET": SECRET}, "localhost")
    secret = b"of another job altogether" if strangers == "secret" else bytes.fromhex(SECRET)
    with contextlib.ExitStack() as opened:
        for port in derived_ports("job")[:2]:
            if strangers == "no store":
                opened.enter_context(socket.create_server(("127.0.0.1", port)))
            else:
                opened.enter_context(TcpStoreServer("127.0.0.1", port, secret=secret, purpose=b"store of another"))
        assert three.meet([way] * 3) == [bytes.fromhex(SECRET)] * 3


def test_two_jobs_with_the_same_ports_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [free_port(), free_port()]
    monkeypatch.setattr("transports.launchers.address.derived_ports", lambda job: ports)
    way = AtAddress({"RONDE_SECRET": SECRET}, "localhost")
    with ThreadPoolExecutor(6) as pool, ThreadPoolExecutor(2) as jobs:
        ranks = Ranks(3, pool)
        outcomes = [jobs.submit(ranks.meet, [way] * 3, (), job) for job in ("one", "two")]
        assert [len(outcome.result(BOUND)) for outcome in outcomes] == [3, 3]


def test_rank_0_that_does_not_come(three: Ranks) -> None:
    way = AtAddress({"RONDE_SECRET": SECRET, "RONDE_PORT": str(free_port())}, "localhost")
    with contextlib.ExitStack() as resources:
        meeting = Meeting(1, 3, "job", History(), True, "", time.monotonic() + 0.1, None, resources)
        with pytest.raises(RendezvousError, match=r"^rank 1 of 3 .*store that rank 0 serves.*refused"):
            way.open(meeting)


def test_name_that_never_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str, *_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, f"{host} is not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    way = AtAddress({"RONDE_SECRET": SECRET}, "rank-0.invalid")
    with contextlib.ExitStack() as resources:
        meeting = Meeting(1, 3, "job", History(), False, "", time.monotonic() + 0.1, None, resources)
        with pytest.raises(RendezvousError, match=r"rank-0\.invalid"):
            way.open(meeting)


def test_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.ExitStack() as resources:
        way = AtAddress({"RONDE_SECRET": SECRET, "RONDE_PORT": str(taken.getsockname()[1])}, "localhost")
        meeting = Meeting(0, 3, "job", History(), True, "", time.monotonic() + 1, None, resources)
        with pytest.raises(RendezvousError, match=r"^rank 0 .*store.*in use"):
            way.open(meeting)


# A launcher's values


class Values(KeyValue):
    """A launcher's dictionary, between threads."""

    def __init__(self, size: int) -> None:
        self.held: dict[str, bytes] = {}
        self._barrier = threading.Barrier(size)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def put(self, key: str, value: bytes, deadline: float) -> None:
        assert key not in self.held
        self.held[key] = value

    def fence(self, deadline: float) -> None:
        self._barrier.wait(max(0.0, deadline - time.monotonic()))

    def get(self, key: str, deadline: float) -> bytes:
        return self.held[key]


def test_published_address(three: Ranks) -> None:
    values = Values(3)
    way = Published("a dictionary", lambda deadline: values)
    histories = [History() for _ in range(3)]
    secrets = [secret for _ in range(3) for secret in three.meet([way] * 3, histories)]
    assert len(secrets[0]) == 32
    assert set(secrets) == {secrets[0]}
    assert len(values.held) == 1  # later meetings do not use the launcher's means


def test_rank_0_that_cannot_serve_tells_all(three: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def listening(meeting: Meeting, host: str | None) -> list[str]:
        raise ConfigError("interface='ib0': is no interface of this machine")

    monkeypatch.setattr(serving, "listening_addresses", listening)
    values = Values(3)
    way = Published("a dictionary", lambda deadline: values)
    with ThreadPoolExecutor(3) as pool:
        outcomes = [pool.submit(three.rank, rank, way, History(), "job", BOUND) for rank in range(3)]
        for outcome in outcomes:
            with pytest.raises(ConfigError, match="interface='ib0'"):
                outcome.result(BOUND)


@pytest.mark.parametrize("offer", [b"\xc1", b"\xc0", b"\x93\x01\x02\x03"])
def test_offer_that_is_none(offer: bytes) -> None:
    values = Values(1)
    values.held["ronde"] = offer
    way = Published("a dictionary", lambda deadline: values)
    with contextlib.ExitStack() as resources, pytest.raises(RendezvousError, match="rank 0 published"):
        way.open(Meeting(1, 2, "job", History(), True, "", time.monotonic() + 1, None, resources))


# The user's store


def test_address_by_hand_that_somebody_else_serves(three: Ranks) -> None:
    with TcpStoreServer("127.0.0.1", secret=bytes.fromhex(SECRET)) as server:
        way = GivenByHand({"RONDE_SECRET": SECRET}, server.url)
        assert three.meet([way] * 3) == [bytes.fromhex(SECRET)] * 3


def test_address_by_hand_whose_port_another_program_has(three: Ranks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        way = GivenByHand({"RONDE_SECRET": SECRET}, f"tcp://127.0.0.1:{stranger.getsockname()[1]}")
        with pytest.raises(RendezvousError, match=os.strerror(errno.EADDRINUSE)):
            three.rank(0, way, History(), "job", 0.2)


def test_shared_folder(three: Ranks, tmp_path: Path) -> None:
    way = GivenByHand({}, (tmp_path / "store").as_uri())
    (secret, *others) = three.meet([way] * 3)
    assert len(secret) == 32
    assert others == [secret] * 2
    assert three.meet([way] * 3, job="another") != [secret] * 3
    given = GivenByHand({"RONDE_SECRET": SECRET}, (tmp_path / "other").as_uri())
    assert three.meet([given] * 3) == [bytes.fromhex(SECRET)] * 3


def test_environment_by_hand_and_a_world_of_one(tmp_path: Path) -> None:
    def open_with(env: dict[str, str], resources: contextlib.ExitStack) -> tuple[Store, bytes]:
        launch = find(env)
        assert launch is not None
        return meet(
            launch, history=History(), interface="", deadline=time.monotonic() + BOUND, tls=None, resources=resources
        )

    with contextlib.ExitStack() as resources:
        store, secret = open_with({"PMI_RANK": "0", "PMI_SIZE": "1"}, resources)
        assert isinstance(store, MemoryStore)
        assert secret == b""
    with contextlib.ExitStack() as resources:
        env = {"RONDE_RANK": "0", "RONDE_SIZE": "2", "RONDE_STORE": f"tcp://127.0.0.1:{free_port()}"}
        store, secret = open_with(env | {"RONDE_SECRET": SECRET}, resources)
        store.set("key", b"value")
        assert secret == bytes.fromhex(SECRET)


# The server


def test_listening_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1", "fe80::1%eth0"], "eth1": ["10.1.0.1", "fd00::2"], "x": []}
    monkeypatch.setattr(serving, "interfaces", lambda: found)

    def addresses(one_host: bool = False, interface: str = "", host: str | None = None) -> list[str]:
        meeting = Meeting(0, 2, "", History(), one_host, interface, 0.0, None, contextlib.ExitStack())
        return serving.listening_addresses(meeting, host)

    assert addresses() == ["10.0.0.1", "10.1.0.1", "fd00::2", "127.0.0.1"]
    assert addresses(host="node0") == addresses()
    assert addresses(one_host=True) == addresses(interface="lo") == addresses(host="localhost") == ["127.0.0.1"]
    assert addresses(host="127.0.0.2") == ["127.0.0.2"]


def leave_after(seconds: float, server: TcpStoreServer, done: Callable[[], None]) -> threading.Thread:
    """A client that leaves after some time."""
    store = open_store(server.url, b"a secret of some length", time.monotonic() + BOUND)
    store.set("key", b"value")

    def leave() -> None:
        time.sleep(seconds)
        done()
        store.close()

    thread = threading.Thread(target=leave)
    thread.start()
    return thread


def test_server_waits_for_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_server, "LINGER_SECONDS", BOUND)
    with TcpStoreServer("127.0.0.1", secret=b"a secret of some length") as server:
        server.drain()  # nobody came
        left = threading.Event()
        thread = leave_after(0.1, server, left.set)
        with monkeypatch.context() as brief:
            brief.setattr(store_server, "LINGER_SECONDS", 0.01)
            server.drain()
        assert not left.is_set()
        server.drain()
        assert left.is_set()
        thread.join()


def test_server_on_several_addresses() -> None:
    with TcpStoreServer(["127.0.0.1", "127.0.0.2"], secret=b"a secret of some length") as server:
        assert [host for host, _ in server.addresses] == ["127.0.0.1", "127.0.0.2"]
        for number, (host, port) in enumerate(server.addresses):
            with contextlib.closing(TcpStore(host, port, b"a secret of some length")) as store:
                assert store.add("clients", 1) == number + 1


def test_client_for_another_purpose_is_refused() -> None:
    with TcpStoreServer("127.0.0.1", secret=b"a secret of some length", purpose=b"one") as server:
        host, port = server.address
        client = TcpStore(host, port, b"a secret of some length", purpose=b"two")
        with contextlib.closing(client) as store, pytest.raises(RendezvousError, match=r"reset|closed"):
            store.peek("key")
