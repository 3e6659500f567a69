"""The programs of all ranks for one call: the input of the prover and of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collectives.algorithms import Algorithm
from collectives.schedule import SPECS, Geometry, Layout, Program, Spec, lay_out, lower
from transports.errors import RondeError

_IN_PLACE = ("allreduce", "reduce", "broadcast", "allgather", "gather", "scan")


class ProofError(RondeError):
    """A defect of a schedule. `rank` and `at` (an instruction number) give its position; None if unknown."""

    def __init__(
        self, message: str, *, rank: int | None = None, peer: int | None = None, at: int | None = None
    ) -> None:
        super().__init__(message, rank=rank, peer=peer)
        self.at = at


@dataclass(frozen=True, slots=True)
class Lowered:
    """The programs of one call on all ranks. `geometry` is that of rank 0; `blocks` are sizes in elements."""

    algorithm: Algorithm
    geometry: Geometry
    blocks: tuple[int, ...]
    layouts: tuple[Layout, ...]
    programs: tuple[Program, ...]

    @property
    def spec(self) -> Spec:
        return SPECS[self.algorithm.collective]

    @property
    def elements(self) -> int:
        """N, the number of elements of all blocks together (alltoall: of one rank's row)."""
        return sum(self.blocks) // (self.geometry.size if self.algorithm.collective == "alltoall" else 1)

    def __str__(self) -> str:
        return f"{self.algorithm.collective} {self.algorithm.name!r}"


def count_blocks(algorithm: Algorithm, size: int) -> int:
    """Return the number of blocks of an algorithm."""
    spec = SPECS[algorithm.collective]
    return spec.blocks(size) if spec.by_rank else algorithm.blocks(size)


def lower_ranks(
    algorithm: Algorithm,
    size: int,
    *,
    root: int = 0,
    segments: int = 1,
    hosts: Sequence[int] = (),
    in_place: bool = False,
    sizes: Sequence[int] | None = None,
) -> Lowered:
    """Lower an algorithm for every rank. `sizes` are the elements of every block, by default one for each segment.

    Raises ValueError for arguments that the algorithm does not support, ProofError if the steps of a rank cannot be
    lowered.
    """
    if size < 1:
        raise ValueError(f"size={size!r}: must be at least 1")
    if algorithm.only_size not in (0, size):
        raise ValueError(f"size={size!r}: must be {algorithm.only_size} for {algorithm.name!r}")
    if not 0 <= root < size:
        raise ValueError(f"root={root!r}: must be a rank, 0 to {size - 1}")
    if segments < 1 or (segments > 1 and not algorithm.segmented):
        raise ValueError(f"segments={segments!r}: must be 1{' or more' * algorithm.segmented} for {algorithm.name!r}")
    if hosts and len(hosts) != size:
        raise ValueError(f"hosts={hosts!r}: must name a host for each of {size} ranks, or be empty")
    if in_place and algorithm.collective not in _IN_PLACE:
        raise ValueError(f"in_place={in_place!r}: must be False for {algorithm.collective}")
    spec, count = SPECS[algorithm.collective], count_blocks(algorithm, size)
    blocks = (segments,) * count if sizes is None else tuple(sizes)
    if len(blocks) != count or min(blocks) < 0 or (algorithm.uniform and len(set(blocks)) > 1):
        raise ValueError(f"sizes={sizes!r}: must be {count} {'equal ' * algorithm.uniform}sizes, 0 or more")
    # What all ranks know is laid out once: with a table of their own for every peer, n ranks would make n * n of them.
    first = Geometry(0, size, root, segments, tuple(hosts))
    shared = lay_out(spec, first, blocks, largest=max(blocks))
    layouts, programs = [], []
    for rank in range(size):
        inputs, outputs = shared.held(rank)
        alias = None
        if in_place and spec.outputs(rank, size, root, count) is not None:
            alias = sum(blocks[:rank]) if spec.by_rank else 0
        layout = replace(shared, inputs=inputs, outputs=outputs, alias=alias)
        if algorithm.collective == "alltoall" and not algorithm.uniform:  # a rank knows its row and its column
            known = [-1] * len(shared.sizes)
            for chunk in (*inputs, *outputs):
                known[chunk] = shared.sizes[chunk]
            layout = replace(layout, sizes=tuple(known))
        try:
            programs.append(lower(algorithm.generate(first.at(rank)), layout))
        except ValueError as error:
            where = f"{algorithm.collective} {algorithm.name!r}: rank {rank} of {size}"
            raise ProofError(f"{where}: {error}", rank=rank) from error
        layouts.append(layout)
    return Lowered(algorithm, first, blocks, tuple(layouts), tuple(programs))
