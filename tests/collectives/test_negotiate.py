"""The state machine of named operations, with messages that take their time and no threads."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.member import Member
from collectives.negotiate import Coordinator
from collectives.slots import Slots
from collectives.terms import JOIN, Announcement, Answer, Failure, Terms, bits, ranks_text

SUM = Terms("allreduce", ("float32",), ((4,),), op="sum")
OTHER = Terms("allreduce", ("float32",), ((5,),), op="sum")
GATHER = Terms("allgather", ("float32",), ((),))


class Rank:
    """A rank as the engine has it: what it has in flight, what it ran, what failed."""

    def __init__(self, number: int) -> None:
        self.member = Member(holds=number > 0)
        self.flying: dict[str, Terms] = {}
        self.ran: list[str] = []
        self.failed: list[Failure] = []
        self.joined = False
        self.lasts: list[int] = []
        self.ended = False


class Net:
    """Ranks and their coordinator; every message waits in a queue until `deliver` picks that."""

    def __init__(self, size: int, capacity: int = 4096) -> None:
        self.coordinator = Coordinator(range(size), capacity=capacity)
        self.ranks = [Rank(number) for number in range(size)]
        self.up: list[deque[bytes]] = [deque() for _ in range(size)]
        self.down: list[deque[bytes]] = [deque() for _ in range(size)]
        self.messages = 0
        self.time = 0.0

    def submit(self, rank: int, name: str, terms: Terms = SUM) -> None:
        assert name not in self.ranks[rank].flying
        self.ranks[rank].flying[name] = terms
        self.ranks[rank].member.submit(name, terms)
        self.announce(rank)

    def join(self, rank: int) -> None:
        self.ranks[rank].joined = True
        self.ranks[rank].member.join()
        self.announce(rank)

    def leave(self, rank: int) -> None:
        self.ranks[rank].member.leave()
        self.announce(rank)

    def withdraw(self, rank: int, name: str) -> None:
        self.ranks[rank].member.withdraw(name)
        self.announce(rank)

    def announce(self, rank: int) -> None:
        said = self.ranks[rank].member.announce()
        if said is None:
            return
        if rank:
            self.messages += 1
            self.up[rank].append(said.pack())
        else:
            self.coordinator.hear(0, said, self.time)
            self.decide()

    def decide(self) -> None:
        for mask, answer in self.coordinator.decide():
            for rank in bits(mask):
                self.messages += rank > 0
                if rank:
                    self.down[rank].append(answer.pack())
                else:
                    self.take(0, answer)

    def take(self, rank: int, answer: Answer) -> None:
        here = self.ranks[rank]
        for name, terms in here.member.hear(answer):
            assert here.joined or here.flying[name] == terms, "a rank runs what it has not submitted"
            here.flying.pop(name, None)
            here.ran.append(name)
        for failure in answer.failed:
            if failure.name == JOIN:
                here.joined = False
            else:
                del here.flying[failure.name]
            here.failed.append(failure)
        if answer.last >= 0:
            here.joined = False
            here.lasts.append(answer.last)
        here.ended |= answer.ended
        self.announce(rank)

    def busy(self) -> list[tuple[str, int]]:
        up = [("up", rank) for rank, queue in enumerate(self.up) if queue]
        return up + [("down", rank) for rank, queue in enumerate(self.down) if queue]

    def deliver(self, way: str, rank: int) -> None:
        if way == "up":
            self.coordinator.hear(rank, Announcement.unpack(self.up[rank].popleft()), self.time)
            self.decide()
        else:
            self.take(rank, Answer.unpack(self.down[rank].popleft()))

    def settle(self) -> None:
        while busy := self.busy():
            self.deliver(*busy[0])

    def everywhere(self, name: str, terms: Terms = SUM) -> None:
        for rank in range(len(self.ranks)):
            self.submit(rank, name, terms)


NAMES = [f"tensor {index}" for index in range(6)]


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, list[list[list[str]]]]:
    """A number of ranks, and for each the same steps, whose names are in an order of its own."""
    size = draw(st.integers(1, 4))
    rounds = draw(st.lists(st.lists(st.sampled_from(NAMES), unique=True, min_size=1), min_size=1, max_size=4))
    return size, [[draw(st.permutations(names)) for names in rounds] for _ in range(size)]


@settings(max_examples=150)
@given(steps(), st.sampled_from([1, 2, 3, 100]), st.data())
def test_any_order_of_submission_and_arrival_ends_with_one_order(
    case: tuple[int, list[list[list[str]]]], capacity: int, data: st.DataObject
) -> None:
    size, plans = case
    net = Net(size, capacity)
    todo = [[name for names in plan for name in names] for plan in plans]
    while True:
        ready = [("submit", rank) for rank in range(size) if todo[rank] and todo[rank][0] not in net.ranks[rank].flying]
        choices = ready + net.busy()
        if not choices:
            break
        kind, rank = data.draw(st.sampled_from(choices))
        if kind == "submit":
            net.submit(rank, todo[rank].pop(0))
        else:
            net.deliver(kind, rank)
    assert todo == [[]] * size, "a deadlock"
    assert all(not rank.flying for rank in net.ranks)
    assert all(rank.ran == net.ranks[0].ran for rank in net.ranks)
    assert sorted(net.ranks[0].ran) == sorted(name for names in plans[0] for name in names)
    assert not net.coordinator.pending


@settings(max_examples=150)
@given(
    st.integers(2, 4),
    st.lists(st.lists(st.sampled_from(NAMES), unique=True, max_size=6), min_size=4, max_size=4),
    st.sampled_from([1, 3, 100]),
    st.data(),
)
def test_ranks_with_less_data_join(size: int, plans: list[list[str]], capacity: int, data: st.DataObject) -> None:
    net = Net(size, capacity)
    actions = [[*plan, JOIN, "after", JOIN] for plan in plans[:size]]
    while True:
        ready = [
            ("act", rank)
            for rank in range(size)
            if actions[rank] and not net.ranks[rank].joined and actions[rank][0] not in net.ranks[rank].flying
        ]
        choices = ready + net.busy()
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
    assert all(not rank.flying and not rank.failed for rank in net.ranks)
    assert all(rank.ran == net.ranks[0].ran for rank in net.ranks)
    assert set(net.ranks[0].ran) == {name for plan in plans[:size] for name in plan} | {"after"}
    assert len(net.ranks[0].lasts) == 2
    assert all(rank.lasts == net.ranks[0].lasts for rank in net.ranks)
    assert not net.coordinator.pending


@settings(max_examples=150)
@given(st.integers(2, 4), st.sampled_from([1, 100]), st.data())
def test_ranks_that_leave_and_withdraw_end_everything(size: int, capacity: int, data: st.DataObject) -> None:
    """Whatever anybody has submitted when all have left is run everywhere or fails everywhere."""
    net = Net(size, capacity)
    terms = st.sampled_from([SUM, SUM, OTHER, GATHER])
    actions = [[*data.draw(st.lists(st.sampled_from([*NAMES, "withdraw"]), max_size=8)), "leave"] for _ in range(size)]
    while True:
        ready = [("act", rank) for rank in range(size) if actions[rank] and not net.ranks[rank].ended]
        choices = ready + net.busy()
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
            if here.flying:
                net.withdraw(rank, data.draw(st.sampled_from(sorted(here.flying))))
        elif action not in here.flying:
            net.submit(rank, action, data.draw(terms))
    assert all(here.ended or not here.flying for here in net.ranks)
    assert all(here.ran == net.ranks[0].ran for here in net.ranks)
    assert net.coordinator.ended
    assert not net.coordinator.pending


@pytest.mark.parametrize("size", [2, 5, 64])
def test_a_repeated_step_costs_one_message_each_way_and_rank(size: int) -> None:
    net = Net(size)
    for step in range(3):
        before = net.messages
        for rank in range(1, size):
            for name in NAMES:
                net.submit(rank, name)
        net.settle()  # all wait for rank 0, and hold back all but their first
        assert net.messages - before == size - 1
        for name in NAMES:
            net.submit(0, name)
        net.settle()
        assert net.ranks[0].ran == net.ranks[-1].ran
        assert len(net.ranks[0].ran) == (step + 1) * len(NAMES)
        assert net.messages - before <= 4 * (size - 1)


def test_what_was_run_before_is_announced_as_bits() -> None:
    net = Net(2)
    for name in NAMES:
        net.everywhere(name)
    net.settle()
    net.submit(1, NAMES[2])
    said = Announcement.unpack(net.up[1][0])
    assert said == Announcement(known=len(NAMES), slots=1 << net.ranks[0].ran.index(NAMES[2]))
    assert len(net.up[1][0]) < 16


def test_ranks_that_hold_back_each_others_operation_are_released() -> None:
    net = Net(3)
    net.submit(1, "a")
    net.submit(1, "b")
    net.submit(2, "b")
    net.submit(2, "a")
    net.settle()
    assert not net.ranks[1].ran
    net.submit(0, "b")
    net.settle()
    assert [rank.ran for rank in net.ranks] == [["b"]] * 3
    net.submit(0, "a")
    net.settle()
    assert [rank.ran for rank in net.ranks] == [["b", "a"]] * 3


def test_ranks_that_wait_for_a_slow_one_are_left_alone() -> None:
    net = Net(3)
    for rank in (0, 1):
        for name in NAMES:
            net.submit(rank, name)
        net.settle()
    assert net.messages == 1, "rank 1 is not released while all that it could add lacks rank 2 too"


def test_a_mismatch_fails_on_all_ranks_with_a_table_and_nothing_else() -> None:
    net = Net(3)
    net.everywhere("good")
    net.submit(0, "bad", SUM)
    net.submit(1, "bad", OTHER)
    net.submit(2, "bad", SUM)
    net.settle()
    for rank in net.ranks:
        assert rank.ran == ["good"]
        [failure] = rank.failed
        assert failure.error == "MismatchError"
        assert "'bad'" in failure.text
        assert "ranks 0 and 2: allreduce(float32 (4,), op=sum)" in failure.text
        assert "rank 1: allreduce(float32 (5,), op=sum)" in failure.text
    net.everywhere("bad", OTHER)
    net.settle()
    assert all(rank.ran == ["good", "bad"] for rank in net.ranks)


@pytest.mark.parametrize(("first", "second"), [(SUM, OTHER), (OTHER, SUM)])
def test_a_mismatch_is_found_among_slots_and_between_slot_and_fresh(first: Terms, second: Terms) -> None:
    net = Net(2)
    net.everywhere("x", SUM)
    net.settle()
    for known in (False, True):  # then both terms have slots
        net.submit(0, "x", first)
        net.submit(1, "x", second)
        net.settle()
        assert [len(rank.failed) for rank in net.ranks] == [1 + known] * 2
        net.everywhere("x", OTHER)
        net.settle()
    assert net.ranks[0].ran == ["x"] * 3


def test_the_table_stays_bounded_and_what_crosses_an_eviction_is_understood() -> None:
    net = Net(3, capacity=2)
    net.everywhere("a")
    net.everywhere("b")
    net.settle()
    net.submit(2, "a")  # its bit is on the way when the slot of "a" is given to another
    for name in ("c", "d", "e"):
        net.submit(0, name)
        net.submit(1, name)
        net.ranks[2].member.submit(name, SUM)
        net.ranks[2].flying[name] = SUM
    bit = net.up[2].popleft()
    net.up[2].append(Announcement(2, 0, tuple((name, SUM) for name in ("c", "d", "e"))).pack())
    net.ranks[2].member._fresh.clear()
    while busy := [(way, rank) for way, rank in net.busy() if way == "up" or rank != 2]:
        net.deliver(*busy[0])
    assert len(net.coordinator._table.entries) == 2
    assert net.coordinator._table.past
    net.up[2].append(bit)
    net.settle()
    net.submit(0, "a")
    net.submit(1, "a")
    net.settle()
    assert net.ranks[0].ran[-1] == "a"
    assert all(rank.ran == net.ranks[0].ran for rank in net.ranks)
    for _ in range(2):
        net.everywhere("f")
        net.settle()
    assert not net.coordinator._table.past, "what all ranks know of is forgotten"


def test_a_gathered_bit_survives_the_eviction_of_its_slot() -> None:
    member = Member(holds=True)
    member.hear(Answer(fresh=((0, "a", SUM),)))
    member.submit("b", SUM)
    assert member.announce() is not None
    member.submit("a", SUM)
    assert member.announce() is None, "held back"
    member.hear(Answer(fresh=((0, "b", SUM),)))
    assert member.announce() == Announcement(2, 0, (("a", SUM),))


def test_joined_ranks_take_part_in_sums_only() -> None:
    net = Net(3)
    net.join(1)
    for rank in (0, 2):
        net.submit(rank, "sum", SUM)
        net.submit(rank, "gather", GATHER)
        net.submit(rank, "largest", SUM._replace(op="max"))
    net.settle()
    assert [rank.ran for rank in net.ranks] == [["sum"]] * 3
    assert [sorted(failure.name for failure in rank.failed) for rank in net.ranks] == [
        ["gather", "largest"],
        [],
        ["gather", "largest"],
    ]
    assert "rank 1 joined" in net.ranks[0].failed[0].text
    net.join(2)
    net.join(0)
    net.settle()
    assert [rank.lasts for rank in net.ranks] == [[2]] * 3 or [rank.lasts for rank in net.ranks] == [[0]] * 3
    net.everywhere("gather", GATHER)
    net.settle()
    assert [rank.ran for rank in net.ranks] == [["sum", "gather"]] * 3


def test_the_last_to_join_is_told() -> None:
    net = Net(3)
    for rank in (2, 0, 1):
        net.join(rank)
        net.settle()
    assert [rank.lasts for rank in net.ranks] == [[1]] * 3


def test_what_waits_for_too_long_fails_where_it_was_submitted() -> None:
    net = Net(3)
    net.submit(1, "x")
    net.submit(2, "x")
    net.settle()
    net.withdraw(2, "x")
    net.settle()
    for rank in (1, 2):
        [failure] = net.ranks[rank].failed
        assert failure.error == "DeadlineExceeded"
        assert "rank 2 waited too long for rank 0 to submit it" in failure.text
        assert failure.peer == 0
    net.join(1)
    net.settle()
    net.withdraw(1, JOIN)
    net.settle()
    assert "ranks 0 and 2 to join" in net.ranks[1].failed[-1].text
    assert not net.coordinator.pending


def test_a_withdrawal_that_crosses_the_answer_is_void() -> None:
    net = Net(2)
    net.submit(1, "x")
    net.submit(0, "x")
    net.deliver("up", 1)
    net.withdraw(1, "x")
    net.settle()
    assert [rank.ran for rank in net.ranks] == [["x"]] * 2
    assert not net.ranks[1].failed


def test_whoever_leaves_ends_what_lacks_it() -> None:
    net = Net(3)
    net.everywhere("done")
    net.submit(0, "x")
    net.submit(1, "x")
    net.submit(2, "of the leaver")
    net.settle()
    net.leave(2)
    net.settle()
    assert all(rank.ran == ["done"] for rank in net.ranks)
    for rank in (0, 1):
        [failure] = net.ranks[rank].failed
        assert failure.error == "ClosedError"
        assert "submitted by ranks 0 and 1: rank 2 closed without submitting it" in failure.text
    assert net.ranks[2].flying, "its own operations go on until the others leave"
    net.leave(1)
    net.settle()
    assert "rank 1 closed" in net.ranks[2].failed[0].text
    net.join(0)
    assert "join: ranks 1 and 2 closed" in net.ranks[0].failed[-1].text
    net.leave(0)
    assert net.coordinator.ended


def test_the_end_reaches_those_who_stay() -> None:
    net = Net(2)
    net.leave(0)
    net.settle()
    assert net.ranks[1].ended


def test_late_operations_are_named_once() -> None:
    net = Net(4)
    net.everywhere("old")
    net.settle()
    net.time = 10.0
    for rank in (0, 1):
        net.submit(rank, "old")
    net.submit(3, "new")
    net.settle()
    assert net.coordinator.oldest == 10.0
    assert net.coordinator.late(9.9) == []
    net.time = 12.0
    late = net.coordinator.late(10.0)
    assert [(item.name, item.missing, item.since) for item in late] == [
        ("old", 0b1100, 10.0),
        ("new", 0b0111, 10.0),
    ]
    assert net.coordinator.late(10.0) == []
    assert net.coordinator.oldest == float("inf")
    for rank in (2, 3):
        net.submit(rank, "old")
    net.settle()
    net.submit(0, "old")
    assert net.coordinator.oldest == 12.0


def test_a_world_of_one_waits_for_nobody() -> None:
    net = Net(1)
    net.submit(0, "x")
    net.join(0)
    assert net.ranks[0].ran == ["x"]
    assert net.ranks[0].lasts == [0]


def test_messages_come_back_as_they_were() -> None:
    terms = Terms("reduce_scatter", ("int8",), ((3, 4),), "sum", None, 0.5, None, "ring", True, ((1, 2), "x"))
    said = Announcement(7, 1 << 200 | 5, (("naïve", terms),), ("a", "b"), True, False)
    assert Announcement.unpack(said.pack()) == said
    answer = Answer(3, ((-1, "n", terms),), (Failure("m", "ClosedError", "text", None),), 2, True, 1 << 26)
    assert Answer.unpack(answer.pack()) == answer
    for junk in (b"\x00", b"\x93\x01\x02\x03"):
        with pytest.raises(ValueError, match="none of the engine's"):
            Announcement.unpack(junk)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [({3}, "rank 3"), ({0, 1}, "ranks 0 and 1"), ({0, 2}, "ranks 0 and 2"), ({0, 2, 3, 4, 9}, "ranks 0, 2-4 and 9")],
)
def test_ranks_are_told_briefly(ranks: set[int], text: str) -> None:
    assert ranks_text(sum(1 << rank for rank in ranks)) == text


def test_the_slot_that_was_not_used_for_longest_goes_first() -> None:
    slots = Slots(3)
    assert [slots.assign(name, SUM, 0) for name in "abc"] == [0, 1, 2]
    slots.use(0b001)
    assert slots.assign("d", SUM, waiting=0b010) == 2, "1 is waited for, and 0 was used since"
    assert slots.find("c", SUM) == -1
    assert slots.assign("e", SUM, waiting=0b111) == -1
    slots.assign("d", OTHER, 0)
    assert slots.shared == slots.slots_of("d")
    assert slots.shared.bit_count() == 2
