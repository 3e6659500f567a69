"""A campaign without detection fails: so it tests detection."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from collectives.failure.abort import AbortSignal
from collectives.watchdog.liveness import NextProcess
from tests.chaos import thread_bed
from tests.chaos.case import Case
from tests.chaos.process_bed import ProcessBed
from tests.chaos.rank import Order, Seat

SECONDS = 2.5
"""The timeout of calls: what notices in the end, where nothing else does."""


@dataclass(frozen=True)
class Blind(Order):
    """Take the watchdog's sight of the other processes of the host."""

    def obey(self, seat: Seat) -> None:
        NextProcess.check = lambda process: None  # type: ignore[method-assign]


@pytest.mark.processes
def test_without_detection_a_stopped_rank_is_noticed_too_late() -> None:
    case = Case("processes", "tcp", "stop", 2, 3)
    with ProcessBed(patience=5.0, start="spawn") as bed:
        assert not bed.run(case).findings
    with ProcessBed({"timeout": SECONDS}, first=[Blind()], start="spawn") as bed:
        assert {"late", "culprit"} <= {finding.broken for finding in bed.run(case).findings}


@pytest.mark.processes
def test_without_a_heartbeat_a_silent_host_is_noticed_too_late() -> None:
    case = Case("processes", "auto", "stop", 2, 3)  # each rank is alone on its host
    with ProcessBed({"heartbeat": 0.0, "timeout": SECONDS}, start="spawn") as bed:
        assert {"late", "culprit"} <= {finding.broken for finding in bed.run(case).findings}


def test_without_the_abort_signal_no_rank_learns_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("threads", "tcp", "raise", 3, 3)
    assert not thread_bed.run(case, patience=5.0).findings
    monkeypatch.setattr(AbortSignal, "raise_abort", lambda abort_signal, cause: None)
    outcome = thread_bed.run(case, patience=5.0, settings={"timeout": SECONDS})
    assert "culprit" in {finding.broken for finding in outcome.findings}
