"""The programs of all ranks for one call: the input of the prover and of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    layouts, programs = [], []
    for rank in range(size):
        geometry = Geometry(rank, size, root, segments, tuple(hosts))
        known = list(blocks)
        if algorithm.collective == "alltoall" and not algorithm.uniform:
            known = [-1] * count
            for held in (slice(rank * size, (rank + 1) * size), slice(rank, None, size)):
                known[held] = blocks[held]
        alias = None
        if in_place and spec.outputs(rank, size, root, count) is not None:
            alias = sum(blocks[:rank]) if spec.by_rank else 0
        layout = lay_out(spec, geometry, known, alias=alias, largest=max(blocks))
        try:
            programs.append(lower(algorithm.generate(geometry), layout))
        except ValueError as error:
            where = f"{algorithm.collective} {algorithm.name!r}: rank {rank} of {size}"
            raise ProofError(f"{where}: {error}", rank=rank) from error
        layouts.append(layout)
    return Lowered(algorithm, Geometry(0, size, root, segments, tuple(hosts)), blocks, tuple(layouts), tuple(programs))
