"""Call -> Plan: choose an algorithm, lower it, and remember the result for the next call of the same shape."""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collectives.algorithms import Algorithm
from collectives.program import Program, lay_out, lower, split_evenly
from collectives.schedule import Geometry
from collectives.select import Demand, Selector
from collectives.specs import SPECS

_CACHED_PLANS = 256


class Call(NamedTuple):
    """What is to be done, without the arrays: the key of a plan. Equal on all ranks, but for `alias`.

    blocks     elements of every block of a by-rank collective (-1 where unknown); one entry if all are equal, or where
               the algorithm is free to cut the data (then the total)
    alias      element offset of IN within OUT when the call is in place
    algorithm  a name that the caller insists on
    uneven     alltoall: blocks were given by the caller and may differ
    """

    collective: str
    dtype: np.dtype[Any]
    blocks: tuple[int, ...]
    op: str | None = None
    root: int = 0
    alias: int | None = None
    algorithm: str | None = None
    reproducible: bool = False
    uneven: bool = False

    def describe(self) -> str:
        """'allreduce(float32, 1000 elements, op=sum)', for messages."""
        spec = SPECS[self.collective]
        if self.collective == "barrier":
            return "barrier()"
        words = [str(self.dtype), f"{sum(count for count in self.blocks if count > 0)} elements"]
        if self.op is not None:
            words.append(f"op={self.op}")
        if spec.rooted:
            words.append(f"root={self.root}")
        return f"{self.collective}({', '.join(words)})"


@dataclass(frozen=True, slots=True)
class Plan:
    """A program with what its execution needs to know.

    check   32 bits that differ between calls which do not fit together; every frame carries them
    bound   what the executor keeps for it: its instructions bound to memory, by half of the window
    """

    call: Call
    algorithm: Algorithm
    geometry: Geometry
    program: Program
    check: int
    bound: dict[int, Any] = field(default_factory=dict, compare=False)


class Planner:
    """The plans of one communicator."""

    def __init__(self, geometry: Geometry, selector: Selector, stage_bytes: int) -> None:
        self._geometry = geometry
        self._selector = selector
        self._stage_bytes = stage_bytes
        self._plans: dict[Call, Plan] = {}

    def forget(self) -> None:
        """Drop all plans."""
        self._plans.clear()

    def plan(self, call: Call) -> Plan:
        """The plan of a call, made on its first occurrence. Raises ValueError for an unusable `algorithm`."""
        plan = self._plans.get(call)
        if plan is None:
            if len(self._plans) >= _CACHED_PLANS:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[call] = self._make(call)
        return plan

    def _make(self, call: Call) -> Plan:
        spec = SPECS[call.collective]
        size, itemsize = self._geometry.size, call.dtype.itemsize
        known = _all_blocks(call, size) if spec.by_rank else call.blocks
        total = sum(count for count in known if count > 0)
        demand = Demand(
            call.collective,
            dataclasses.replace(self._geometry, root=call.root),
            (total // size if call.collective == "alltoall" else total) * itemsize,
            max(known) * itemsize,
            0 if call.uneven else self._stage_bytes,
            not call.uneven and len(set(known)) == 1,
            call.reproducible,
        )
        if call.uneven:  # this rank knows its own parts only; the choice must not depend on them
            demand = dataclasses.replace(demand, nbytes=0, block=0)
        choice = self._selector.choose(demand, call.algorithm)
        algorithm = choice.algorithm
        geometry = dataclasses.replace(demand.geometry, segments=choice.segments)
        blocks = known if spec.by_rank else split_evenly(call.blocks[0], algorithm.blocks(size))
        program = lower(algorithm.generate(geometry), lay_out(spec, geometry, blocks, alias=call.alias))
        agreed = call._replace(alias=None, blocks=() if call.uneven else call.blocks)
        check = zlib.crc32(repr((agreed, algorithm.name, choice.segments)).encode())
        return Plan(call, algorithm, geometry, program, check)


def _all_blocks(call: Call, size: int) -> tuple[int, ...]:
    """The blocks of a by-rank collective, one entry each."""
    return call.blocks if len(call.blocks) != 1 else call.blocks * SPECS[call.collective].blocks(size)
