"""The requests to a store when 10,000 ranks use proxies: the messages are counted, without processes and sockets."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Hashable

import pytest

from transports.packed import pack, unpack
from transports.rendezvous.book import Answer, Book, Desk
from transports.rendezvous.forwarder import HOLD_SECONDS, Forwarder
from transports.store import read_table

SIZE = 10_000
PER_HOST = 64
HOSTS = -(-SIZE // PER_HOST)
FAN_OUT = 32


class Cluster:
    """A store, and proxies above ranks, which deliver their messages when `run` is called.

    up       number of messages to each desk from those below, by operation; the store is None
    down     number of answers of each desk, and their bytes
    told     the answers that ranks got, by rank and number
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.up: dict[Hashable, Counter[str]] = {None: Counter()}
        self.down: Counter[Hashable] = Counter()
        self.bytes_down: Counter[Hashable] = Counter()
        self.told: dict[tuple[Hashable, int], Answer] = {}
        self.desks: dict[Hashable, Desk] = {None: Book(self._reply_of(None))}
        self._mail: deque[tuple[str, Hashable, Hashable, list[object]]] = deque()
        self._above: dict[Hashable, Hashable] = {}
        self._numbers = itertools.count()

    def add_proxy(self, name: Hashable, above: Hashable, below: int) -> None:
        """Put a proxy below a desk."""
        self.up[name] = Counter()
        self._above[name] = above
        self.desks[name] = Forwarder(
            self._reply_of(name), lambda request: self._mail.append(("up", name, above, request)), below
        )

    def add_rank(self, rank: int, above: Hashable) -> None:
        """Put a rank below a desk."""
        self._above[rank] = above

    def ask(self, rank: int, *request: object) -> int:
        """Let a rank ask; the number of its request."""
        number = next(self._numbers)
        self._mail.append(("up", rank, self._above[rank], [number, *request]))
        return number

    def run(self, seconds: float = 0.0) -> None:
        """Deliver all messages, then let time pass and deliver what follows."""
        self._deliver()
        self.now += seconds
        for desk in self.desks.values():
            desk.tick(self.now)
        self._deliver()

    def _deliver(self) -> None:
        while self._mail:
            way, sender, receiver, (number, *rest) = self._mail.popleft()
            assert isinstance(number, int)
            desk = self.desks.get(receiver)
            if way == "up":
                assert desk is not None
                self.up[receiver][str(rest[0])] += 1
                desk.ask(sender, number, rest, self.now)
            elif isinstance(desk, Forwarder):
                desk.answered(number, rest)
            else:
                self.told[receiver, number] = rest

    def _reply_of(self, name: Hashable) -> object:
        def reply(client: Hashable, number: int, answer: Answer) -> None:
            self.down[name] += 1
            self.bytes_down[name] += len(pack(answer))
            self._mail.append(("down", name, client, [number, *answer]))

        return reply


def on_hosts() -> Cluster:
    """10,000 ranks on 157 hosts, each with a proxy of the store."""
    cluster = Cluster()
    for host in range(HOSTS):
        cluster.add_proxy(("host", host), None, min(PER_HOST, SIZE - host * PER_HOST))
    for rank in range(SIZE):
        cluster.add_rank(rank, ("host", rank // PER_HOST))
    return cluster


def in_a_tree() -> Cluster:
    """The same, with each 32 hosts below one of them."""
    cluster = Cluster()
    for host in range(HOSTS):
        below = min((host + FAN_OUT) * PER_HOST, SIZE) - host * PER_HOST if host % FAN_OUT == 0 else PER_HOST
        above = None if host % FAN_OUT == 0 else ("host", host - host % FAN_OUT)
        cluster.add_proxy(("host", host), above, min(below, SIZE - host * PER_HOST))
    for rank in range(SIZE):
        cluster.add_rank(rank, ("host", rank // PER_HOST))
    return cluster


def gather(cluster: Cluster, table: str, ranks: range, size: int = SIZE) -> dict[int, int]:
    """Let ranks put a row each and wait for the table; the numbers of the requests that wait."""
    rows = {rank: f"{rank // PER_HOST:032x} node{rank // PER_HOST}.cluster {rank}".encode() for rank in ranks}
    puts = {rank: cluster.ask(rank, "put", table, pack([size, [[rank, row]]])) for rank, row in rows.items()}
    cluster.run(HOLD_SECONDS)
    assert all(cluster.told[rank, number] == ["ok", pack([None])] for rank, number in puts.items())
    waits = {rank: cluster.ask(rank, "get", table, 60.0) for rank in ranks}
    cluster.run()
    return waits


@pytest.mark.long
@pytest.mark.parametrize(("make", "above"), [(on_hosts, HOSTS), (in_a_tree, -(-HOSTS // FAN_OUT))])
def test_a_table_of_all_ranks_is_two_messages_per_proxy(make: object, above: int) -> None:
    assert callable(make)
    cluster = make()
    waits = gather(cluster, "members", range(SIZE))
    for rank in (0, 1, SIZE // 2, SIZE - 1):
        status, value = cluster.told[rank, waits[rank]]
        assert status == "ok"
        assert isinstance(value, bytes)
        assert len(read_table(value)) == SIZE
    assert len(cluster.told) == 2 * SIZE
    assert cluster.up[None] == {"put": above, "any": above}
    assert cluster.down[None] == 2 * above
    assert cluster.bytes_down[None] < above * 20 * SIZE, "the table goes down once per proxy"
    for host in range(HOSTS):
        ranks = min(PER_HOST, SIZE - host * PER_HOST)
        hosts = min(FAN_OUT, HOSTS - host) - 1 if make is in_a_tree and host % FAN_OUT == 0 else 0
        assert cluster.up["host", host] == {"put": ranks + hosts, "get": ranks, **({"any": hosts} if hosts else {})}


@pytest.mark.long
def test_a_rank_that_asks_later_gets_the_table_from_its_proxy() -> None:
    cluster = on_hosts()
    gather(cluster, "members", range(SIZE))
    before = cluster.up[None].total()
    number = cluster.ask(77, "get", "members", 60.0)
    cluster.run()
    assert cluster.told[77, number][0] == "ok"
    assert cluster.up[None].total() == before


@pytest.mark.long
def test_an_abort_wakes_all_ranks_by_one_message_per_host() -> None:
    cluster = on_hosts()
    waits = {
        rank: cluster.ask(rank, "any", f"wakeup/{rank}", pack([[f"wakeup/{rank}", "cause/first"], 3600.0]))
        for rank in range(SIZE)
    }
    cluster.run()
    assert cluster.up[None] == {"any": SIZE + HOSTS}
    assert not cluster.told
    cluster.down.clear()
    cluster.ask(5, "default", "cause/first", b"enough")
    cluster.run()
    assert cluster.down[None] == 1 + HOSTS
    assert all(cluster.told[rank, number] == ["ok", [1, b"enough"]] for rank, number in waits.items())


def test_rows_do_not_wait_long_for_a_late_rank() -> None:
    cluster = on_hosts()
    number = cluster.ask(3, "put", "members", pack([SIZE, [[3, b"early"]]]))
    cluster.run(HOLD_SECONDS / 2)
    assert (3, number) not in cluster.told
    cluster.run(HOLD_SECONDS)
    assert cluster.told[3, number] == ["ok", pack([None])]
    asked = cluster.ask(4, "rows", "members", None)
    cluster.run()
    status, value = cluster.told[4, asked]
    assert status == "ok"
    assert isinstance(value, bytes)


def test_the_store_decides_about_two_rows_for_one_place() -> None:
    cluster = on_hosts()
    first = cluster.ask(3, "put", "t", pack([SIZE, [[3, b"first"]]]))
    second = cluster.ask(4, "put", "t", pack([SIZE, [[3, b"second"]]]))
    other = cluster.ask(70, "put", "t", pack([9, [[4, b"another size"]]]))
    cluster.run(HOLD_SECONDS)
    assert cluster.told[3, first] == ["ok", pack([None])]
    for rank, number, text in ((4, second, "place=3: is taken"), (70, other, "size=9: table 't' has 10000 places")):
        status, result = cluster.told[rank, number]
        assert status == "ok"
        assert isinstance(result, bytes)
        assert unpack(result)[0].startswith(text)


def test_waits_end_in_time_and_are_answered_later_all_the_same() -> None:
    cluster = on_hosts()
    early = [cluster.ask(rank, "get", "key", 1.0) for rank in range(3)]
    cluster.run(2.0)
    assert [cluster.told[rank, number] for rank, number in enumerate(early)] == [["late", None]] * 3
    again = cluster.ask(1, "get", "key", 60.0)
    cluster.ask(9_000, "set", "key", b"value")
    cluster.run()
    assert cluster.told[1, again] == ["ok", b"value"]
    assert cluster.up[None] == {"any": 1, "set": 1}


def test_a_key_that_is_deleted_and_set_again_is_waited_for_again() -> None:
    cluster = on_hosts()
    for round_ in range(3):
        number = cluster.ask(1, "get", "wakeup/1", 60.0)
        cluster.run()
        assert (1, number) not in cluster.told
        cluster.ask(2, "set", "wakeup/1", b"%d" % round_)
        cluster.run()
        assert cluster.told[1, number] == ["ok", b"%d" % round_]
        assert cluster.ask(1, "delete", "wakeup/1", None)
        cluster.run()


def test_a_client_that_left_is_not_answered() -> None:
    cluster = on_hosts()
    number = cluster.ask(1, "get", "key", 60.0)
    cluster.run()
    cluster.desks["host", 0].forget(1)
    cluster.ask(2, "set", "key", b"value")
    cluster.run()
    assert (1, number) not in cluster.told
