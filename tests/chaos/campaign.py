"""Many cases, in an order that depends on the seed alone, with honest progress."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterable, Iterator
from typing import Final

from frontends.command_line.measuring import progress
from tests.chaos.case import MAX_RANKS, Case, draw
from tests.chaos.faults import FAULTS, TRANSPORTS, Bed
from tests.chaos.process_bed import ProcessBed
from tests.chaos.table import Tally
from tests.chaos.verdict import Outcome

EVERY: Final = 5.0
"""Seconds between two lines of progress."""
LONGEST_TEXT: Final = 4000
"""Characters shown of a finding."""


def kinds(bed: Bed, count: int, dice: random.Random, only: Iterable[str] = ()) -> list[tuple[str, str]]:
    """About `count` pairs of transport and fault, by their shares, each at least once, shuffled per transport.

    only   names of transports and faults to choose from; none of a kind: all
    """
    only = set(only)
    transports = [name for name in TRANSPORTS[bed] if name in only] or list(TRANSPORTS[bed])
    everything = [fault for (where, _), fault in FAULTS.items() if where == bed]
    faults = [fault for fault in everything if fault.name in only] or everything
    whole = len(transports) * sum(fault.share for fault in faults)
    chosen = []
    for transport in transports:
        mine = [(transport, fault.name) for fault in faults for _ in range(max(1, round(count * fault.share / whole)))]
        dice.shuffle(mine)
        chosen += mine
    return chosen


def for_threads(count: int, seed: int, only: Iterable[str] = ()) -> list[Case]:
    """About `count` cases on threads."""
    dice = random.Random(f"{seed}/threads")
    chosen = kinds("threads", count, dice, only)
    dice.shuffle(chosen)
    return [draw("threads", transport, fault, seed + number) for number, (transport, fault) in enumerate(chosen)]


def on_processes(chosen: Iterable[tuple[str, str]], seed: int, patience: float = 0.0) -> Iterator[Outcome]:
    """Run a case for each (transport, fault), one after the other; survivors go on to the next."""
    dice = random.Random(f"{seed}/sizes")
    with ProcessBed(patience=patience) as bed:
        for number, (transport, fault) in enumerate(chosen):
            fits = bed.transport == transport and len(bed.world) > 1
            size = len(bed.world) if fits else dice.randint(2, MAX_RANKS)
            outcome = bed.run(Case("processes", transport, fault, size, seed + number))
            yield outcome
        last = bed.part()
        if last:
            yield dataclasses.replace(outcome, findings=tuple(last))


def report(outcomes: Iterable[Outcome], about: int, tally: Tally, title: str) -> None:
    """Count outcomes as they come, saying how far it is and what failed."""
    begun = said = time.monotonic()
    number = failed = 0
    with progress(title, about) as done:
        for number, outcome in enumerate(outcomes, 1):
            tally.add(outcome)
            done(f"{failed} failed")
            if outcome.findings:
                failed += 1
                print(describe(outcome), flush=True)
            now = time.monotonic()
            if now - said >= EVERY:
                said = now
                left = (now - begun) / number * max(0, about - number)
                print(f"{title}: {number} of {about} cases, {failed} failed, about {left:.0f} s left", flush=True)
    print(f"{title}: {number} cases, {failed} failed, {time.monotonic() - begun:.0f} s", flush=True)


def describe(outcome: Outcome) -> str:
    """A case that failed: what was broken, and how to repeat it."""
    lines = [f"FAILED {outcome.case}"]
    lines += [f"  {finding.broken}: {finding.text[:LONGEST_TEXT]}" for finding in outcome.findings]
    lines.append(f"  again: python -m tests.chaos case {outcome.case}")
    return "\n".join(lines)
