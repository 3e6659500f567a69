"""A case: one fault, at one moment of one stream of calls. Its name says all that is needed to repeat it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tests.chaos.faults import FAULTS, HEARTBEAT, PROMISE, TRANSPORTS, Bed, Fault

MAX_RANKS: Final = 5
SHORT: Final = 1.0
"""Seconds of a call where nothing but its deadline tells."""
LONGER: Final = 3.0
"""More seconds of it, at most, where there is patience: a first call alone took more than one on a busy machine."""


@dataclass(frozen=True)
class Case:
    """`size` ranks over `transport` compute the calls of `seed` until `fault` strikes one of them.

    patience  see `judge`. It is no part of the name
    """

    bed: Bed
    transport: str
    fault_name: str
    size: int
    seed: int
    patience: float = 0.0

    def __str__(self) -> str:
        return f"{self.bed}/{self.transport}/{self.fault_name}/{self.size}/{self.seed}"

    @classmethod
    def parse(cls, name: str) -> Case:
        """The case of that name. Raises ValueError saying what a name is."""
        try:
            bed, transport, fault, size, seed = name.split("/")
            case = cls(bed, transport, fault, int(size), int(seed))  # type: ignore[arg-type]  # checked below
        except ValueError:
            raise ValueError(f"case {name!r}: must be bed/transport/fault/ranks/seed") from None
        if (bed, fault) not in FAULTS:
            raise ValueError(f"case {name!r}: {bed}/{fault} must be one of {', '.join(map('/'.join, FAULTS))}")
        if transport not in TRANSPORTS[case.bed] or not 2 <= case.size <= MAX_RANKS:
            raise ValueError(f"case {name!r}: must be 2 to {MAX_RANKS} ranks over {', '.join(TRANSPORTS[case.bed])}")
        return case

    @property
    def fault(self) -> Fault:
        return FAULTS[self.bed, self.fault_name]

    @property
    def timeout(self) -> float | None:
        """Seconds of each call, where nothing but the deadline tells; else None."""
        return SHORT + min(LONGER, self.patience) if self.fault.times_out else None

    @property
    def promise(self) -> float:
        """Seconds after the fault by which all survivors must have raised."""
        silent_host = self.transport == "auto" and self.fault_name == "stop"
        return PROMISE + self.fault.extra + (self.timeout or 0.0) + (HEARTBEAT if silent_host else 0.0)

    @property
    def victim(self) -> int:
        return self.dice("victim").randrange(self.size)

    @property
    def survivors(self) -> tuple[int, ...]:
        """The ranks that go on after it."""
        gone = () if self.fault.survives or self.fault.harmless else (self.victim,)
        return tuple(rank for rank in range(self.size) if rank not in gone)

    def dice(self, what: str) -> random.Random:
        """Dice for one purpose, the same in every process."""
        return random.Random(f"{self}/{what}")


def draw(bed: Bed, transport: str, fault: str, seed: int) -> Case:
    """A case with a random number of ranks."""
    return Case(bed, transport, fault, random.Random(f"{bed}/{transport}/{fault}/{seed}").randint(2, MAX_RANKS), seed)
