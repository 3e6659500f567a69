"""The outcomes of ranks: when enough are known, and what they come to. Pure: the moments are given."""

from __future__ import annotations

import math

import pytest

from collectives.launch import ElasticOutcomes, Failure, Outcomes, Success, WorkerLost
from transports.errors import PeerLost


def consequence(rank: int) -> Failure:
    return Failure(rank, PeerLost("rank 9 is gone", rank=9))


def lost(rank: int) -> Failure:
    return Failure(rank, WorkerLost(f"rank {rank} was lost"))


def test_results_are_in_rank_order() -> None:
    outcomes = Outcomes([0, 1])
    outcomes.add(Success(1, "one"), now=0.0)
    assert not outcomes.decided
    outcomes.add(Success(0, "zero"), now=1.0)
    assert (outcomes.decided, outcomes.until) == (True, math.inf)
    assert outcomes.values() == ["zero", "one"]


def test_a_consequence_waits_for_its_cause() -> None:
    outcomes = Outcomes([0, 1, 2], patience=5.0)
    outcomes.add(consequence(0), now=10.0)
    assert (outcomes.decided, outcomes.until, outcomes.waiting) == (False, 15.0, {1, 2})
    outcomes.add(Failure(2, ValueError("cause")), now=11.0)
    assert outcomes.decided
    with pytest.raises(ValueError, match="cause"):
        outcomes.values()


def test_an_elastic_job_goes_on_without_a_lost_rank_and_with_its_replacement() -> None:
    outcomes = ElasticOutcomes(["a", "b"], losses=1)
    outcomes.lose("b", lost(1))
    assert (outcomes.decided, outcomes.failed, outcomes.until) == (False, True, math.inf)
    outcomes.members.add("c")
    outcomes.add("a", Success(0, 10), now=1.0)
    assert not outcomes.decided
    outcomes.add("c", Success(2, 20), now=2.0)
    assert outcomes.decided
    assert outcomes.values() == {"a": 10, "c": 20}


@pytest.mark.parametrize(("losses", "decided"), [(None, False), (2, False), (1, True)])
def test_an_elastic_job_bears_so_many_losses(losses: int | None, decided: bool) -> None:
    outcomes = ElasticOutcomes("abc", losses)
    outcomes.lose("a", lost(0))
    outcomes.lose("b", lost(1))
    assert outcomes.decided is decided
    outcomes.add("c", Success(2, 30), now=1.0)
    if decided:
        with pytest.raises(WorkerLost):
            outcomes.values()
    else:
        assert outcomes.values() == {"c": 30}


def test_an_elastic_job_of_which_all_ranks_are_lost_fails() -> None:
    outcomes = ElasticOutcomes("ab", None)
    outcomes.lose("a", lost(0))
    outcomes.lose("b", lost(1))
    assert outcomes.decided
    with pytest.raises(WorkerLost):
        outcomes.values()


def test_ranks_that_do_not_go_on_without_a_lost_one_report_the_loss() -> None:
    outcomes = ElasticOutcomes("ab", None, patience=5.0)
    outcomes.lose("a", lost(0))
    outcomes.add("b", consequence(1), now=10.0)
    assert (outcomes.decided, outcomes.until) == (True, 15.0)
    with pytest.raises(WorkerLost):
        outcomes.values()


def test_an_error_of_the_function_ends_an_elastic_job_at_once() -> None:
    outcomes = ElasticOutcomes("ab", None)
    outcomes.add("a", Failure(0, ValueError("cause")), now=0.0)
    assert (outcomes.decided, outcomes.members) == (True, {"b"})
    with pytest.raises(ValueError, match="cause"):
        outcomes.values()


@pytest.mark.parametrize(("minimum", "coming", "goes_on"), [(1, 0, True), (2, 1, True), (2, 0, False)])
def test_a_newcomer_that_cannot_join_ends_the_job_that_waits_for_it(minimum: int, coming: int, goes_on: bool) -> None:
    outcomes = ElasticOutcomes("ab", None, minimum)
    outcomes.lose("a", lost(0))
    assert outcomes.refuse(Failure(2, ImportError("no such module")), coming, now=1.0) is goes_on
    assert outcomes.decided is not goes_on
    if goes_on:
        outcomes.add("b", Success(1, 10), now=2.0)
        assert outcomes.values() == {"b": 10}
    else:
        with pytest.raises(ImportError, match="no such module"):
            outcomes.values()


def test_a_newcomer_that_comes_too_late_is_no_failure() -> None:
    outcomes = ElasticOutcomes("ab", None, 2)
    outcomes.add("a", Success(0, 10), now=1.0)
    assert outcomes.refuse(consequence(2), 0, now=2.0)
    outcomes.add("b", Success(1, 20), now=3.0)
    assert outcomes.values() == {"a": 10, "b": 20}
