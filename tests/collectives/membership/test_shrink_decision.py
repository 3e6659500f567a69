"""The decision on the survivors."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from collectives.membership.decision import Blame, Knowledge, decide_survivors

# ---- the decision


@st.composite
def knowledge(draw: st.DrawFn) -> Knowledge:
    size = draw(st.integers(1, 8))
    ranks = st.integers(0, size - 1)
    blames = st.builds(Blame, st.just("blamed"), st.floats(0, 10))
    return Knowledge(
        size,
        frozenset(draw(st.sets(ranks))),
        draw(st.dictionaries(ranks, st.just("lost"))),
        draw(st.dictionaries(ranks, blames)),
    )


@given(knowledge(), st.floats(0, 20), st.floats(0, 20))
def test_decision_follows_from_the_knowledge(known: Knowledge, waited: float, timeout: float) -> None:
    decision, awaited = decide_survivors(known, waited, timeout)
    everyone = set(range(known.size))
    assert (decision is None) == bool(awaited)
    for rank in awaited:
        assert rank not in known.here
        assert rank not in known.lost
        assert waited < timeout
        assert rank not in known.blamed or waited < known.blamed[rank].patience
    if decision is None:
        later, _ = decide_survivors(known, timeout, timeout)
        assert later is not None
        return
    assert list(decision.survivors) == sorted(decision.survivors)
    assert set(decision.survivors) == known.here - set(known.lost)
    assert set(decision.survivors) | set(decision.left_out) == everyone
    assert not set(decision.survivors) & set(decision.left_out)
    for rank, why in decision.left_out.items():
        if rank in known.lost:
            assert why == "lost"
        elif rank in known.blamed and waited >= known.blamed[rank].patience:
            assert why == "blamed"
        elif waited >= timeout:
            assert rank in known.blamed or why == f"it did not come within {timeout:g} s"
    assert decide_survivors(known, waited + 1, timeout)[0] is not None
    more = dataclasses.replace(known, here=known.here | {0})
    assert decide_survivors(more, waited, timeout)[0] is not None
