"""The verdict on a group: who goes on, who comes, who leaves and who is left behind. The same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collectives.membership.roster import Newcomer, Roster, newcomer_from, roster_from
from transports.errors import RendezvousError
from transports.packed import pack, unpack


@dataclass(frozen=True)
class Verdict:
    """The decision on the next generation of a group.

    by         the rank that proposed it
    staying    ranks of the old group that go on, ascending; the first ranks of the new one
    admitted   newcomers with their numbers, in the order of their ranks after those
    left_out   ranks that are left behind, with reasons
    leaving    ranks that leave as they were asked to, with reasons
    roster     the roster after it; None if nobody could come or leave, as in `shrink`
    refusal    the reason why nobody goes on; empty if they do
    """

    by: int
    staying: tuple[int, ...]
    left_out: Mapping[int, str]
    leaving: Mapping[int, str] = field(default_factory=dict)
    admitted: tuple[Newcomer, ...] = ()
    roster: Roster | None = None
    refusal: str = ""

    def pack(self) -> bytes:
        """The verdict for `verdict_from`. Ranks that stay are not in it: in a large world they are most."""
        return pack(
            [
                self.by,
                list(self.left_out.items()),
                list(self.leaving.items()),
                [newcomer.fields() for newcomer in self.admitted],
                None if self.roster is None else self.roster.pack(),
                self.refusal,
            ]
        )


def verdict_from(packed: bytes, size: int) -> Verdict:
    """The verdict that was packed, on a group of `size` ranks. Raises RendezvousError."""
    try:
        match unpack(packed):
            case [int(by), [*left_out], [*leaving], [*admitted], bytes() | None as roster, str(refusal)]:
                lost = {int(rank): str(reason) for rank, reason in left_out}
                leavers = {int(rank): str(reason) for rank, reason in leaving}
                return Verdict(
                    by,
                    tuple(rank for rank in range(size) if rank not in lost and rank not in leavers),
                    lost,
                    leavers,
                    tuple(map(newcomer_from, admitted)),
                    None if roster is None else roster_from(roster),
                    refusal,
                )
    except (ValueError, TypeError) as error:
        raise RendezvousError(f"the store holds a decision on the survivors that cannot be read: {error}") from error
    raise RendezvousError("the store holds a value that is not a decision on the survivors")
