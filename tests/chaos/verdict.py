"""Checks the ranks' reports against the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tests.chaos.case import Case
from tests.chaos.faults import Said, Victim, lost_or_told
from tests.chaos.survivor import Told
from transports.errors import AbortedError, MismatchError

Broken = Literal["hang", "wrong", "leak", "culprit", "alarm", "late", "stuck"]
"""hang     a rank did not come to an end
wrong    a result was wrong, an input changed, or an exception was raised that the contract does not know
leak     threads, descriptors, memory files or processes were left behind
culprit  a survivor raised nothing, or another kind of error, or named another cause than the one there was
alarm    an error without a cause
late     the last survivor raised later than promised
stuck    the survivors did not go on
"""


@dataclass(frozen=True)
class Finding:
    broken: Broken
    text: str


@dataclass(frozen=True)
class Event:
    """The time of the fault (monotonic seconds), and its victim."""

    at: float
    victim: Victim


@dataclass(frozen=True)
class Outcome:
    """A case, judged.

    struck        the fault took place
    asked, named  survivors that raised or should have, and those of them that named the right culprit
    detection     seconds from the fault until the last survivor raised
    recovery      seconds from the first call of shrink until all had a right result, of the slowest survivor
    """

    case: Case
    struck: bool
    asked: int
    named: int
    detection: float | None
    recovery: float | None
    findings: tuple[Finding, ...]


def judge(case: Case, event: Event | None, tales: Mapping[int, Told | None], patience: float = 0.0) -> Outcome:
    """The verdict on what each rank told; None for one that did not come to an end.

    patience  seconds beyond what is promised, for machines that are busy with something else
    """
    findings = [Finding("hang", f"rank {rank} did not come to an end") for rank, told in tales.items() if told is None]
    for rank, told in tales.items():
        if told is not None:
            findings += [Finding("wrong", f"rank {rank}: {told.wrong}")] if told.wrong else []
            findings += [Finding("leak", f"rank {rank}: {leak}") for leak in told.leaks]
    survivors = {rank: tales[rank] for rank in case.survivors}
    said = {rank: told.said for rank, told in survivors.items() if told is not None and told.said is not None}
    fault = case.fault
    if event is None or fault.harmless:
        for rank, error in said.items():
            findings.append(Finding("alarm", f"rank {rank} raised without a cause: {error.kind}: {error.message}"))
        return Outcome(case, event is not None, 0, 0, None, _recovery(survivors), tuple(findings))
    silent = [rank for rank, told in survivors.items() if told is not None and told.said is None and not told.wrong]
    if (fault.optional or fault.unchecked) and not said:
        return Outcome(case, True, 0, 0, None, None, tuple(findings))
    findings += [Finding("culprit", f"rank {rank} raised nothing") for rank in silent]
    named = 0
    first = min(said.values(), key=lambda error: error.at) if said else None
    for rank, error in said.items():
        complaint = _complaint(case, error, event.victim, first)
        if complaint:
            findings.append(Finding("culprit", f"rank {rank} {complaint}: {error.kind}: {error.message}"))
        else:
            named += 1
    detection = max(error.at for error in said.values()) - event.at if said else None
    promised = case.promise + patience
    if detection is not None and detection > promised:
        findings.append(Finding("late", f"the last survivor raised after {detection:.2f} s, promised {promised:g} s"))
    for rank, told in survivors.items():
        if told is None or told.said is None:
            continue
        if told.trouble:
            findings.append(Finding("stuck", f"rank {rank} did not recover: {told.trouble}"))
        elif told.survivors != case.survivors:
            findings.append(Finding("stuck", f"rank {rank} went on with {told.survivors}, not {case.survivors}"))
    return Outcome(case, True, len(said) + len(silent), named, detection, _recovery(survivors), tuple(findings))


def _complaint(case: Case, error: Said, victim: Victim, first: Said | None) -> str:
    """The complaint about an error; empty if it is right."""
    if not case.fault.unchecked and error.kind not in case.fault.kinds:
        return f"raised no {' or '.join(sorted(case.fault.kinds))}"
    if not case.fault.names(error, victim):
        return f"did not name rank {victim.rank} (pid {victim.pid})"
    if case.fault.unchecked and error.kind == AbortedError.__name__:
        return ""  # what is broken has struck on: several ranks may have given up, each for its own reason
    if first is not None and case.fault.names is lost_or_told and error.kind != first.kind:
        return ""  # over two links: by one it was lost, by the other it could still speak
    if first is not None and error.cause != first.cause and error.kind != MismatchError.__name__:
        return f"named another cause than the first, {first.cause!r}"
    return ""


def _recovery(survivors: Mapping[int, Told | None]) -> float | None:
    return max((told.recovery for told in survivors.values() if told and told.recovery is not None), default=None)
