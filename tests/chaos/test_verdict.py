"""The judge finds what is broken, and only that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.case import Case
from tests.chaos.faults import FAULTS, Said, Victim
from tests.chaos.survivor import Told
from tests.chaos.verdict import Event, Outcome, judge

CASE = Case("processes", "tcp", "kill", 3, 0)
VICTIM = Victim(CASE.victim, 4242)
EVENT = Event(100.0, VICTIM)
GOOD = Said(
    "PeerLost",
    f"rank {VICTIM.rank} (node, pid 4242) closed the connection [in allreduce(float32, 3 elements, op=sum), call 1]",
    CASE.survivors[0],
    VICTIM.rank,
    100.2,
)


def tales(**changes: object) -> dict[int, Told | None]:
    """Two survivors that did all right, the first of them with changes."""
    right = Told(calls=3, said=GOOD, survivors=CASE.survivors, recovery=0.1)
    first, second = CASE.survivors
    return {VICTIM.rank: Told(), first: replace(right, **changes), second: right}  # type: ignore[arg-type]


def broken(outcome: Outcome) -> set[str]:
    return {finding.broken for finding in outcome.findings}


def test_all_is_well() -> None:
    outcome = judge(CASE, EVENT, tales())
    assert not outcome.findings
    assert (outcome.asked, outcome.named, outcome.recovery) == (2, 2, 0.1)
    assert outcome.detection == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("wrong", {"wrong": "call 2: element 3 is 4"}),
        ("leak", {"leaks": ["descriptors: 4 before the case, 9 after it"]}),
        ("culprit", {"said": None}),
        ("culprit", {"said": replace(GOOD, kind="DeadlineExceeded")}),
        ("culprit", {"said": replace(GOOD, peer=CASE.survivors[1])}),
        ("culprit", {"said": replace(GOOD, message=GOOD.message.replace("4242", "1"))}),
        ("culprit", {"said": replace(GOOD, message=GOOD.message.replace("closed", "left"), at=100.3)}),
        ("late", {"said": replace(GOOD, at=101.2)}),
        ("stuck", {"trouble": "RendezvousError"}),
        ("stuck", {"survivors": (0, 1, 2)}),
    ],
)
def test_each_broken_promise_is_found(kind: str, changes: dict[str, object]) -> None:
    assert broken(judge(CASE, EVENT, tales(**changes))) == {kind}


def test_a_rank_that_is_lost_by_one_link_may_still_speak_by_another() -> None:
    case = replace(CASE, transport="auto", fault_name="close")
    victim, (first, second) = Victim(case.victim, 4242), case.survivors
    lost = replace(GOOD, peer=victim.rank, message=GOOD.message.replace(f"rank {VICTIM.rank}", f"rank {victim.rank}"))
    told = replace(lost, kind="AbortedError", message=lost.message.replace("closed", "gave up"), at=100.3)
    right = Told(calls=3, said=lost, survivors=case.survivors, recovery=0.1)
    stories = {case.victim: Told(), first: right, second: replace(right, said=told)}
    assert not judge(case, Event(100.0, victim), stories).findings
    stories[second] = replace(right, said=replace(told, kind="PeerLost"))
    assert broken(judge(case, Event(100.0, victim), stories)) == {"culprit"}


def test_who_does_not_end_hangs() -> None:
    assert "hang" in broken(judge(CASE, EVENT, {**tales(), CASE.survivors[0]: None}))


def test_an_error_without_a_fault_is_a_false_alarm() -> None:
    assert broken(judge(CASE, None, tales())) == {"alarm"}
    assert broken(judge(replace(CASE, fault_name="pause"), EVENT, tales())) == {"alarm"}


def test_a_late_error_is_no_matter_where_only_the_deadline_tells() -> None:
    case = replace(CASE, fault_name="freeze")
    event = Event(100.0, Victim(case.victim, 4242))
    said = replace(GOOD, kind="DeadlineExceeded", peer=case.victim, at=100.8 + (case.timeout or 0.0))
    said = replace(said, message=said.message.replace(f"rank {VICTIM.rank}", f"rank {case.victim}"))
    told = Told(said=said, survivors=case.survivors, recovery=0.1)
    assert not judge(case, event, dict.fromkeys(range(3), told)).findings


@pytest.mark.parametrize(
    "name", ["kill/tcp", "threads/tcp/nonsense/3/1", "threads/tcp/kill/9/1", "threads/auto/kill/3/1"]
)
def test_names_of_cases_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"case '{name}': "):
        Case.parse(name)


@pytest.mark.parametrize("bed", ["threads", "processes"])
def test_a_name_says_all(bed: str) -> None:
    for (where, fault), _ in FAULTS.items():
        if where == bed:
            case = Case(where, "tcp", fault, 4, 17)
            assert Case.parse(str(case)) == case
            assert Case.parse(str(case)).victim == case.victim
