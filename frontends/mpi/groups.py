"""Groups: ordered sets of ranks of the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from frontends.mpi.constants import IDENT, PROC_NULL, SIMILAR, UNDEFINED, UNEQUAL
from frontends.mpi.errors import error
from frontends.mpi.handles import Body, Handle
from frontends.mpi.ints import as_int, as_ints


class GroupBody(Body):
    """The members of a group.

    ranks  numbers in the world, in the order of the group
    mine   this process's number in the world
    """

    def __init__(self, ranks: Sequence[int], mine: int) -> None:
        self.ranks = tuple(ranks)
        self.mine = mine


class Group(Handle):
    """An ordered set of ranks."""

    __module__ = "frontends.mpi.MPI"
    null = "GROUP_NULL"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members' numbers in the world. Raises Exception for GROUP_NULL."""
        if self._body is None:
            raise error("ERR_GROUP", "it is GROUP_NULL")
        ranks: tuple[int, ...] = self._body.ranks
        return ranks

    def Get_size(self) -> int:
        return len(self.ranks)

    def Get_rank(self) -> int:
        ranks = self.ranks
        return ranks.index(self._body.mine) if self._body.mine in ranks else UNDEFINED

    @property
    def size(self) -> int:
        return self.Get_size()

    @property
    def rank(self) -> int:
        return self.Get_rank()

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        mine = self.ranks
        other = (
            range(max(mine, default=-1) + 1) if group is None else group.ranks
        )  # by default the numbers in the world
        chosen = range(len(mine)) if ranks is None else ranks
        return [
            PROC_NULL
            if rank == PROC_NULL
            else (other.index(mine[rank]) if mine[self._number(rank)] in other else UNDEFINED)
            for rank in chosen
        ]

    def _number(self, rank: int) -> int:
        number = as_int(rank, "rank")
        if not 0 <= number < len(self.ranks):
            raise error("ERR_RANK", f"{rank}: must be a rank of the group, 0 to {len(self.ranks) - 1}")
        return number

    def Compare(self, group: Group) -> int:
        if self.ranks == group.ranks:
            return IDENT
        return SIMILAR if set(self.ranks) == set(group.ranks) else UNEQUAL

    def _of(self, ranks: Sequence[int]) -> Any:
        return type(self)._made(ranks, self._body.mine)

    @classmethod
    def _made(cls, ranks: Sequence[int], mine: int) -> Any:
        """A group; GROUP_EMPTY if it has no ranks."""
        return cls.of(GroupBody(ranks, mine)) if ranks else cls(GROUP_EMPTY)

    def Dup(self) -> Group:
        return self._of(self.ranks)  # type: ignore[no-any-return]

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        ranks = (*group1.ranks, *(r for r in group2.ranks if r not in group1.ranks))
        return cls._made(ranks, _mine(group1, group2))  # type: ignore[no-any-return]

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        ranks = [r for r in group1.ranks if r in group2.ranks]
        return cls._made(ranks, _mine(group1, group2))  # type: ignore[no-any-return]

    Intersect = Intersection

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        ranks = [r for r in group1.ranks if r not in group2.ranks]
        return cls._made(ranks, _mine(group1, group2))  # type: ignore[no-any-return]

    def Incl(self, ranks: Sequence[int]) -> Group:
        chosen = [self._number(rank) for rank in ranks]
        if len(set(chosen)) != len(chosen):
            raise error("ERR_RANK", f"ranks={list(ranks)}: must contain each rank once")
        return self._of([self.ranks[rank] for rank in chosen])  # type: ignore[no-any-return]

    def Excl(self, ranks: Sequence[int]) -> Group:
        chosen = {self._number(rank) for rank in ranks}
        if len(chosen) != len(ranks):
            raise error("ERR_RANK", f"ranks={list(ranks)}: must contain each rank once")
        return self._of([r for number, r in enumerate(self.ranks) if number not in chosen])  # type: ignore[no-any-return]

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        return self.Incl(_ranges(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        return self.Excl(_ranges(ranks))

    @classmethod
    def Create_from_session_pset(cls, session: Any, pset_name: str) -> Group:
        found: Group = session.Create_group(pset_name)
        return found

    def Free(self) -> None:
        _ = self.ranks
        Handle.free(self)  # not that of a subclass, which may call this method


Group.family = Group


def _mine(*groups: Group) -> int:
    """This process's number, which the empty group does not know."""
    return max(int(group._body.mine) for group in groups if group.ranks is not None)


def _ranges(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    found: list[int] = []
    for first, last, stride in (as_ints(one, "ranks") for one in ranges):
        if stride == 0:
            raise error("ERR_ARG", "a stride is 0")
        found += range(first, last + (1 if stride > 0 else -1), stride)
    return found


def _predefined() -> Group:
    body = GroupBody((), -1)
    body.predefined = "GROUP_EMPTY"
    return Group.of(body)


GROUP_NULL: Final = Group()
GROUP_EMPTY: Final = _predefined()
