"""The content of a picture: who passes which blocks to whom, and when."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, Literal

from collectives.algorithms import Algorithm
from collectives.planning import Model
from collectives.proof import Activity, count_blocks, simulate
from collectives.schedule import Buf, Geometry, Kind, Ref, Step

MOST_RANKS: Final = 64
"""Ranks of a picture that people can still read."""
MOST_STEPS: Final = 200_000
"""Steps of all ranks of a picture: more take minutes."""
_SENDS: Final = Model(alpha=1.0, beta=0.0, gamma=0.0, copy=0.0, inter_alpha=1.0, inter_beta=0.0)
"""Every message takes 1, local work no time: the begin of a message is the number of its round."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a rank does.

    kind     send: `chunks` go from `rank` to `peer`; read: `rank` copies or combines them out of the memory of `peer`;
             combine: `rank` has combined them
    chunks   the first one and their number; the first one is -1 if they are packed, from several places
    begin    in units of one message, from the beginning of the call
    label    the step in words
    """

    kind: Literal["send", "read", "combine"]
    rank: int
    peer: int
    chunks: tuple[int, int]
    begin: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Picture:
    """All events of a call, by their beginning.

    chunks   number of parts that the data is cut into
    hosts    the host number of every rank; empty: all are on one
    """

    algorithm: Algorithm
    size: int
    chunks: int
    hosts: tuple[int, ...]
    events: tuple[Event, ...]

    @property
    def title(self) -> str:
        """The call in words."""
        return f"{self.algorithm.collective} by {self.algorithm.name}: {self.size} ranks, {self.chunks} parts"

    def rounds(self) -> list[tuple[float, list[Event]]]:
        """The messages and reads by the time at which they begin."""
        found: dict[float, list[Event]] = defaultdict(list)
        for event in self.events:
            if event.kind != "combine":
                found[event.begin].append(event)
        return sorted(found.items())


def chunk_text(chunks: tuple[int, int]) -> str:
    """Chunks as people read them: '3', '4-7', '2 parts', '0 parts' for an empty message."""
    first, width = chunks
    if not width:
        return "0 parts"
    if first < 0:
        return f"{width} part{'s' * (width > 1)}"
    return str(first) if width == 1 else f"{first}-{first + width - 1}"


def picture_of(
    algorithm: Algorithm, size: int, *, root: int = 0, segments: int = 1, hosts: Sequence[int] = ()
) -> Picture:
    """The picture of one call.

    size      the number of ranks, 2 to MOST_RANKS
    root      of broadcast, reduce, gather, scatter
    segments  pieces of each block, for algorithms that work in segments
    hosts     the host number of every rank; empty: all are on one

    Raises ValueError for arguments that the algorithm does not support.
    """
    if not 2 <= size <= MOST_RANKS:
        raise ValueError(f"size={size}: must be 2 to {MOST_RANKS} ranks")
    if algorithm.native:
        raise ValueError(f"{algorithm.name}: is the transport's own, there is nothing to draw")
    chunks = count_blocks(algorithm, size) * segments
    geometries = [Geometry(rank, size, root, segments, tuple(hosts)) for rank in range(size)]
    steps = chain.from_iterable(map(algorithm.generate, geometries))
    if sum(1 for _ in islice(steps, MOST_STEPS + 1)) > MOST_STEPS:
        raise ValueError(f"segments={segments}: the {size} ranks have more than {MOST_STEPS} steps; take fewer of both")
    model = _SENDS
    if algorithm.onesided:  # there are no messages: copies and signals take the time
        model = Model(alpha=1.0, beta=0.0, gamma=1.0 / chunks, copy=1.0 / chunks, read=1.0 / chunks, signal=0.25)
    nbytes = chunks // size if algorithm.collective == "alltoall" else chunks
    timeline = simulate(algorithm, size, nbytes, model, root=root, segments=segments, hosts=hosts)
    sends: dict[tuple[int, int], deque[Step]] = defaultdict(deque)
    locals_: dict[int, deque[Step]] = defaultdict(deque)
    for rank, geometry in enumerate(geometries):
        for step in algorithm.generate(geometry):
            kind = Kind(step.opcode)
            if kind is Kind.SEND:
                sends[rank, step.peer].append(step)
            elif kind in (Kind.COPY, Kind.REDUCE):
                locals_[rank].append(step)
    packs = algorithm.collective == "alltoall"
    events = []
    for entry in timeline.activity:
        step = (locals_[entry.rank] if entry.peer < 0 else sends[entry.rank, entry.peer]).popleft()
        begin, end = round(entry.begin, 6), round(entry.end, 6)
        if entry.peer >= 0:
            events.append(Event("send", entry.rank, entry.peer, _chunks(step.a, packs), begin, end, entry.label))
            continue
        written = _chunks(step.dst, packs)
        events += [Event("read", entry.rank, owner, written, begin, end, entry.label) for owner in _owners(step, entry)]
        if entry.kind is Kind.REDUCE:
            events.append(Event("combine", entry.rank, -1, written, begin, end, entry.label))
    events.sort(key=lambda event: (event.begin, event.rank))
    return Picture(algorithm, size, chunks, tuple(hosts), tuple(events))


def _owners(step: Step, entry: Activity) -> list[int]:
    """The other ranks whose memory a local step reads."""
    return [ref.rank for ref in (step.a, step.b) if ref is not None and ref.rank not in (-1, entry.rank)]


def _chunks(ref: Ref | None, packs: bool) -> tuple[int, int]:
    if ref is None:
        return 0, 0
    # Packed chunks lie in SCRATCH in slots of their own; the reference tells their sizes alone.
    packed = ref.buf is Buf.SCRATCH and ref.base < 0 and packs
    return (-1 if packed else ref.chunk), ref.width
