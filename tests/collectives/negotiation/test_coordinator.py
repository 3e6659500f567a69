"""The state machines of the negotiation, without threads, with messages delivered in any order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.negotiation.coordinator import Coordinator
from collectives.negotiation.messages import JOIN, Announcement, Answer, Failure, bits, ranks_text
from collectives.negotiation.participant import Participant
from collectives.negotiation.response_cache import ResponseCache
from collectives.operations import Signature

SUM = Signature("allreduce", ("float32",), ((4,),), op="sum")
OTHER = Signature("allreduce", ("float32",), ((5,),), op="sum")
GATHER = Signature("allgather", ("float32",), ((),))


class Rank:
    """The state of a rank as its engine would keep it: operations in flight, run and failed."""

    def __init__(self, number: int) -> None:
        self.participant = Participant(holds_back=number > 0)
        self.in_flight: dict[str, Signature] = {}
        self.ran: list[str] = []
        self.failed: list[Failure] = []
        self.joined = False
        self.lasts: list[int] = []
        self.ended = False


class Network:
    """Ranks and their coordinator. Every message stays in a queue until `deliver` picks that queue."""

    def __init__(self, size: int, capacity: int = 4096) -> None:
        self.cache = ResponseCache(capacity)
        self.coordinator = Coordinator(range(size), self.cache)
        self.ranks = [Rank(number) for number in range(size)]
        self.up: list[deque[bytes]] = [deque() for _ in range(size)]
        self.down: list[deque[bytes]] = [deque() for _ in range(size)]
        self.messages = 0
        self.time = 0.0

    def submit(self, rank: int, name: str, signature: Signature = SUM) -> None:
        assert name not in self.ranks[rank].in_flight
        self.ranks[rank].in_flight[name] = signature
        self.ranks[rank].participant.submit(name, signature)
        self.announce(rank)

    def join(self, rank: int) -> None:
        self.ranks[rank].joined = True
        self.ranks[rank].participant.join()
        self.announce(rank)

    def leave(self, rank: int) -> None:
        self.ranks[rank].participant.leave()
        self.announce(rank)

    def withdraw(self, rank: int, name: str) -> None:
        self.ranks[rank].participant.withdraw(name)
        self.announce(rank)

    def announce(self, rank: int) -> None:
        announcement = self.ranks[rank].participant.announce()
        if announcement is None:
            return
        if rank:
            self.messages += 1
            self.up[rank].append(announcement.pack())
        else:
            self.coordinator.receive(0, announcement, self.time)
            self.decide()

    def decide(self) -> None:
        for ranks, answer in self.coordinator.decide():
            for rank in bits(ranks):
                self.messages += rank > 0
                if rank:
                    self.down[rank].append(answer.pack())
                else:
                    self.apply(0, answer)

    def apply(self, rank: int, answer: Answer) -> None:
        here = self.ranks[rank]
        for name, signature in here.participant.receive(answer):
            assert here.joined or here.in_flight[name] == signature, (
                "a rank runs an operation that it has not submitted"
            )
            here.in_flight.pop(name, None)
            here.ran.append(name)
        for failure in answer.failed:
            if failure.name == JOIN:
                here.joined = False
            else:
                del here.in_flight[failure.name]
            here.failed.append(failure)
        if answer.last >= 0:
            here.joined = False
            here.lasts.append(answer.last)
        here.ended |= answer.ended
        self.announce(rank)

    def queues(self) -> list[tuple[str, int]]:
        up = [("up", rank) for rank, queue in enumerate(self.up) if queue]
        return up + [("down", rank) for rank, queue in enumerate(self.down) if queue]

    def deliver(self, way: str, rank: int) -> None:
        if way == "up":
            self.coordinator.receive(rank, Announcement.unpack(self.up[rank].popleft()), self.time)
            self.decide()
        else:
            self.apply(rank, Answer.unpack(self.down[rank].popleft()))

    def deliver_all(self) -> None:
        while queues := self.queues():
            self.deliver(*queues[0])

    def submit_on_all(self, name: str, signature: Signature = SUM) -> None:
        for rank in range(len(self.ranks)):
            self.submit(rank, name, signature)


NAMES = [f"tensor {index}" for index in range(6)]


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, list[list[list[str]]]]:
    """A number of ranks and, for each, the same steps with their names in an order of its own."""
    size = draw(st.integers(1, 4))
    rounds = draw(st.lists(st.lists(st.sampled_from(NAMES), unique=True, min_size=1), min_size=1, max_size=4))
    return size, [[draw(st.permutations(names)) for names in rounds] for _ in range(size)]


@given(steps(), st.sampled_from([1, 2, 3, 100]), st.data())
def test_any_order_of_submissions_and_messages_gives_one_order_of_execution(
    case: tuple[int, list[list[list[str]]]], capacity: int, data: st.DataObject
) -> None:
    size, plans = case
    net = Network(size, capacity)
    todo = [[name for names in plan for name in names] for plan in plans]
    while True:
        ready = [
            ("submit", rank) for rank in range(size) if todo[rank] and todo[rank][0] not in net.ranks[rank].in_flight
        ]
        choices = ready + net.queues()
        if not choices:
            break
        kind, rank = data.draw(st.sampled_from(choices))
        if kind == "submit":
            net.submit(rank, todo[rank].pop(0))
        else:
            net.deliver(kind, rank)
    assert todo == [[]] * size, "a deadlock"
    assert all(not rank.in_flight for rank in net.ranks)
    assert all(rank.ran == net.ranks[0].ran for rank in net.ranks)
    assert sorted(net.ranks[0].ran) == sorted(name for names in plans[0] for name in names)
    assert not net.coordinator.pending


@given(
    st.integers(2, 4),
    st.lists(st.lists(st.sampled_from(NAMES), unique=True, max_size=6), min_size=4, max_size=4),
    st.sampled_from([1, 3, 100]),
    st.data(),
)
def test_join_with_unequal_numbers_of_operations(
    size: int, plans: list[list[str]], capacity: int, data: st.DataObject
) -> None:
    net = Network(size, capacity)
    actions = [[*plan, JOIN, "after", JOIN] for plan in plans[:size]]
    while True:
        ready = [
            ("act", rank)
            for rank in range(size)
            if actions[rank] and not net.ranks[rank].joined and actions[rank][0] not in net.ranks[rank].in_flight
        ]
        choices = ready + net.queues()
        if not choices:
            break
        kind, rank = data.draw(st.sampled_from(choices))
        if kind != "act":
            net.deliver(kind, rank)
        elif (name := actions[rank].pop(0)) == JOIN:
            net.join(rank)
        else:
            net.submit(rank, name)
    assert actions == [[]] * size, "a deadlock"
    assert all(not rank.in_flight and not rank.failed for rank in net.ranks)
    assert all(rank.ran == net.ranks[0].ran for rank in net.ranks)
    assert set(net.ranks[0].ran) == {name for plan in plans[:size] for name in plan} | {"after"}
    assert len(net.ranks[0].lasts) == 2
    assert all(rank.lasts == net.ranks[0].lasts for rank in net.ranks)
    assert not net.coordinator.pending


@pytest.mark.long
@given(st.integers(2, 4), st.sampled_from([1, 100]), st.data())
def test_leave_and_withdraw_leave_nothing_in_flight(size: int, capacity: int, data: st.DataObject) -> None:
    """Once all ranks have left, every operation has run on all ranks or failed on all that submitted it."""
    net = Network(size, capacity)
    signature = st.sampled_from([SUM, SUM, OTHER, GATHER])
    actions = [[*data.draw(st.lists(st.sampled_from([*NAMES, "withdraw"]), max_size=8)), "leave"] for _ in range(size)]
    while True:
        ready = [("act", rank) for rank in range(size) if actions[rank] and not net.ranks[rank].ended]
        choices = ready + net.queues()
        if not choices:
            break
        kind, rank = data.draw(st.sampled_from(choices))
        here = net.ranks[rank]
        if kind != "act":
            net.deliver(kind, rank)
            continue
        action = actions[rank].pop(0)
        if action == "leave":
            net.leave(rank)
        elif action == "withdraw":
            if here.in_flight:
                net.withdraw(rank, data.draw(st.sampled_from(sorted(here.in_flight))))
        elif action not in here.in_flight:
            net.submit(rank, action, data.draw(signature))
    assert all(here.ended or not here.in_flight for here in net.ranks)
    assert all(here.ran == net.ranks[0].ran for here in net.ranks)
    assert net.coordinator.ended
    assert not net.coordinator.pending


@pytest.mark.parametrize("size", [2, 5, 64])
def test_repeated_step_costs_one_message_each_way_per_rank(size: int) -> None:
    net = Network(size)
    for step in range(3):
        before = net.messages
        for rank in range(1, size):
            for name in NAMES:
                net.submit(rank, name)
        net.deliver_all()  # they wait for rank 0 and hold back all but their first name
        assert net.messages - before == size - 1
        for name in NAMES:
            net.submit(0, name)
        net.deliver_all()
        assert net.ranks[0].ran == net.ranks[-1].ran
        assert len(net.ranks[0].ran) == (step + 1) * len(NAMES)
        assert net.messages - before <= 4 * (size - 1)


def test_repeated_operation_is_announced_as_a_bit() -> None:
    net = Network(2)
    for name in NAMES:
        net.submit_on_all(name)
    net.deliver_all()
    net.submit(1, NAMES[2])
    announcement = Announcement.unpack(net.up[1][0])
    assert announcement == Announcement(version=len(NAMES), cached=1 << net.ranks[0].ran.index(NAMES[2]))
    assert len(net.up[1][0]) < 16


def test_ranks_holding_back_each_others_operation_are_released() -> None:
    net = Network(3)
    net.submit(1, "a")
    net.submit(1, "b")
    net.submit(2, "b")
    net.submit(2, "a")
    net.deliver_all()
    assert not net.ranks[1].ran
    net.submit(0, "b")
    net.deliver_all()
    assert [rank.ran for rank in net.ranks] == [["b"]] * 3
    net.submit(0, "a")
    net.deliver_all()
    assert [rank.ran for rank in net.ranks] == [["b", "a"]] * 3


def test_ranks_waiting_for_a_slow_rank_are_not_released() -> None:
    net = Network(3)
    for rank in (0, 1):
        for name in NAMES:
            net.submit(rank, name)
        net.deliver_all()
    assert net.messages == 1, "rank 1 is not released while its operations lack rank 2 too"


def test_mismatch_fails_one_name_on_all_ranks_with_a_table() -> None:
    net = Network(3)
    net.submit_on_all("good")
    net.submit(0, "bad", SUM)
    net.submit(1, "bad", OTHER)
    net.submit(2, "bad", SUM)
    net.deliver_all()
    for rank in net.ranks:
        assert rank.ran == ["good"]
        [failure] = rank.failed
        assert failure.error == "MismatchError"
        assert "'bad'" in failure.text
        assert "ranks 0 and 2: allreduce(float32 (4,), op=sum)" in failure.text
        assert "rank 1: allreduce(float32 (5,), op=sum)" in failure.text
    net.submit_on_all("bad", OTHER)
    net.deliver_all()
    assert all(rank.ran == ["good", "bad"] for rank in net.ranks)


def grouped(*shapes: tuple[int, ...], kind: str = "grouped_allreduce") -> Signature:
    return Signature(kind, ("float32",) * len(shapes), shapes)


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        (grouped((4,), (4,)), grouped((4,), (5,)), ["(float32 (4,), float32 (4,))", "(float32 (4,), float32 (5,))"]),
        (
            grouped((1,), (2,), (3,), (4,)),
            grouped((1,), (2,), (3,), (5,)),
            ["([3] float32 (4,), ... 4 arrays)", "([3] float32 (5,), ... 4 arrays)"],
        ),
        (
            grouped((1,), (2,), (3,), (4,), kind="grouped_allgather"),
            grouped((1,), (2,), (3,), (4,), (5,), kind="grouped_allgather"),
            ["(float32 (1,), float32 (2,), ... 4 arrays)", "(float32 (1,), float32 (2,), ... 5 arrays)"],
        ),
    ],
)
def test_a_mismatch_shows_the_arrays_that_differ(first: Signature, second: Signature, rows: list[str]) -> None:
    net = Network(2)
    net.submit(0, "bad", first)
    net.submit(1, "bad", second)
    net.deliver_all()
    [failure] = net.ranks[0].failed
    for rank, row in enumerate(rows):
        assert f"rank {rank}: {first.kind}{row}" in failure.text


@pytest.mark.parametrize(("first", "second"), [(SUM, OTHER), (OTHER, SUM)])
def test_mismatch_between_cached_and_uncached_operations(first: Signature, second: Signature) -> None:
    net = Network(2)
    net.submit_on_all("x", SUM)
    net.deliver_all()
    for known in (False, True):  # the second time both signatures are cached
        net.submit(0, "x", first)
        net.submit(1, "x", second)
        net.deliver_all()
        assert [len(rank.failed) for rank in net.ranks] == [1 + known] * 2
        net.submit_on_all("x", OTHER)
        net.deliver_all()
    assert net.ranks[0].ran == ["x"] * 3


def test_cache_is_bounded_and_an_announced_bit_survives_its_eviction() -> None:
    net = Network(3, capacity=2)
    net.submit_on_all("a")
    net.submit_on_all("b")
    net.deliver_all()
    net.submit(2, "a")  # the announcement is on its way when "a" is evicted
    for name in ("c", "d", "e"):
        net.submit(0, name)
        net.submit(1, name)
        net.ranks[2].in_flight[name] = SUM  # its announcement overtakes that of "a"
    bit = net.up[2].popleft()
    net.up[2].append(Announcement(2, 0, tuple((name, SUM) for name in ("c", "d", "e"))).pack())
    while queues := [(way, rank) for way, rank in net.queues() if way == "up" or rank != 2]:
        net.deliver(*queues[0])
    assert len(net.cache.entries) == 2
    assert net.cache.evicted
    net.up[2].append(bit)
    net.deliver_all()
    net.submit(0, "a")
    net.submit(1, "a")
    net.deliver_all()
    assert net.ranks[0].ran[-1] == "a"
    assert all(rank.ran == net.ranks[0].ran for rank in net.ranks)
    for _ in range(2):
        net.submit_on_all("f")
        net.deliver_all()
    assert not net.cache.evicted, "evicted entries are dropped once all ranks know of the eviction"


def test_collected_bit_survives_its_eviction() -> None:
    participant = Participant(holds_back=True)
    participant.receive(Answer(uncached=((0, "a", SUM),)))
    participant.submit("b", SUM)
    assert participant.announce() is not None
    participant.submit("a", SUM)
    assert participant.announce() is None, "held back"
    participant.receive(Answer(uncached=((0, "b", SUM),)))
    assert participant.announce() == Announcement(2, 0, (("a", SUM),))


def test_joined_ranks_take_part_in_allreduces_and_barriers_only() -> None:
    net = Network(3)
    net.join(1)
    for rank in (0, 2):
        net.submit(rank, "sum", SUM)
        net.submit(rank, "gather", GATHER)
        net.submit(rank, "largest", SUM._replace(op="max"))
        net.submit(rank, "barrier", Signature("barrier"))
    net.deliver_all()
    assert [sorted(rank.ran) for rank in net.ranks] == [["barrier", "largest", "sum"]] * 3
    assert [[failure.name for failure in rank.failed] for rank in net.ranks] == [["gather"], [], ["gather"]]
    assert "rank 1 joined" in net.ranks[0].failed[0].text
    net.join(2)
    net.join(0)
    net.deliver_all()
    assert [rank.lasts for rank in net.ranks] == [[2]] * 3 or [rank.lasts for rank in net.ranks] == [[0]] * 3
    net.submit_on_all("gather", GATHER)
    net.deliver_all()
    assert [rank.ran[3:] for rank in net.ranks] == [["gather"]] * 3


def test_join_returns_the_last_rank_to_join() -> None:
    net = Network(3)
    for rank in (2, 0, 1):
        net.join(rank)
        net.deliver_all()
    assert [rank.lasts for rank in net.ranks] == [[1]] * 3


def test_withdrawn_operation_fails_on_the_ranks_that_submitted_it() -> None:
    net = Network(3)
    net.submit(1, "x")
    net.submit(2, "x")
    net.deliver_all()
    net.withdraw(2, "x")
    net.deliver_all()
    for rank in (1, 2):
        [failure] = net.ranks[rank].failed
        assert failure.error == "DeadlineExceeded"
        assert "rank 2 waited too long for rank 0" in failure.text
        assert failure.peer == 0
    net.join(1)
    net.deliver_all()
    net.withdraw(1, JOIN)
    net.deliver_all()
    assert "ranks 0 and 2 to join" in net.ranks[1].failed[-1].text
    assert not net.coordinator.pending


def test_withdrawal_that_crosses_the_answer_is_ignored() -> None:
    net = Network(2)
    net.submit(1, "x")
    net.submit(0, "x")
    net.deliver("up", 1)
    net.withdraw(1, "x")
    net.deliver_all()
    assert [rank.ran for rank in net.ranks] == [["x"]] * 2
    assert not net.ranks[1].failed


def test_leaving_fails_the_operations_that_lack_the_rank() -> None:
    net = Network(3)
    net.submit_on_all("done")
    net.submit(0, "x")
    net.submit(1, "x")
    net.submit(2, "of the leaver")
    net.deliver_all()
    net.leave(2)
    net.deliver_all()
    assert all(rank.ran == ["done"] for rank in net.ranks)
    for rank in (0, 1):
        [failure] = net.ranks[rank].failed
        assert failure.error == "ClosedError"
        assert "ranks 0 and 1: rank 2 closed" in failure.text
    assert net.ranks[2].in_flight, "its own operations go on until the others leave"
    net.leave(1)
    net.deliver_all()
    assert "rank 1 closed" in net.ranks[2].failed[0].text
    net.join(0)
    assert "join: ranks 1 and 2 closed" in net.ranks[0].failed[-1].text
    net.leave(0)
    assert net.coordinator.ended


def test_end_of_the_coordinator_reaches_the_other_ranks() -> None:
    net = Network(2)
    net.leave(0)
    net.deliver_all()
    assert net.ranks[1].ended


def test_stalled_operations_are_reported_once() -> None:
    net = Network(4)
    net.submit_on_all("old")
    net.deliver_all()
    net.time = 10.0
    for rank in (0, 1):
        net.submit(rank, "old")
    net.submit(3, "new")
    net.deliver_all()
    assert net.coordinator.oldest == 10.0
    assert net.coordinator.stalled(9.9) == []
    net.time = 12.0
    stalled = net.coordinator.stalled(10.0)
    assert [(item.name, item.missing, item.since) for item in stalled] == [
        ("old", 0b1100, 10.0),
        ("new", 0b0111, 10.0),
    ]
    assert net.coordinator.stalled(10.0) == []
    assert net.coordinator.oldest == float("inf")
    for rank in (2, 3):
        net.submit(rank, "old")
    net.deliver_all()
    net.submit(0, "old")
    assert net.coordinator.oldest == 12.0


def test_single_rank_runs_at_once() -> None:
    net = Network(1)
    net.submit(0, "x")
    net.join(0)
    assert net.ranks[0].ran == ["x"]
    assert net.ranks[0].lasts == [0]


def test_messages_pack_and_unpack() -> None:
    signature = Signature("reduce_scatter", ("int8",), ((3, 4),), "sum", None, 0.5, None, "ring", True, ((1, 2), "x"))
    announcement = Announcement(7, 1 << 200 | 5, (("naïve", signature),), ("a", "b"), True, False)
    assert Announcement.unpack(announcement.pack()) == announcement
    answer = Answer(3, ((-1, "n", signature),), (Failure("m", "ClosedError", "text", None),), 2, True, 1 << 26)
    assert Answer.unpack(answer.pack()) == answer
    for junk in (b"\x00", b"\x93\x01\x02\x03"):
        with pytest.raises(ValueError, match="negotiation message"):
            Announcement.unpack(junk)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [({3}, "rank 3"), ({0, 1}, "ranks 0 and 1"), ({0, 2}, "ranks 0 and 2"), ({0, 2, 3, 4, 9}, "ranks 0, 2-4 and 9")],
)
def test_ranks_text(ranks: set[int], text: str) -> None:
    assert ranks_text(sum(1 << rank for rank in ranks)) == text


def test_cache_evicts_the_least_recently_used_entry() -> None:
    cache = ResponseCache(3)
    assert [cache.insert(name, SUM, 0) for name in "abc"] == [0, 1, 2]
    cache.touch(0b001)
    assert cache.insert("d", SUM, pinned=0b010) == 2, "1 is pinned, and 0 was used more recently"
    assert cache.find("c", SUM) == -1
    assert cache.insert("e", SUM, pinned=0b111) == -1
    cache.insert("d", OTHER, 0)
    assert cache.ambiguous == cache.mask_of("d")
    assert cache.ambiguous.bit_count() == 2
