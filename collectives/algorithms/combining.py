r"""Combining contributions in tree order while they arrive in any order.

The canonical tree of six ranks (see `collectives.schedule.topology.canonical_tree`):

              +
          /       \
        +           +
       / \         / \
      +   +       4   5
     / \ / \
    0  1 2  3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from collectives.schedule import Buf, Marks, Ref, Run, Step, reduce, scratch


class TreeOrder:
    """Combines the contributions of two or more ranks to one piece in the order of a tree.

    siblings   the tree, as `canonical_siblings` returns it
    target     destination of the result
    slot       first SCRATCH slot for partial results; slots are reused
    """

    def __init__(self, siblings: Mapping[Run, tuple[Run, Run]], target: Ref, slot: int, label: str) -> None:
        self._target = target
        self._label = label
        self._slot = slot
        self._free: list[Ref] = []
        self._siblings = siblings
        self._values: dict[Run, Ref] = {}

    def take(self) -> Ref:
        """Return a free SCRATCH slot."""
        if self._free:
            return self._free.pop()
        self._slot += self._target.width
        return scratch(self._slot - self._target.width, self._target.chunk, self._target.width)

    def arrive(self, rank: int, value: Ref) -> Iterator[Step]:
        """Take the contribution of `rank` from `value`, and combine all pairs of siblings that are complete now.

        `value` is overwritten if it is in SCRATCH.
        """
        node = (rank, 1)
        self._values[node] = value
        while node in self._siblings:
            left, right = self._siblings[node]
            if left not in self._values or right not in self._values:
                return
            a, b = self._values.pop(left), self._values.pop(right)
            node = left[0], left[1] + right[1]
            spare = [ref for ref in (a, b) if ref.buf is Buf.SCRATCH]
            last = node not in self._siblings
            if last:
                target = self._target
            else:
                target = spare.pop(0) if spare else self.take()
            self._free += spare
            self._values[node] = target
            marks = Marks.LAST * last | Marks.A_ALONE * (left[1] == 1) | Marks.B_ALONE * (right[1] == 1)
            yield reduce(a, b, target, self._label, marks)
