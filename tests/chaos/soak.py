"""Minutes of mixed collectives under random small faults; nothing may grow.

Four ranks compute, are stopped for a moment, killed, interrupted; the survivors shrink and compute on; when two are
left, they leave it, and with two fresh processes make a new world. Two processes are never struck, so that they live
through all of it: they, and the harness, are measured between the worlds, when they should hold nothing, and must not
grow.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

from tests.chaos.campaign import EVERY, describe
from tests.chaos.case import Case
from tests.chaos.faults import FAULTS
from tests.chaos.plot import draw
from tests.chaos.process_bed import BOUND, Ended, ProcessBed
from tests.chaos.rank import Compute, Measure
from tests.chaos.samples import MIB, Sample, grown, take
from tests.chaos.survivor import Told
from tests.chaos.verdict import Finding

RANKS: Final = 4
OLD: Final = 2
"""Ranks that are never struck."""
SMALL: Final = ("pause", "kill", "exit", "stop", "leave", "raise", "interrupt")
TRANSPORTS: Final = ("auto", "shm", "tcp")
MOST: Final = 20
"""Failures after which it is given up."""
STRETCH: Final = 2.0
"""Seconds of computing between two faults; less in a short soak."""


class Soak:
    """One soak: what was measured, what was tried, what went wrong."""

    def __init__(self, seconds: float, seed: int) -> None:
        self._until = time.monotonic() + seconds
        self._dice = random.Random(f"{seed}/soak")
        self._seed = seed
        self._stretch = min(STRETCH, seconds / 100)
        self._number = 0
        self.samples: dict[str, list[Sample]] = {}
        self.worlds = self.faults = self.calls = 0
        self.failures: list[str] = []

    def run(self, bed: ProcessBed) -> None:
        """World after world, until the time is over or too much has failed."""
        said = time.monotonic()
        for number in count():
            left = self._until - time.monotonic()
            if left <= 0 or len(self.failures) >= MOST:
                break
            if time.monotonic() - said >= EVERY:
                said = time.monotonic()
                print(
                    f"soak: {self.worlds} worlds, {self.faults} faults, {self.calls} calls, {left:.0f} s left",
                    flush=True,
                )
            self._world(bed, TRANSPORTS[number % len(TRANSPORTS)])
        self._note(bed.part())

    def _world(self, bed: ProcessBed, transport: str) -> None:
        """One world, from its beginning until two ranks are left."""
        self._note(bed.part())
        self._measure(bed)
        self._note(bed.renew(transport, RANKS))
        self.worlds += 1
        self._compute(bed)
        while len(bed.world) > OLD and time.monotonic() < self._until:
            outcome = bed.run(self._case(transport, len(bed.world)))
            self.faults += outcome.struck
            if outcome.findings:
                self._fail(describe(outcome))
            self._compute(bed)

    def _case(self, transport: str, size: int) -> Case:
        """The next fault, which strikes a rank that may be struck."""
        weights = [FAULTS["processes", name].share for name in SMALL]
        name = self._dice.choices(SMALL, weights)[0]
        while True:
            self._number += 1
            case = Case("processes", transport, name, size, self._seed + self._number)
            if case.victim >= OLD:
                return case

    def _compute(self, bed: ProcessBed) -> None:
        self._number += 1
        for rank in bed.world:
            rank.order(Compute(self._seed + self._number, self._stretch))
        for place, rank in enumerate(bed.world):
            try:
                told = rank.hear(Told, time.monotonic() + BOUND + self._stretch)
            except Ended as error:
                told = Told(wrong=str(error))
            if told is None:
                self._fail(f"rank {place} hangs:\n{rank.stacks()}")
                bed.discard()
                return
            if told.wrong or told.said is not None:
                self._fail(f"rank {place}, without a fault: {told.wrong or told.said}")
                bed.discard()
                return
            if place == 0:
                self.calls += told.calls

    def _measure(self, bed: ProcessBed) -> None:
        self.samples.setdefault("harness", []).append(replace(take(), segments=len(bed.segments())))
        for place, rank in enumerate(bed.world[:OLD]):
            rank.order(Measure())
            sample = rank.hear(Sample, time.monotonic() + BOUND)
            if sample is None:
                self._fail(f"rank {place} hangs:\n{rank.stacks()}")
                bed.discard()
                return
            self.samples.setdefault(f"rank {place}, pid {rank.pid}", []).append(sample)

    def _note(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            self._fail(f"{finding.broken}: {finding.text}")

    def _fail(self, text: str) -> None:
        print(text, flush=True)
        self.failures.append(text)


def run(minutes: float, seed: int, plot: Path | None = None, patience: float = 0.0) -> bool:
    """Soak for so many minutes and say what came of it; True if nothing failed and nothing grew. `patience` is as of
    `judge`."""
    soak = Soak(60 * minutes, seed)
    with ProcessBed(patience=patience) as bed:
        soak.run(bed)
    rises = grown(soak.samples)
    print(
        f"soak: {soak.worlds} worlds, {soak.faults} faults, {soak.calls} calls in {minutes:g} min, seed {seed}: "
        f"{len(soak.failures)} failures, {'growth' if rises else 'no growth'}"
    )
    for text in rises:
        print(text)
    for name, series in soak.samples.items():
        first, last = series[len(series) // 4], series[-1]
        print(
            f"  {name}: memory {first.memory / MIB:.1f} -> {last.memory / MIB:.1f} MiB, descriptors "
            f"{first.descriptors:g} -> {last.descriptors:g}, threads {first.threads:g} -> {last.threads:g}"
        )
    if plot is not None:
        print(draw(soak.samples, f"{minutes:g} minutes, {soak.worlds} worlds, {soak.faults} faults", plot))
    return not soak.failures and not rises
