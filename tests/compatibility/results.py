"""Outcomes of the tests of others, and how those on ronde differ from those on gloo."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DELIBERATE: Final = {
    r"torch: test_monitored_barrier_.*": "torch.distributed.monitored_barrier accepts no backend but one named gloo. "
    "`group.monitored_barrier` works",
    r"accelerate: test_distributed_data_loop": "hangs on gloo, as its ranks call different collectives on the CPU; "
    "raises DistBackendError with both calls on ronde",
}
"""Tests that are meant to end in another way than on gloo, by a pattern of their names, and the reasons."""


@dataclass(frozen=True, order=True)
class Bed:
    """A place where tests run: their project, the number of ranks, the backend, and its transport ("" for
    gloo)."""

    project: str
    size: int
    backend: str
    transport: str = ""

    def __str__(self) -> str:
        return f"{self.project} {self.size} {self.backend} {self.transport}".rstrip()


@dataclass(frozen=True)
class Difference:
    """A test that did not end as on gloo. `reason` is empty if that is not deliberate."""

    bed: Bed
    name: str
    outcome: str
    reason: str


class Results:
    """Outcomes of tests ("passed", "skipped", "failed", "late"), by bed and name; kept in a file."""

    def __init__(self, outcomes: Mapping[Bed, Mapping[str, str]] | None = None) -> None:
        self.outcomes: dict[Bed, dict[str, str]] = {bed: dict(names) for bed, names in (outcomes or {}).items()}

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file; without one there are no outcomes."""
        if not path.exists():
            return cls()
        read = json.loads(path.read_text(encoding="utf-8"))
        return cls({Bed(*row["bed"]): row["outcomes"] for row in read})

    def save(self, path: Path) -> None:
        """Write the file."""
        rows = [
            {"bed": [bed.project, bed.size, bed.backend, bed.transport], "outcomes": dict(sorted(names.items()))}
            for bed, names in sorted(self.outcomes.items())
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    def add(self, bed: Bed, outcomes: Mapping[str, str]) -> None:
        """Replace the outcomes of some tests."""
        self.outcomes.setdefault(bed, {}).update(outcomes)

    def differences(self) -> list[Difference]:
        """The tests that pass on gloo and not elsewhere, and those that are late on gloo and not elsewhere."""
        found = []
        for bed, names in sorted(self.outcomes.items()):
            right = self.outcomes.get(Bed(bed.project, bed.size, "gloo"), {})
            for name, outcome in sorted(names.items()):
                if right.get(name) in ("passed", "late") and outcome != right[name]:
                    found.append(Difference(bed, name, outcome, reason_of(f"{bed.project}: {name}")))
        return found


def reason_of(name: str) -> str:
    """The reason why a test is meant to differ, "" without one."""
    return next((reason for pattern, reason in DELIBERATE.items() if re.fullmatch(pattern, name)), "")


def count(outcomes: Iterable[str], outcome: str) -> int:
    """The number of times that an outcome occurs."""
    return sum(each == outcome for each in outcomes)
