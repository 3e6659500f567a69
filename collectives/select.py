"""Which algorithm, in how many segments: a cost model, unless a rule (rules.py) or the caller says otherwise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from collectives.algorithms import Algorithm, algorithms
from collectives.config import Config
from collectives.model import Model, predict
from collectives.rules import MAX_SEGMENTS, Rule, Rules
from collectives.schedule import Geometry
from collectives.specs import SPECS
from transports.base import Transport

_SEGMENT_BYTES: Final = (1 << 16, 1 << 18, 1 << 20)
"""Sizes of segments that are tried."""
_CONTESTED_BYTES: Final = 1 << 16
"""Bytes from which one copy of the kernel's may be faster than two by way of a stage."""
_ROUNDING: Final = 32
"""Bytes by which the largest piece may exceed an even share: one element of the largest dtype."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A call as far as the choice depends on it.

    nbytes       of all blocks together (alltoall: of one rank's row)
    block        bytes of the largest block
    stage_bytes  of half a window; 0 where there are none
    uniform      all blocks have the same size
    reproducible only algorithms that combine in the canonical order will do
    windows      the arrays lie in windows
    lends        the ranks may read each other's private memory
    hopeful      the call must end without effect where the ranks' blocks are not what was hoped
    native       why the transport's native collectives cannot do it; empty if they can
    """

    collective: str
    geometry: Geometry
    nbytes: int
    block: int
    stage_bytes: int = 0
    uniform: bool = True
    reproducible: bool = False
    windows: bool = False
    lends: bool = False
    hopeful: bool = False
    native: str = "it is for arrays on GPUs, where the transport has collectives of its own"


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run, and the seconds that it should take."""

    algorithm: Algorithm
    segments: int
    seconds: float


class Selector:
    """Chooses for one communicator. The same demand gives the same choice on every rank."""

    def __init__(self, model: Model, rules: Rules, transport: str) -> None:
        self._model = rules.model(model, transport)
        self._rules = rules.of(transport)

    @classmethod
    def from_config(cls, config: Config, transport: Transport) -> Selector:
        """The selector for a transport, by the configured rules, and its own figures where they tell none."""
        inside, across = transport.link_costs()
        model = Model(
            alpha=inside.latency, beta=inside.per_byte, inter_alpha=across.latency, inter_beta=across.per_byte
        )
        return cls(model, Rules.read(config.rules), transport.name)

    def check(self, collective: str, algorithm: str | None) -> None:
        """Raises ValueError unless `algorithm` is None or the name of one for this collective."""
        if algorithm is not None and algorithm not in algorithms(collective, native=True):
            names = ", ".join(algorithms(collective, native=True))
            raise ValueError(f"algorithm={algorithm!r}: for {collective} it must be one of {names}")

    def contenders(self, demand: Demand, algorithm: str | None = None) -> tuple[Choice, Choice | None]:
        """What `choose` would; and for a large call by way of a stage one that has the kernel copy from rank to rank.
        Which of them is faster no model knows: both are to be tried."""
        choice = self.choose(demand, algorithm)
        free = algorithm is None and self._ruled(demand) is None
        staged = choice.algorithm.onesided and not choice.algorithm.windows
        if not (free and staged) or demand.nbytes < _CONTESTED_BYTES:
            return choice, None
        able = [
            self._best(known, demand)
            for known in algorithms(demand.collective).values()
            if known.lends and known.finishes == choice.algorithm.finishes and not obstacle(known, demand)
        ]
        return choice, min(able, key=lambda found: found.seconds, default=None)

    def choose(self, demand: Demand, algorithm: str | None = None) -> Choice:
        """The cheapest way to meet the demand, or the way that the caller or a rule insists on. It takes one that needs
        lent memory only if they do.

        Raises ValueError if `algorithm` cannot meet it.
        """
        self.check(demand.collective, algorithm)
        known = algorithms(demand.collective, native=True)
        if algorithm is not None:
            reason = obstacle(known[algorithm], demand)
            if reason:
                raise ValueError(f"algorithm={algorithm!r}: {reason}")
            return self._best(known[algorithm], demand)
        rule = self._ruled(demand)
        if rule is not None:
            return self._best(known[rule.algorithm], demand, rule.segments)
        able = [candidate for candidate in known.values() if not candidate.lends and not obstacle(candidate, demand)]
        choices = [self._best(candidate, demand) for candidate in able]
        return min(choices, key=lambda choice: (not choice.algorithm.native, choice.seconds))

    def _ruled(self, demand: Demand) -> Rule | None:
        """The first rule for a demand whose algorithm can meet it."""
        for rule in self._rules:
            fits = (
                rule.collective == demand.collective
                and rule.min_bytes <= demand.nbytes <= rule.max_bytes
                and rule.min_ranks <= demand.geometry.size <= rule.max_ranks
            )
            if fits and not obstacle(algorithms(demand.collective, native=True)[rule.algorithm], demand):
                return rule
        return None

    def _best(self, algorithm: Algorithm, demand: Demand, segments: int = 0) -> Choice:
        wanted = [segments] if segments else _segmentings(algorithm, demand)
        choices = []
        for number in wanted:
            geometry = dataclasses.replace(demand.geometry, segments=max(number, _fewest_segments(algorithm, demand)))
            seconds = predict(algorithm, geometry, demand.nbytes, self._model)
            choices.append(Choice(algorithm, geometry.segments, seconds))
        return min(choices, key=lambda choice: choice.seconds)


def obstacle(algorithm: Algorithm, demand: Demand) -> str:
    """Why an algorithm cannot meet a demand; empty if it can."""
    if algorithm.native and demand.native:
        return demand.native
    if algorithm.onesided:
        if not demand.stage_bytes:
            return "it needs one-sided windows that all ranks map, and there are none here"
        if not algorithm.segmented and _fewest_segments(algorithm, demand) > 1:
            return f"it needs more staging memory than the {demand.stage_bytes} bytes of the setting stage_bytes"
    elif demand.hopeful:
        return "it has an effect on the other ranks even if their parts are of other sizes"
    if algorithm.lends and not demand.lends:
        return "it needs ranks that may read each other's memory, which the system does not allow here, or knows no way"
    if algorithm.windows and not demand.windows:
        return "it needs arrays that lie in windows: see Communicator.empty"
    if algorithm.multihost and len(set(demand.geometry.hosts)) < 2:
        return "it is for ranks on several hosts, and these are on one"
    if algorithm.uniform and not demand.uniform:
        return "it needs parts of equal size"
    if demand.reproducible and not algorithm.tree_order:
        return "it does not combine in the fixed order that reproducible=True asks for"
    return ""


def _fewest_segments(algorithm: Algorithm, demand: Demand) -> int:
    """Segments without which the pieces would not fit into the stage."""
    if not algorithm.onesided:
        return 1
    slots = algorithm.staged(demand.geometry.size, 2 if algorithm.segmented else 1)
    if not slots:
        return 1
    slot = demand.stage_bytes // slots
    whole = _block_bytes(algorithm, demand)
    fewest = -(-whole // max(1, slot)) or 1
    if whole % (fewest * _ROUNDING) == 0:  # then all pieces are of one size
        return fewest
    return -(-whole // max(1, slot - _ROUNDING))


def _block_bytes(algorithm: Algorithm, demand: Demand) -> int:
    if SPECS[demand.collective].by_rank:
        return demand.block
    return -(-demand.nbytes // algorithm.blocks(demand.geometry.size))


def _segmentings(algorithm: Algorithm, demand: Demand) -> list[int]:
    """Numbers of segments worth trying, the same on every rank."""
    if not algorithm.segmented:
        return [1]
    block = _block_bytes(algorithm, demand)
    if algorithm.exposed:  # nobody waits for a segment; it is to stay in the cache
        return [min(MAX_SEGMENTS, -(-block // _SEGMENT_BYTES[1])) or 1]
    return sorted({1, *(min(MAX_SEGMENTS, -(-block // size)) for size in _SEGMENT_BYTES if block > size)})
