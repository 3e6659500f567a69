"""The plan of a job whose hosts and ranks are given, with a clock that the tests move."""

from __future__ import annotations

import pytest

from collectives.scaling import Action, Ask, Begin, Finish, FixedPlan, Open, Refuse, Serve
from collectives.scaling.fixed import MOST_AT_ONCE, OTHERS_SECONDS, REPORT_SECONDS

FAILED, ENDED = 1, 0


def plan_of(*counts: int, keep_going: bool = False) -> FixedPlan:
    """A plan at time 0 for hosts with these numbers of ranks, which has 30 s to start."""
    ranks = iter(range(sum(counts)))
    return FixedPlan(
        [[next(ranks) for _ in range(count)] for count in counts], 0.0, start_seconds=30.0, keep_going=keep_going
    )


def running(*counts: int, keep_going: bool = False) -> FixedPlan:
    """A plan whose ranks all run at time 1."""
    plan = plan_of(*counts, keep_going=keep_going)
    for _ in ("reach", "serve", "start"):
        for action in plan.decide(1.0):
            hosts = [action.host] if isinstance(action, Open | Serve) else list(map(str, range(len(counts))))
            for host in hosts:
                plan.ready(host)
    assert plan.decide(1.0) == []
    return plan


def test_the_steps_of_the_start() -> None:
    plan = plan_of(2, 1)
    assert plan.decide(0.0) == [Open("0"), Open("1")]
    plan.ready("1")
    assert plan.decide(1.0) == []
    plan.ready("0")
    assert plan.decide(2.0) == [Serve("0")]
    assert plan.wake_at == 30.0
    plan.ready("0")
    assert plan.decide(3.0) == [Begin((("0", 0), ("0", 1), ("1", 0)))]
    plan.ready("0")
    plan.ready("1")
    assert plan.decide(4.0) == []
    assert plan.wake_at == float("inf")


def test_not_too_many_hosts_are_reached_at_once() -> None:
    plan = plan_of(*[1] * (MOST_AT_ONCE + 3))
    assert plan.decide(0.0) == [Open(str(number)) for number in range(MOST_AT_ONCE)]
    assert plan.decide(0.5) == []
    plan.ready("5")
    plan.ready("6")
    assert plan.decide(1.0) == [Open(str(MOST_AT_ONCE)), Open(str(MOST_AT_ONCE + 1))]


def test_all_hosts_that_fail_are_named_and_the_others_have_a_moment_to_do_so() -> None:
    plan = plan_of(1, 1, 1)
    plan.decide(0.0)
    plan.lost("2", 1.0)
    assert plan.decide(1.0) == []
    assert plan.wake_at == 1.0 + OTHERS_SECONDS
    plan.lost("0", 1.5)
    assert plan.decide(1.0 + OTHERS_SECONDS) == [Refuse(("0", "2"))]
    assert plan.decide(99.0) == []
    assert plan.wake_at == float("inf")


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_host_that_does_not_answer_in_time(steps: int) -> None:
    plan = plan_of(1, 1)
    plan.decide(0.0)
    for _ in range(steps):
        plan.ready("0")
        plan.ready("1")
        plan.decide(0.0)
    if steps != 1:
        plan.ready("0")
    ((refused),) = plan.decide(30.0)
    assert isinstance(refused, Refuse)
    assert refused.hosts == (("0",) if steps == 1 else ("1",))
    assert refused.reason.endswith(" within 30 s")


def test_a_job_that_ends_well() -> None:
    plan = running(2)
    plan.ended(1, ENDED, 5.0)
    assert plan.decide(5.0) == []
    plan.ended(0, ENDED, 6.0)
    assert plan.decide(6.0) == [Finish(True)]
    assert plan.decide(7.0) == []


def test_the_first_failure_ends_the_job() -> None:
    plan = running(2, 2)
    plan.ended(3, ENDED, 2.0)
    plan.ended(2, FAILED, 2.0)
    plan.ended(0, FAILED, 2.0)
    assert plan.decide(2.0) == [Finish(False, "", 2)]


def test_a_failure_ends_the_job_while_other_ranks_are_started() -> None:
    plan = plan_of(1, 1)
    for _ in range(3):
        plan.decide(0.0)
        plan.ready("0")
        if plan.decide(0.0) == []:
            plan.ready("1")
    plan.ended(0, FAILED, 1.0)
    assert plan.decide(1.0) == [Finish(False, "", 0)]


def test_the_ranks_of_a_lost_host_have_failed() -> None:
    plan = running(1, 2)
    plan.lost("1", 3.0)
    assert plan.decide(3.0) == [Finish(False, "", 1)]


@pytest.mark.parametrize(("last", "verdict"), [(ENDED, Finish(True)), (FAILED, Finish(False, "", 1))])
def test_with_keep_going_the_job_ends_well_if_any_rank_does(last: int, verdict: Action) -> None:
    plan = running(1, 2, keep_going=True)
    plan.lost("1", 2.0)
    assert plan.decide(2.0) == [Ask((0,))]
    assert plan.decide(2.0) == []
    plan.ended(0, last, 3.0)
    assert plan.decide(3.0) == [verdict]


def test_ranks_that_were_left_behind_have_a_moment_to_report() -> None:
    plan = running(3, keep_going=True)
    plan.ended(0, ENDED, 2.0)
    assert plan.decide(2.0) == [Ask((1, 2))]
    plan.ended(2, FAILED, 3.0)
    assert plan.decide(3.0) == [Ask((1,))]
    plan.left_behind(4.0)
    assert plan.decide(4.0) == []
    assert plan.wake_at == 4.0 + REPORT_SECONDS
    assert plan.decide(4.0 + REPORT_SECONDS) == [Finish(True)]
