"""Call -> Plan: choose an algorithm, lower it, and remember the result for the next call of the same shape."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collectives.algorithms import Algorithm
from collectives.contest import Alike, Contest
from collectives.meter import Meter, Tally
from collectives.program import Program, lay_out, lower, split_evenly
from collectives.schedule import Geometry
from collectives.select import Choice, Demand, Selector
from collectives.specs import SPECS
from collectives.windows import Places

_CACHED_PLANS = 256
_PAGE = 4096
_STAYS = 1 << 14
"""Bytes that are always staged at the same place."""
_ROUND_BYTES = 4 << 20
"""What the stages of all ranks hold together that calls go through in turn: see Plan.turns. More than two cores keep in
their own caches, less than they share."""


class Call(NamedTuple):
    """What is to be done, without the arrays: the key of a plan. Equal on all ranks, but for `alias`.

    blocks     elements of every block of a by-rank collective (-1 where unknown); one entry if all are equal, or where
               the algorithm is free to cut the data (then the total)
    alias      element offset of IN within OUT when the call is in place
    algorithm  a name that the caller insists on
    uneven     alltoall: blocks were given by the caller and may differ
    rest       the dimensions of x behind the first, in a call made in the hope that all ranks' x are of one shape; if
               they are not, the run ends without effect
    within     what it is a part of, in words, if it is not the whole of what the caller asked for
    windows    where the arrays lie, if they lie in windows
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
    rest: tuple[int, ...] | None = None
    within: str = ""
    windows: Places | None = None

    def placed(self, places: Places) -> Call:
        """The same call on arrays that lie in windows."""
        return self._replace(windows=places)

    def describe(self) -> str:
        """'allreduce(float32, 1000 elements, op=sum)', for messages."""
        if self.within:
            return f"{self._replace(within='').describe()} within {self.within}"
        spec = SPECS[self.collective]
        if self.collective == "barrier":
            return "barrier()"
        words = [str(self.dtype), f"{sum(count for count in self.blocks if count > 0)} elements"]
        if self.op is not None:
            words.append(f"op={self.op}")
        if spec.rooted:
            words.append(f"root={self.root}")
        if self.windows is not None:
            places = [f"{place.window}+{place.offset}" for place in self.windows if place is not None]
            words.append(f"in windows {', '.join(places)}")
        return f"{self.collective}({', '.join(words)})"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Plan:
    """A program with what its execution needs to know.

    nbytes  how large the arrays are, as nccl-tests says it: all parts together; for alltoall, what a rank gives
    check   32 bits that differ between calls which do not fit together; every frame carries them
    tally   what the meter counts
    turns   how many places in the window its calls use in turn: those of even number lie in one half, the others in the
            other, `stride` bytes from each other. Memory that another core has just read is slow to be written: it goes
            two to five times as fast where that core has read so much since that its own cache has lost it
    bound   what the executor keeps for it: its instructions bound to memory, by turn
    rivals  itself and another plan of the call, if which is faster is found out by trial; then they are run, not this
    contest which of them has the turn: one for all calls of its kind
    """

    call: Call
    algorithm: Algorithm
    geometry: Geometry
    program: Program
    nbytes: int
    check: int
    turns: int = 2
    stride: int = 0
    tally: Tally = field(default_factory=Tally, compare=False)
    bound: dict[int, Any] = field(default_factory=dict, compare=False)
    rivals: tuple[Plan, ...] = ()
    contest: Contest | None = field(default=None, compare=False)

    @property
    def averages(self) -> bool:
        """True if the result is an average already; else that of an average is the sum."""
        return self.call.op == "average" and self.algorithm.finishes


class Planner:
    """The plans of one communicator."""

    def __init__(
        self,
        geometry: Geometry,
        selector: Selector,
        stage_bytes: int,
        meter: Meter,
        label: str = "",
        obstacle: Callable[[Call], str] | None = None,
    ) -> None:
        """`meter` counts what is done with the plans; `label` tells its tracks in a timeline from the communicator's
        others; `obstacle` says why a call cannot be done by the transport's native collectives, if there are any."""
        self.meter = meter
        self.label = label
        self._geometry = geometry
        self._selector = selector
        self._stage_bytes = stage_bytes
        self._obstacle = obstacle
        self._plans: dict[Call, Plan] = {}
        self._contests: dict[Alike, Contest] = {}
        self.lends = False
        """Whether the ranks may read each other's private memory: to be set before anything is planned."""

    def for_devices(self, obstacle: Callable[[Call], str]) -> Planner:
        """A planner for arrays on devices, which no window holds; `obstacle` as above."""
        return Planner(self._geometry, self._selector, 0, self.meter, self.label, obstacle)

    def forget(self) -> None:
        """Drop all plans."""
        self._plans.clear()

    def unbind(self) -> None:
        """Let all plans forget the memory that they are bound to."""
        for plan in self._plans.values():
            for bound in (plan, *plan.rivals):
                bound.bound.clear()

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
        known = all_blocks(call, size) if spec.by_rank else call.blocks
        total = sum(count for count in known if count > 0)
        demand = Demand(
            call.collective,
            dataclasses.replace(self._geometry, root=call.root),
            (total // size if call.collective == "alltoall" else total) * itemsize,
            max(known) * itemsize,
            0 if call.uneven else self._stage_bytes,
            not call.uneven and len(set(known)) == 1,
            call.reproducible,
            call.windows is not None,
            self.lends,
            call.rest is not None,
        )
        if self._obstacle is not None:
            demand = dataclasses.replace(demand, native=self._obstacle(call))
        if call.uneven:  # this rank knows its own parts only; the choice must not depend on them
            demand = dataclasses.replace(demand, nbytes=0, block=0)
        choice, other = self._selector.contenders(demand, call.algorithm)
        plan = self._lower(call, demand, known, choice)
        if other is None:
            return plan
        contest = self._contests.setdefault(Alike(call.collective, plan.nbytes.bit_length()), Contest())
        return dataclasses.replace(plan, rivals=(plan, self._lower(call, demand, known, other)), contest=contest)

    def _lower(self, call: Call, demand: Demand, known: Sequence[int], choice: Choice) -> Plan:
        """The plan for what has been chosen."""
        spec, algorithm = SPECS[call.collective], choice.algorithm
        size, itemsize = self._geometry.size, call.dtype.itemsize
        geometry = dataclasses.replace(demand.geometry, segments=choice.segments)
        blocks = known if spec.by_rank else split_evenly(call.blocks[0], algorithm.blocks(size))
        program = lower(
            algorithm.generate(geometry), lay_out(spec, geometry, blocks, alias=call.alias, alike=not algorithm.lends)
        )
        agreed = call._replace(alias=None, blocks=() if call.uneven else call.blocks)
        check = zlib.crc32(repr((agreed, algorithm.name, choice.segments)).encode())
        row = geometry.rank * size
        counts = known[row : row + size] if call.collective == "alltoall" else known
        nbytes = sum(count for count in counts if count > 0) * itemsize
        stride = algorithm.staged(size, choice.segments) * -(-max(blocks) // choice.segments) * itemsize
        stride = -(-stride // _PAGE) * _PAGE
        places = min(self._stage_bytes, _ROUND_BYTES // 2 // size) // stride if stride > _STAYS else 1
        plan = Plan(call, algorithm, geometry, program, nbytes, check, 2 * max(1, places), stride)
        self.meter.follow(plan)
        return plan


def all_blocks(call: Call, size: int) -> tuple[int, ...]:
    """The blocks of a by-rank collective, one entry each."""
    return call.blocks if len(call.blocks) != 1 else call.blocks * SPECS[call.collective].blocks(size)
