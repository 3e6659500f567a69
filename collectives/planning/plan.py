"""Call -> Plan: choose an algorithm, lower it, and remember the result for the next call of the same shape."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from collectives.algorithms import Algorithm, Generator
from collectives.arrays import Averaging
from collectives.planning.call import Call
from collectives.planning.select import Choice, Demand, Selector
from collectives.planning.tally import Tally
from collectives.schedule import SPECS, Geometry, Marks, Program, Step, lay_out, lower, split_evenly
from transports.numbers import Numbers

log = logging.getLogger("ronde.planning")

_MOST_PLANS: Final = 1024
"""Plans that are kept. One more, and all are forgotten: the cache has one way to lose a plan."""
_MOST_SCHEDULES: Final = 64
"""Schedules that are kept for more plans. Each is smaller than the program of one plan."""
MOST_PHASES: Final = 1 << 17
"""Phases of a program at the most: as many as an array of 64 GiB has in the staging window."""
_PAGE = 4096
_SMALL = 1 << 14
"""A plan that stages no more bytes than this uses one slot in each half."""
_ROTATION_BYTES = 4 << 20
"""Bytes of all ranks' staging slots of a plan together: more than the private caches of two cores hold, less than a
cache that they share."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Plan:
    """A program with the facts that its execution needs.

    number  distinguishes the plans of this rank
    nbytes  size of the arrays as nccl-tests defines it: all parts together; for alltoall, one rank's input
    check   32-bit digest of the call, in every frame (see `check_of`); differs between calls that do not match
    tally   counts for the meter
    staging_slots  calls of the plan use so many slots of the staging window in rotation; see the picture
    slot_stride    bytes from one slot to the next in the same half
    bound   form -> the instructions bound to memory in that form, which the executor keeps: its rows, its table; and
            the scratch memory of both

             first half of the window             second half
        +--------+--------+--------+---      +--------+--------+---
        | slot 0 | slot 2 | slot 4 |         | slot 1 | slot 3 |
        +--------+--------+--------+---      +--------+--------+---
         <stride>

    Successive calls alternate between the halves, so that a call never overwrites data that a peer may still read for
    the call before. Writing to memory that another core has just read is slow; it is two to five times as fast after
    that core has read so much other memory that its private cache has dropped those lines. Hence several slots in each
    half.
    """

    call: Call
    algorithm: Algorithm
    geometry: Geometry
    program: Program
    number: int
    nbytes: int
    check: int
    staging_slots: int = 2
    slot_stride: int = 0
    tally: Tally = field(default_factory=Tally, compare=False)
    bound: dict[object, Any] = field(default_factory=dict, compare=False)

    def check_of(self, number: int) -> int:
        """The check of a call of this plan: `check`, and the number of the call within its executor."""
        return self.check ^ (number & 0xFFFFFFFF)

    @property
    def common(self) -> int:
        """32-bit digest of what must be equal on all ranks. That is `check`, but for a speculative call, which assumes
        that sizes are equal: they may differ, and then its ranks find out and agree on them."""
        call = self.call
        if call.shape is None:
            return self.check
        return Call(call.collective, call.dtype, (), shape=call.shape[1:]).digest()

    @property
    def averages(self) -> bool:
        """True if the program averages while it combines. Otherwise its result for op average is the sum.

        Every combination of two ranks is the last one. With more ranks the algorithm must mark them; a reproducible
        average does not depend on the algorithm. Integers are averaged around the exchange, and one rank combines
        nothing.
        """
        call, size = self.call, self.geometry.size
        if call.op != "average" or call.dtype.kind in "iu":
            return False
        return size == 2 or (size > 2 and self.algorithm.finishes and not call.reproducible)

    def averaging(self, marks: int) -> Averaging:
        """The combination of a step with these marks, in a program that averages."""
        size = self.geometry.size
        marks = Marks.PAIR if size == 2 else marks
        return Averaging(size, bool(marks & Marks.A_ALONE), bool(marks & Marks.B_ALONE), bool(marks & Marks.LAST))


class Planner:
    """The plans of one communicator."""

    def __init__(
        self,
        geometry: Geometry,
        selector: Selector,
        stage_bytes: int,
        on_new_plan: Callable[[Plan], object],
        label: str = "",
        obstacle: Callable[[Call], str] | None = None,
        numbers: Numbers | None = None,
    ) -> None:
        """Plan for one executor.

        stage_bytes   bytes of half the staging window; 0: there is none
        on_new_plan   called with every new plan
        label         names the executor's tracks in a timeline
        obstacle      tells why the transport's native collectives cannot do a call; empty if they can. None: the
                      transport has none
        numbers       the numbers of plans; by default they count from 1
        """
        self._on_new_plan = on_new_plan
        self.label = label
        self._geometry = geometry
        self._selector = selector
        self._stage_bytes = stage_bytes
        self._obstacle = obstacle
        self._numbers = Numbers(1) if numbers is None else numbers
        self.numbered: dict[int, Plan] = {}
        """Number -> plan, of this planner and of that for devices. Emptied when either forgets its plans."""
        self._plans: dict[Call, Plan] = {}
        self._derived: list[dict[Any, Any]] = []
        self.single_copy = False
        """True if the ranks may read each other's private memory. Set it before the first call is planned."""

    @property
    def onesided(self) -> bool:
        """True if the ranks share memory, or will before the first call runs."""
        return self._stage_bytes > 0

    def stage_nothing(self) -> None:
        """Plan without a window from now on: there was no memory for it. No call has run yet."""
        self._stage_bytes = 0
        self.forget()

    def for_devices(self, obstacle: Callable[[Call], str]) -> Planner:
        """Return a planner for arrays on devices, which lie in no window; `obstacle` as above."""
        planner = Planner(self._geometry, self._selector, 0, self._on_new_plan, self.label, obstacle, self._numbers)
        planner.numbered = self.numbered
        return planner

    def forget(self) -> None:
        """Drop all plans, and everything that was derived from them."""
        self._plans.clear()
        self.numbered.clear()
        for cache in self._derived:
            cache.clear()

    def close(self) -> None:
        """Drop all plans and what they are bound to, once no call runs. Bound instructions refer to their plan: both
        would keep the window's memory until the next garbage collection."""
        for plan in list(self._plans.values()):
            plan.bound.clear()
        self.forget()

    def cache(self) -> dict[Any, Any]:
        """Return a new dictionary for values derived from plans, which is emptied when the plans are forgotten."""
        self._derived.append({})
        return self._derived[-1]

    def plan(self, call: Call) -> Plan:
        """Return the plan of a call, made at its first occurrence. Raises ValueError for an unusable `algorithm`."""
        plan = self._plans.get(call)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self.forget()
            plan = self._plans[call] = self._make(call)
        return plan

    def _make(self, call: Call) -> Plan:
        spec = SPECS[call.collective]
        size, itemsize = self._geometry.size, call.dtype.itemsize
        known = all_blocks(call, size) if spec.by_rank else call.blocks
        total = sum(count for count in known if count > 0)
        nbytes = (total // size if call.collective == "alltoall" else total) * itemsize
        geometry = dataclasses.replace(self._geometry, root=call.root) if call.root else self._geometry
        demand = Demand(
            call.collective,
            geometry,
            0 if call.uneven else nbytes,  # each rank knows its own parts only, and all must choose alike
            0 if call.uneven else max(known) * itemsize,
            0 if call.uneven else self._stage_bytes,
            not call.uneven and len(set(known)) == 1,
            call.reproducible,
            call.windows is not None,
            self.single_copy,
            call.shape is not None,
        )
        if self._obstacle is not None:
            demand = dataclasses.replace(demand, native=self._obstacle(call))
        choice = self._selector.choose(demand, call.algorithm)
        if size > 1 and self._obstacle is None and _all_know_it_is_empty(call, known):
            # Without elements there are no messages, and so no rank would notice that another one has some
            demand = dataclasses.replace(demand, collective="barrier", reproducible=False, windows=False)
            choice = self._selector.choose(demand)
        return self._lower(call, known, choice)

    def _lower(self, call: Call, known: Sequence[int], choice: Choice) -> Plan:
        """Lower the chosen algorithm for this call."""
        algorithm, geometry, segments = choice.algorithm, choice.geometry, choice.segments
        spec = SPECS[algorithm.collective]
        size, itemsize = geometry.size, call.dtype.itemsize
        blocks = known if spec.by_rank else split_evenly(call.blocks[0], algorithm.blocks(size))
        program = lower(
            _steps(algorithm.generate, geometry),
            lay_out(spec, geometry, blocks, alias=call.alias, alike=not algorithm.single_copy),
        )
        if program.phases > MOST_PHASES:
            total = sum(count for count in known if count > 0) * itemsize
            raise ValueError(
                f"x: {total} bytes need {program.phases} phases by algorithm {algorithm.name!r}, and {MOST_PHASES} are "
                f"allowed: exchange the array in pieces"
            )
        agreed = call._replace(alias=None, blocks=() if call.uneven else call.blocks)
        check = agreed.digest(algorithm.name, segments)
        row = geometry.rank * size
        counts = known[row : row + size] if call.collective == "alltoall" else known
        nbytes = sum(count for count in counts if count > 0) * itemsize
        stride = algorithm.staged_chunks(size, segments) * -(-max(blocks) // segments) * itemsize
        stride = -(-stride // _PAGE) * _PAGE
        slots = min(self._stage_bytes, _ROTATION_BYTES // 2 // size) // stride if stride > _SMALL else 1
        plan = Plan(call, algorithm, geometry, program, next(self._numbers), nbytes, check, 2 * max(1, slots), stride)
        self.numbered[plan.number] = plan
        self._on_new_plan(plan)
        log.debug(
            "%s of %d bytes on %d ranks: %s, segments: %d",
            call.collective,
            nbytes,
            size,
            algorithm.name,
            segments,
        )
        return plan


@lru_cache(maxsize=_MOST_SCHEDULES)
def _steps(generate: Generator, geometry: Geometry) -> tuple[Step, ...]:
    """The steps of an algorithm, which depend on no size: other sizes of a call have other offsets alone."""
    return tuple(generate(geometry))


def _all_know_it_is_empty(call: Call, known: Sequence[int]) -> bool:
    """True if no rank has an element in the call, and every rank knows that."""
    spec = SPECS[call.collective]
    own = call.uneven or (spec.by_rank and spec.rooted)  # each rank knows its own parts only
    return not (own or any(known) or call.shape is not None)


def all_blocks(call: Call, size: int) -> tuple[int, ...]:
    """Return the blocks of a by-rank collective, one entry each."""
    return call.blocks if len(call.blocks) != 1 else call.blocks * SPECS[call.collective].blocks(size)
