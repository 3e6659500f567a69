"""Choose the algorithm of a call and its number of segments.

In this order: the caller's `algorithm=`, the first rule that fits (rules.py), and the cheapest by the cost model among
those that are staged, or that use single copy (single_copy.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from collectives.algorithms import Algorithm, algorithms
from collectives.config import Config
from collectives.planning.cost_model import Model, Terms, terms
from collectives.planning.rules import MAX_SEGMENTS, NO_LIMIT, Rule, Rules
from collectives.planning.single_copy import NEVER, single_copy_from
from collectives.schedule import SPECS, Geometry
from transports.base import LinkCost, Transport
from transports.core_count import count_together

_SEGMENT_BYTES: Final = (1 << 16, 1 << 18, 1 << 20)
"""Sizes of the segments of messages to compare by cost."""
_STAGED_BYTES: Final = 1 << 19
"""Most bytes that a rank stages for one segment. The two sets of slots of a call then fit into a core's own cache of
1 MiB, from which the peers read them. They also fill a peer's, so that the lines that it has read are not there any
more when they are written again, which is slow where cores share no cache. See decisions/0040."""
_FAR_SEGMENT_BYTES: Final = (1 << 13, 1 << 15)
"""More sizes for ranks on several hosts: a slow link needs as long for these bytes as for the way of a message."""
SINGLE_COPY_BYTES: Final = 1 << 16
"""Smallest call for which single-copy algorithms are considered unless the caller or a rule names one."""
ONE_WAY_BYTES: Final = 1 << 8
"""Largest call of a rooted collective that is sent by messages where ranks share cores. A rank that sends goes on, and
its core changes ranks once for many calls; in a window it waits in each call for its readers. See decisions/0055."""
_ROUNDING: Final = 32
"""Bytes by which the largest piece may exceed an even share: one element of the largest dtype."""
_WHOLE: Final = (1,)
"""The numbers of segments to compare where an algorithm has none."""
_MOST_KINDS: Final = 1024
"""Kinds of demands whose candidates are kept."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The properties of a call on which the choice depends. Equal on all ranks.

    nbytes        bytes of all blocks together (alltoall: of one rank's row)
    block         bytes of the largest block
    stage_bytes   bytes of half the staging window; 0: there is none
    uniform       all blocks have the same size
    reproducible  the algorithm must combine in the canonical order
    windows       the arrays lie in windows
    single_copy   the ranks may read each other's private memory
    speculative   the call must end without effect if the ranks' blocks differ from what it assumes
    native        reason why the transport's native collectives cannot do it; empty if they can
    """

    collective: str
    geometry: Geometry
    nbytes: int
    block: int
    stage_bytes: int = 0
    uniform: bool = True
    reproducible: bool = False
    windows: bool = False
    single_copy: bool = False
    speculative: bool = False
    native: str = "it is for arrays on GPUs, where the transport has collectives of its own"

    @property
    def kind(self) -> tuple[Any, ...]:
        """All but the sizes."""
        traits = self.uniform, self.reproducible, self.windows, self.single_copy, self.speculative, self.native
        return self.collective, self.geometry, self.stage_bytes, *traits


class Choice(NamedTuple):
    """An algorithm in a geometry with the best number of segments, and its predicted seconds."""

    algorithm: Algorithm
    geometry: Geometry
    seconds: float

    @property
    def segments(self) -> int:
        """The number of segments."""
        return self.geometry.segments


class Candidate:
    """An algorithm for demands of one kind: all that does not depend on the sizes is computed once."""

    def __init__(self, algorithm: Algorithm, demand: Demand, model: Model) -> None:
        """`demand` is any of the kind."""
        geometry, size = demand.geometry, demand.geometry.size
        self.algorithm = algorithm
        self._blocks = 0 if SPECS[demand.collective].by_rank else algorithm.blocks(size)
        """The number of blocks that it cuts the data into; 0 if the blocks are those of the demand."""
        self._stages = algorithm.onesided and algorithm.stage_chunks(size)
        """Chunks that one segment occupies in the stage."""
        slots = algorithm.staged_chunks(size, 2 if algorithm.segmented else 1) if self._stages else 0
        self._slot = max(1, demand.stage_bytes // slots) if slots else NO_LIMIT
        """Bytes of the largest piece that fits into the stage."""
        self._exposed = bool(algorithm.exposed)
        self._far = len(set(geometry.hosts)) > 1
        self._geometry = geometry
        self._model = model
        self._costs: dict[int, tuple[Geometry, Terms]] = {}

    def too_large(self, demand: Demand) -> bool:
        """True if its pieces need more staging memory than there is."""
        return not self.algorithm.segmented and self._fewest_segments(self._block_bytes(demand)) > 1

    def consider(self, demand: Demand) -> Choice | None:
        """Choose the number of segments; None if it cannot do this demand of its kind, or does it with chunks that are
        too small."""
        block = self._block_bytes(demand)
        fewest = 1 if block <= self._slot - _ROUNDING else self._fewest_segments(block)
        if block < self.algorithm.chunk_bytes or (fewest > 1 and not self.algorithm.segmented):
            return None
        return self._best(demand.nbytes, fewest, self._segmentings(block) if self.algorithm.segmented else _WHOLE)

    def best(self, demand: Demand, segments: int = 0) -> Choice:
        """Choose the number of segments, at least `segments` if that is not 0."""
        block = self._block_bytes(demand)
        wanted = [segments] if segments else self._segmentings(block) if self.algorithm.segmented else _WHOLE
        return self._best(demand.nbytes, self._fewest_segments(block), wanted)

    def _best(self, nbytes: int, fewest: int, wanted: Sequence[int]) -> Choice:
        """The cheapest of some numbers of segments, which is at least `fewest`."""
        best: Choice | None = None
        for number in wanted:
            segments = max(number, fewest)
            found = self._costs.get(segments)
            if found is None:
                geometry = dataclasses.replace(self._geometry, segments=segments)
                found = self._costs[segments] = geometry, terms(self.algorithm, geometry, self._model)
            seconds = sum(found[1](nbytes).values())
            if best is None or seconds < best.seconds:
                best = Choice(self.algorithm, found[0], seconds)
        assert best is not None
        return best

    def _block_bytes(self, demand: Demand) -> int:
        """Return the bytes of the largest block."""
        return -(-demand.nbytes // self._blocks) if self._blocks else demand.block

    def _fewest_segments(self, block: int) -> int:
        """Return the smallest number of segments whose pieces fit into the stage."""
        slot = self._slot
        fewest = -(-block // slot) or 1
        if block % (fewest * _ROUNDING) == 0:  # all pieces have one size
            return fewest
        return -(-block // max(1, slot - _ROUNDING))

    def _segmentings(self, block: int) -> list[int]:
        """Return the numbers of segments to compare, the same on every rank."""
        algorithm = self.algorithm
        if self._exposed:  # no rank waits for a segment; its size only has to fit into the cache
            return [min(MAX_SEGMENTS, -(-block // _SEGMENT_BYTES[1])) or 1]
        if algorithm.onesided:
            return [-(-block * self._stages // _STAGED_BYTES) or 1]
        sizes = (*_SEGMENT_BYTES, *_FAR_SEGMENT_BYTES) if self._far else _SEGMENT_BYTES
        if block <= min(sizes):
            return [1]
        return sorted(
            {1, *(min(MAX_SEGMENTS, -(-block // size)) for size in sizes if block > size >= algorithm.chunk_bytes)}
        )


class Selector:
    """The choice for one communicator. The same demand gives the same choice on every rank and at every time."""

    def __init__(self, model: Model, rules: Rules, transport: str) -> None:
        self._model = rules.model(model, transport)
        self._rules = rules.of(transport)
        self.digest = rules.digest()
        self.kernel_table = rules.kernel_table()
        """The kernels for copies between processes that the rules tell, if they do."""
        self._single_copy = rules.single_copy_of(transport)
        self.shared_arrays = False
        """True if the arrays of all ranks are born shared. Set before the first call is planned, or never."""
        self.link: LinkCost | None = None
        """The cost of a message between hosts, if it was measured."""
        self._link_is_ruled = rules.tells_link(transport)
        self._candidates: dict[tuple[Any, ...], list[Candidate]] = {}

    @property
    def needs_link(self) -> bool:
        """True if neither a measurement nor a [[costs]] row of the rules tells the cost of messages between hosts."""
        return self.link is None and not self._link_is_ruled

    def use_link(self, link: LinkCost) -> None:
        """Count with a measured cost of messages between hosts. To be called before the first call is planned."""
        self.link = link
        self._model = dataclasses.replace(
            self._model, inter_alpha=link.latency, inter_beta=link.per_byte, inter_betas=link.hosts
        )
        self._candidates = {}

    def on_hosts(self, hosts: Iterable[int]) -> Selector:
        """Return the selector of a communicator split from this one, which is on `hosts`, in the order of its ranks."""
        other = copy(self)
        if self.link is not None and self.link.hosts:
            other.use_link(dataclasses.replace(self.link, hosts=tuple(self.link.hosts[host] for host in hosts)))
        return other

    def single_copy_from(self, collective: str, size: int) -> int:
        """Return the bytes from which a collective of `size` ranks uses single copy, or NEVER: those of a
        [[single_copy]] row of the rules, else the usual ones."""
        for row in self._single_copy:
            if row.collective == collective and row.min_ranks <= size <= row.max_ranks:
                return row.from_bytes
        return single_copy_from(collective, size, shared=self.shared_arrays)

    @classmethod
    def from_config(cls, config: Config, transport: Transport) -> Selector:
        """Make the selector of a transport, from the configured rules, from the transport's own link costs and from the
        cores of its ranks."""
        inside, across = transport.link_costs()
        members = transport.group.members
        one_host = len({member.host for member in members}) == 1
        processes = len({member.pid for member in members}) == len(members)
        model = Model(
            alpha=inside.latency,
            beta=inside.per_byte,
            inter_alpha=across.latency,
            inter_beta=across.per_byte,
            cores=count_together([one.cores for one in members]) if one_host and processes else 0,
        )
        return cls(model, Rules.read(config.rules), transport.name)

    def check(self, collective: str, algorithm: str | None) -> None:
        """Raises ValueError unless `algorithm` is None or the name of one for this collective."""
        known = isinstance(algorithm, str) and algorithm in algorithms(collective, native=True)
        if algorithm is not None and not known:
            names = ", ".join(algorithms(collective, native=True))
            raise ValueError(f"algorithm={algorithm!r}: for {collective} it must be one of {names}")

    def without_effect(self, collective: str) -> tuple[str, ...]:
        """The algorithms that have no effect on the other ranks where their parts are of other sizes than assumed, and
        that can meet every rank's demand if they can meet one: not those that depend on the arrays' windows."""
        known = algorithms(collective, native=True)
        return tuple(name for name, found in known.items() if found.onesided and not found.windows)

    def choose(self, demand: Demand, algorithm: str | None = None) -> Choice:
        """Choose the named algorithm, else that of the first rule that fits, else the cheapest.

        Raises ValueError if `algorithm` cannot meet it.
        """
        if algorithm is not None:
            self.check(demand.collective, algorithm)
            found = algorithms(demand.collective, native=True)[algorithm]
            reason = obstacle(found, demand)
            if reason:
                raise ValueError(f"algorithm={algorithm!r}: {reason}")
            return self._candidate(found, demand).best(demand)
        rule = self._ruled(demand) if self._rules else None
        if rule is not None:
            found = algorithms(demand.collective, native=True)[rule.algorithm]
            return self._candidate(found, demand).best(demand, rule.segments)
        return min(self.able(demand), key=_preference)

    def able(self, demand: Demand) -> list[Choice]:
        """Return all algorithms that can meet a demand, staged or single copy, in the best segments."""
        considered = [candidate.consider(demand) for candidate in self._of_kind(demand)]
        able = [choice for choice in considered if choice is not None]
        if self._wants_messages(demand):
            able = [choice for choice in able if not choice.algorithm.onesided] or able
        wanted = self._wants_single_copy(demand)
        return [choice for choice in able if choice.algorithm.single_copy == wanted] or able

    def _of_kind(self, demand: Demand) -> list[Candidate]:
        """The algorithms that can meet demands of this kind."""
        kind = demand.kind
        found = self._candidates.get(kind)
        if found is None:
            if len(self._candidates) >= _MOST_KINDS:
                self._candidates.clear()
            empty, known = dataclasses.replace(demand, nbytes=0, block=0), algorithms(demand.collective, native=True)
            found = [Candidate(each, demand, self._model) for each in known.values() if not obstacle(each, empty)]
            self._candidates[kind] = found
        return found

    def _candidate(self, algorithm: Algorithm, demand: Demand) -> Candidate:
        return next(candidate for candidate in self._of_kind(demand) if candidate.algorithm is algorithm)

    def _wants_single_copy(self, demand: Demand) -> bool:
        """True to consider only single-copy algorithms, False to consider only others."""
        if demand.windows or demand.nbytes < SINGLE_COPY_BYTES or not demand.single_copy:
            return False
        start = self.single_copy_from(demand.collective, demand.geometry.size)
        return start != NEVER and demand.nbytes >= start

    def _wants_messages(self, demand: Demand) -> bool:
        """True to consider only messages."""
        shared = 0 < self._model.cores < demand.geometry.size
        return shared and SPECS[demand.collective].rooted and demand.nbytes <= ONE_WAY_BYTES and not demand.windows

    def _ruled(self, demand: Demand) -> Rule | None:
        """Return the first rule that fits a demand and whose algorithm can meet it."""
        for rule in self._rules:
            fits = (
                rule.collective == demand.collective
                and rule.min_bytes <= demand.nbytes <= rule.max_bytes
                and rule.min_ranks <= demand.geometry.size <= rule.max_ranks
            )
            if fits and not obstacle(algorithms(demand.collective, native=True)[rule.algorithm], demand):
                return rule
        return None


def _preference(choice: Choice) -> tuple[bool, float, bool, bool]:
    """Native ones first, then the cheapest; of equal cost one that combines in the canonical order, then one without
    segments."""
    found = choice.algorithm
    return not found.native, choice.seconds, not found.tree_order, found.segmented


def obstacle(algorithm: Algorithm, demand: Demand) -> str:
    """Return the reason why an algorithm cannot meet a demand; empty if it can."""
    if algorithm.native and demand.native:
        return demand.native
    if algorithm.only_size not in (0, demand.geometry.size):
        return f"it is for {algorithm.only_size} ranks, and these are {demand.geometry.size}"
    if algorithm.onesided:
        if not demand.stage_bytes:
            return "it needs one-sided windows that all ranks map, and there are none here"
        if Candidate(algorithm, demand, Model()).too_large(demand):
            return f"it needs more staging memory than the {demand.stage_bytes} bytes of the setting stage_bytes"
    elif demand.speculative and (demand.stage_bytes or algorithm.native):
        return "it is not known to end without effect if the ranks' parts are of other sizes"
    if algorithm.single_copy and not demand.single_copy:
        return "it needs ranks that may read each other's memory, and the system does not allow or support that here"
    if algorithm.windows and not demand.windows:
        return "it needs arrays that lie in windows: see Communicator.empty"
    if algorithm.multihost and len(set(demand.geometry.hosts)) < 2:
        return "it is for ranks on several hosts, and these are on one"
    if algorithm.uniform and not demand.uniform:
        return "it needs parts of equal size"
    if demand.reproducible and not algorithm.tree_order:
        return "it does not combine in the fixed order that reproducible=True asks for, or an op that does not commute"
    return ""
