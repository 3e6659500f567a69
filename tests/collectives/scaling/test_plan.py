"""The plan of an elastic job, with a clock that the tests move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.scaling import Action, Begin, Close, Cooldown, Finish, Leave, Open, Plan, Send, Start, Terms

TERMS = Terms(minimum=2, maximum=4, patience=100.0, cooldown=Cooldown(1.0, 4.0), leave_timeout=30.0, grace=5.0)
FAILED, ENDED = 1, 0


def begun(terms: Terms = TERMS, hosts: Mapping[str, int] | None = None) -> Plan:
    """A plan whose hosts were reached at time 0, and whose first world runs."""
    plan = Plan(terms, 0.0)
    plan.found({"a": 2, "b": 2} if hosts is None else hosts)
    for action in plan.decide(0.0):
        assert isinstance(action, Open)
        plan.ready(action.host)
    assert isinstance(plan.decide(0.0)[0], Begin)
    return plan


def test_it_begins_when_the_hosts_were_reached() -> None:
    plan = Plan(TERMS, 0.0)
    assert plan.decide(0.0) == []
    plan.found({"a": 2, "b": 3})
    assert plan.decide(1.0) == [Open("a"), Open("b")]
    plan.ready("a")
    assert plan.decide(2.0) == []  # b may have more
    plan.ready("b")
    assert plan.decide(3.0) == [Begin((("a", 0), ("a", 1), ("b", 0), ("b", 1)))]
    assert plan.wake_at == float("inf")


def test_it_begins_without_a_host_that_cannot_be_reached() -> None:
    plan = Plan(TERMS, 0.0)
    plan.found({"a": 2, "b": 2})
    plan.decide(0.0)
    plan.ready("a")
    plan.lost("b", 1.0)
    assert plan.decide(1.0) == [Begin((("a", 0), ("a", 1)))]
    assert plan.wake_at == 2.0
    assert plan.decide(2.0) == [Open("b")]
    plan.ready("b")
    assert plan.decide(2.5) == [Start(2, "b", 0), Start(3, "b", 1)]


def test_too_few_slots_at_the_start() -> None:
    plan = Plan(TERMS, 0.0)
    plan.found({"a": 1})
    plan.decide(0.0)
    plan.ready("a")
    assert plan.decide(99.0) == []
    assert plan.wake_at == 100.0
    assert plan.decide(100.0) == [
        Finish(False, "only 1 of at least 2 ranks could be run for 100 s (--elastic-timeout)")
    ]
    assert plan.decide(200.0) == []


def test_a_rank_that_fails_is_replaced_where_there_is_a_free_slot_at_once() -> None:
    plan = begun(hosts={"a": 2, "b": 3})
    plan.ended(0, FAILED, 10.0)
    assert plan.decide(10.0) == [Start(4, "b", 2)]
    assert plan.decide(11.0) == []  # the slot has rested, but there are enough


def test_a_slot_rests_after_a_fault_twice_as_long_each_time_until_it_is_given_up() -> None:
    plan = begun(TERMS, {"a": 4})
    now, number = 1.0, 3
    for rest in (1.0, 2.0, 4.0):
        plan.ended(number, FAILED, now)
        assert plan.decide(now) == []
        assert plan.wake_at == now + rest
        now += rest
        (start,) = plan.decide(now)
        assert isinstance(start, Start)
        assert start.slot == 3
        number = start.number
    plan.ended(number, FAILED, now)
    assert plan.decide(now) == []
    assert plan.wake_at == float("inf")


def test_faults_are_forgotten_when_a_process_has_been_a_rank_for_long() -> None:
    plan = begun(TERMS, {"a": 4})
    plan.ended(3, FAILED, 1.0)
    plan.decide(1.0)
    assert plan.decide(2.0) == [Start(4, "a", 3)]
    plan.changed([0, 1, 2, 4], [3], 3.0)
    plan.ended(4, FAILED, 7.0)
    plan.decide(7.0)
    assert plan.wake_at == 8.0


@pytest.mark.parametrize("met", [False, True])
def test_e8_a_process_that_never_becomes_a_rank_is_started_a_bounded_number_of_times(met: bool) -> None:
    """Its imports may take longer than the longest rest."""
    plan = begun(Terms(minimum=1, maximum=2, cooldown=Cooldown(1.0, 4.0)), {"a": 2})
    if met:
        plan.met([0], 0.5)
    now, number, starts = 0.0, 1, 0
    while now < 1000.0:
        now += 10.0
        plan.ended(number, FAILED, now)
        plan.decide(now)
        now += 5.0
        started = [action for action in plan.decide(now) if isinstance(action, Start)]
        if not started:
            break
        number, starts = started[0].number, starts + 1
    assert starts == 3
    assert plan.wake_at == float("inf")


def test_a_host_is_given_up_when_all_its_slots_are() -> None:
    plan = begun()
    for rest in (1.0, 2.0, 4.0):
        plan.lost("b", 1000.0 * rest)
        plan.decide(1000.0 * rest)
        assert plan.wake_at == 1001.0 * rest if rest == 1.0 else 1000.0 * rest + rest
        assert Open("b") in plan.decide(1001.0 * rest)
    plan.lost("b", 5000.0)
    assert plan.decide(5000.0) == []
    assert plan.wake_at == float("inf")


def test_spares_are_started_beyond_the_maximum() -> None:
    terms = Terms(minimum=2, maximum=2, spares=1)
    plan = Plan(terms, 0.0)
    plan.found({"a": 4})
    plan.decide(0.0)
    plan.ready("a")
    assert plan.decide(0.0) == [Begin((("a", 0), ("a", 1))), Start(2, "a", 2)]
    plan.ended(1, FAILED, 5.0)
    assert plan.decide(5.0) == [Start(3, "a", 3)]
    plan.changed([0, 2], [1], 5.5)
    assert plan.decide(5.5) == []


def test_a_host_that_is_named_no_more_is_left_at_a_boundary_and_closed() -> None:
    plan = begun()
    plan.found({"a": 2})
    assert plan.decide(10.0) == [Leave((2, 3), "its host is not offered any more")]
    plan.changed([0, 1], [2, 3], 11.0)
    assert plan.decide(11.0) == []
    plan.ended(2, ENDED, 12.0)
    plan.ended(3, ENDED, 12.0)
    assert plan.decide(12.0) == [Close("b")]
    assert plan.decide(50.0) == []
    plan.found({"a": 2, "b": 2})
    assert plan.decide(51.0) == [Open("b")]  # no fault was counted


def test_processes_that_do_not_leave_in_time_are_signalled() -> None:
    plan = begun()
    assert plan.drain("b", "drained") == (2, 3)
    assert plan.decide(10.0) == [Leave((2, 3), "drained")]
    plan.ended(2, ENDED, 12.0)
    assert plan.decide(39.0) == []
    assert plan.wake_at == 40.0
    assert plan.decide(40.0) == [Send(3, kill=False)]
    assert plan.decide(45.0) == [Send(3, kill=True)]
    assert plan.decide(99.0) == []


def test_a_drained_host_is_used_again_when_it_was_away() -> None:
    plan = begun()
    plan.drain("b", "drained")
    plan.decide(1.0)
    for number in (2, 3):
        plan.ended(number, ENDED, 2.0)
    assert plan.decide(2.0) == [Close("b")]
    plan.found({"a": 2, "b": 2})
    assert plan.decide(3.0) == []
    plan.found({"a": 2})
    plan.found({"a": 2, "b": 2})
    assert plan.decide(4.0) == [Open("b")]
    with pytest.raises(KeyError):
        plan.drain("c", "drained")


def test_fewer_slots_of_a_host_end_the_last_ones() -> None:
    plan = begun()
    plan.found({"a": 2, "b": 1})
    assert plan.decide(10.0) == [Leave((3,), "its host is not offered any more")]


def test_the_job_ends_well_when_the_program_has_ended_on_all_ranks() -> None:
    plan = begun()
    plan.ended(0, ENDED, 10.0)
    assert plan.decide(10.0) == []
    assert plan.decide(12.0) == []  # by now a change would have told that it left
    for number in (1, 2):
        plan.ended(number, ENDED, 13.0)
    assert plan.decide(13.0) == []
    plan.ended(3, FAILED, 14.0)
    assert plan.decide(14.0) == [Finish(True)]


def test_a_rank_that_leaves_on_its_own_does_not_end_the_job() -> None:
    plan = begun()
    plan.ended(3, ENDED, 10.0)
    plan.changed([0, 1, 2], [3], 10.5)
    assert plan.decide(13.0) == [Start(4, "b", 1)]


def test_the_slot_of_a_rank_that_leaves_on_its_own_rests_whenever_it_ends() -> None:
    for end_first in (True, False):
        plan = begun()
        if end_first:
            plan.ended(3, ENDED, 10.0)
        plan.changed([0, 1, 2], [3], 10.0)
        if not end_first:
            plan.ended(3, ENDED, 10.0)
        assert plan.decide(10.5) == []
        assert plan.decide(11.0) == [Start(4, "b", 1)]


@pytest.mark.parametrize("moment", ["before the change", "after the change", "long before it"])
def test_e5_a_rank_that_exits_with_0_ends_the_program_whenever_the_others_notice(moment: str) -> None:
    plan = begun(Terms(minimum=3, maximum=4, patience=50.0))
    if moment == "after the change":
        plan.changed([0, 2, 3], [1], 9.9, lost=[1])
        plan.ended(1, ENDED, 10.0)
    else:
        plan.ended(1, ENDED, 10.0)
        assert plan.decide(10.0) == []
        plan.decide(12.0 if moment == "long before it" else 10.1)
        plan.changed([0, 2, 3], [1], 12.1 if moment == "long before it" else 10.2, lost=[1])
    assert plan.decide(13.0) == []
    assert plan.finished_by == 1
    plan.ended(0, FAILED, 20.0)
    plan.changed([2, 3], [0], 20.1, lost=[0])
    assert plan.decide(500.0) == [], "no newcomer, and no minimum"
    plan.ended(2, ENDED, 501.0)
    plan.ended(3, ENDED, 501.0)
    assert plan.decide(501.0) == [Finish(True)]


def test_e5_processes_that_wait_are_ended_with_the_program() -> None:
    plan = begun(Terms(minimum=1, maximum=1, spares=1), {"a": 2})
    plan.ended(0, ENDED, 10.0)
    plan.decide(10.0)
    actions = plan.decide(12.0)
    assert actions == [Send(1, kill=False), Finish(True)]


def test_e5_a_rank_that_is_left_behind_and_signalled_does_not_end_the_program() -> None:
    plan = begun()
    plan.changed([0, 1, 2], [3], 10.0, lost=[3])
    assert plan.decide(15.0) == [Send(3, kill=False)]
    plan.ended(3, ENDED, 15.5)
    assert plan.decide(15.5) == []
    assert plan.decide(16.5) == [Start(4, "b", 1)]
    assert plan.finished_by is None


@pytest.mark.parametrize("how", ["not named", "fewer slots", "drained"])
def test_e2_a_host_that_is_lost_while_its_ranks_leave_comes_back(how: str) -> None:
    plan = begun()
    leaving = (3,) if how == "fewer slots" else (2, 3)
    if how == "drained":
        plan.drain("b", "preempted")
    else:
        plan.found({"a": 2, "b": 1} if how == "fewer slots" else {"a": 2})
    assert [action.numbers for action in plan.decide(10.0) if isinstance(action, Leave)] == [leaving]
    plan.lost("b", 11.0)
    assert not any(isinstance(action, Finish) for action in plan.decide(11.0))
    plan.found({"a": 2})
    plan.decide(12.0)
    plan.found({"a": 2, "b": 2})
    assert plan.decide(13.0) == [Open("b")]
    plan.ready("b")
    assert plan.decide(13.0) == [Start(4, "b", 0), Start(5, "b", 1)]


def test_e2_a_host_that_is_reclaimed_again_and_again_is_not_given_up() -> None:
    plan = begun()
    now = 10.0
    for _ in range(20):
        plan.found({"a": 2})
        plan.decide(now)
        plan.lost("b", now)
        plan.decide(now)
        plan.found({"a": 2, "b": 2})
        assert plan.decide(now) == [Open("b")]
        plan.ready("b")
        assert len(plan.decide(now)) == 2
        now += 1.0


def test_a_rank_that_was_left_behind_is_ended_and_replaced() -> None:
    plan = begun()
    plan.changed([0, 1, 2], [3], 10.0)
    assert plan.decide(15.0) == [Send(3, kill=False)]
    assert plan.decide(20.0) == [Send(3, kill=True)]
    plan.ended(3, -9, 20.5)
    assert plan.decide(20.5) == []
    assert plan.decide(21.5) == [Start(4, "b", 1)]


def test_the_job_fails_when_no_rank_is_left() -> None:
    plan = begun()
    for number in (2, 0, 1):
        plan.ended(number, FAILED, 10.0)
    assert plan.decide(10.0) == []
    plan.ended(3, FAILED, 10.5)
    assert plan.decide(10.5) == [Finish(False, "", 2)]


def test_newcomers_that_a_late_change_has_admitted_go_on() -> None:
    plan = begun(Terms(minimum=1, maximum=1, spares=1), {"a": 2})
    plan.ended(0, FAILED, 10.0)
    plan.decide(10.0)
    plan.changed([1], [0], 11.0)
    assert not any(isinstance(action, Finish) for action in plan.decide(20.0))


def test_newcomers_alone_are_no_job() -> None:
    plan = begun(Terms(minimum=1, maximum=1, spares=1), {"a": 2})
    plan.ended(0, FAILED, 10.0)
    assert not any(isinstance(action, Finish) for action in plan.decide(10.0))
    assert plan.decide(12.0)[-1] == Finish(False, "", 0)


def test_all_ranks_leave() -> None:
    plan = begun(Terms(minimum=1), {"a": 1})
    plan.drain("a", "preempted")
    assert plan.decide(1.0) == [Leave((0,), "preempted")]
    plan.ended(0, ENDED, 2.0)
    assert plan.decide(2.0) == [Close("a"), Finish(False, "all ranks have left")]


def test_the_limit_of_changes() -> None:
    plan = begun(Terms(minimum=1, maximum=4, changes=1))
    plan.changed([0, 1, 2], [3], 1.0)
    assert not any(isinstance(action, Finish) for action in plan.decide(1.0))
    plan.changed([0, 1], [2], 2.0)
    assert plan.decide(2.0)[-1] == Finish(False, "the ranks have changed 2 times; --reset-limit is 1")


def test_too_few_slots_later() -> None:
    plan = begun()
    plan.lost("b", 10.0)
    plan.found({"a": 1})
    plan.decide(10.0)
    assert plan.wake_at <= 40.0
    assert plan.decide(109.0) == [Send(1, kill=False)]
    assert plan.decide(110.0)[-1] == Finish(
        False, "only 1 of at least 2 ranks could be run for 100 s (--elastic-timeout)", 2
    )


class World:
    """An obedient launcher and its ranks. It checks what may be asked of it."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.plan = Plan(terms, 0.0)
        self.now = 0.0
        self.offered: dict[str, int] = {}
        self.open: set[str] = set()
        self.running: dict[int, tuple[str, int]] = {}
        self.members: list[int] = []
        self.leaving: set[int] = set()
        self.used = 0
        self.finish: Finish | None = None

    def decide(self) -> None:
        for _ in range(10):  # answers to actions may cause others
            actions = self.plan.decide(self.now)
            for action in actions:
                self.obey(action)
            if not actions:
                return
        raise AssertionError("it repeats itself")

    def obey(self, action: Action) -> None:
        assert self.finish is None, "an action after the end"
        match action:
            case Open(host):
                assert host not in self.open
                assert self.offered.get(host)
                self.open.add(host)
                self.plan.ready(host)
            case Close(host):
                assert not any(where == host for where, _ in self.running.values())
                self.open.discard(host)
            case Begin(places):
                assert self.terms.minimum <= len(places) <= (self.terms.maximum or 99)
                for number, (host, slot) in enumerate(places):
                    self.run(number, host, slot)
                self.members = [*self.running]
            case Start(number, host, slot):
                self.run(number, host, slot)
            case Leave(numbers, _):
                assert set(numbers) <= self.running.keys()
                self.leaving |= set(numbers)
            case Send(number, _):
                assert number in self.running
                self.end(number, -15)
            case Finish():
                self.finish = action

    def run(self, number: int, host: str, slot: int) -> None:
        assert number == self.used, "numbers are given in order and once"
        assert host in self.open
        assert slot < self.offered[host]
        assert (host, slot) not in self.running.values()
        self.used += 1
        self.running[number] = host, slot
        staying = [number for number in self.running if number not in self.leaving]
        assert len(staying) <= (self.terms.maximum or 99) + self.terms.spares

    def end(self, number: int, status: int) -> None:
        del self.running[number]
        self.plan.ended(number, status, self.now)

    def lose(self, host: str) -> None:
        self.open.discard(host)
        for number in [number for number, (where, _) in self.running.items() if where == host]:
            del self.running[number]
        self.plan.lost(host, self.now)

    def regroup(self) -> None:
        """The ranks agree: who has ended or is to leave goes, who waits comes."""
        staying = [number for number in self.members if number in self.running and number not in self.leaving]
        if not staying:  # nobody has the state: the last ones leave, and newcomers are not admitted
            for number in [number for number in self.members if number in self.running]:
                self.end(number, 0)
            return
        room = (self.terms.maximum or 99) - len(staying)
        waiting = [number for number in self.running if number not in self.members and number not in self.leaving]
        members = staying + waiting[: max(0, room)]
        if members != self.members:
            left = [number for number in self.members if number not in members]
            self.members = members
            self.plan.changed(members, left, self.now)
            for number in left:
                if number in self.running:
                    self.end(number, 0)


@given(
    minimum=st.integers(1, 3),
    room=st.none() | st.integers(0, 2),
    spares=st.integers(0, 2),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("hosts"), st.dictionaries(st.sampled_from("abc"), st.integers(1, 3))),
            st.tuples(st.just("fail"), st.integers(0, 9)),
            st.tuples(st.just("lose"), st.sampled_from("abc")),
            st.tuples(st.just("lose while leaving"), st.sampled_from("abc")),
            st.tuples(st.just("drain"), st.sampled_from("abc")),
            st.tuples(st.just("regroup"), st.none()),
            st.tuples(st.just("wait"), st.sampled_from([0.5, 2.0, 7.0, 70.0])),
        ),
        max_size=40,
    ),
)
def test_whatever_happens(minimum: int, room: int | None, spares: int, steps: Sequence[tuple[str, object]]) -> None:
    terms = Terms(
        minimum,
        None if room is None else minimum + room,
        spares=0 if room is None else spares,
        patience=100.0,
        cooldown=Cooldown(1.0, 4.0),
    )
    world = World(terms)
    for what, value in steps:
        match what, value:
            case "hosts", dict(hosts):
                world.offered = hosts
                world.plan.found(hosts)
            case "fail", int(index) if world.running:
                world.end(sorted(world.running)[index % len(world.running)], FAILED)
            case "lose", str(host) if host in world.open:
                world.lose(host)
            case "lose while leaving", str(host) if host in world.open:
                world.offered = {name: slots for name, slots in world.offered.items() if name != host}
                world.plan.found(world.offered)
                world.decide()
                if host in world.open and world.finish is None:
                    world.lose(host)
            case "drain", str(host) if host in world.offered:
                world.plan.drain(host, "drained")
            case "regroup", _:
                world.regroup()
            case "wait", float(seconds):
                world.now += seconds
        world.decide()
    # Calm: enough hosts, no faults, ranks that agree and a program that ends. The job must end, and not by itself.
    for _ in range(300):
        world.offered = {"a": 3, "b": 3, "c": 3, "d": 3}
        world.plan.found(world.offered)
        world.decide()
        world.regroup()
        world.decide()
        if world.finish is not None or len([n for n in world.members if n in world.running]) >= minimum:
            break
        world.now = min(world.plan.wake_at, world.now + 1.0)
    if world.finish is None:
        for number in [*world.members]:
            if number in world.running:
                world.end(number, ENDED)
        world.decide()
        world.now += 10.0
        world.decide()
        assert world.finish == Finish(True)
