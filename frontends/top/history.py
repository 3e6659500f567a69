"""The last minute of a job, as a viewer has seen it: how long ranks waited, what collectives moved, and the calls."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.flight import BATCHES, MESSAGES, Calls
from collectives.observing import Snapshot
from frontends.top.watching import Look

SECONDS: Final = 60.0
_MOST_CALLS: Final = 2_000_000
"""Calls that are kept, of all ranks together."""


class Column(NamedTuple):
    """The time between two looks. Times are seconds of the date.

    waiting     by rank, the part of the time in which it waited
    throughput  by collective, the bytes and the calls of all ranks in a second
    """

    began: float
    ended: float
    waiting: list[float]
    throughput: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class _Chunk:
    """Calls that have ended, one an element; times in nanoseconds of this host's clock."""

    rank: NDArray[np.int64]
    began: NDArray[np.int64]
    ended: NDArray[np.int64]
    kind: NDArray[np.int64]


class History:
    """Collects looks at a job. For one thread at a time."""

    def __init__(self) -> None:
        self._columns: deque[Column] = deque()
        self._chunks: deque[_Chunk] = deque()
        self._seen: dict[tuple[int, str], tuple[int, int]] = {}
        self._looked_at = 0
        self._kinds: list[tuple[str, str]] = []  # collective and description
        self._index: dict[tuple[str, str], int] = {}
        self._date = time.time_ns() - time.perf_counter_ns()

    @property
    def columns(self) -> list[Column]:
        """Those of the last minute, oldest first."""
        return list(self._columns)

    def add(self, look: Look, snapshot: Snapshot) -> Column:
        """Add a look; its column."""
        charges = snapshot.charges
        began = max(self._looked_at, charges.began, look.now - int(SECONDS * 1e9))
        moved, chunk = self._new_calls(look, snapshot)
        if chunk is not None:
            self._chunks.append(chunk)
        span = max(1, look.now - began)
        waits = charges.waits
        parts = np.clip(np.minimum(waits.ended, look.now) - np.maximum(waits.began, began), 0, None) * waits.weight
        waiting = np.minimum(np.bincount(waits.rank, parts, snapshot.size) / span, 1.0)
        rates = {name: (nbytes * 1e9 / span, count * 1e9 / span) for name, (nbytes, count) in sorted(moved.items())}
        column = Column(self._dated(began), self._dated(look.now), np.round(waiting, 4).tolist(), rates)
        self._looked_at = look.now
        self._columns.append(column)
        self._forget(look.now)
        return column

    def calls(self, began: float, ended: float, ranks: tuple[int, int], most: int) -> dict[str, Any]:
        """The longest calls that have ended between two dates, of the ranks from the first to before the last of
        `ranks`."""
        first, last = (int(moment * 1e9) - self._date for moment in (began, ended))
        found = [_chosen(chunk, first, last, ranks) for chunk in self._chunks]
        whole = (
            _Chunk(
                *(
                    np.concatenate([getattr(chunk, name) for chunk in found])
                    for name in ("rank", "began", "ended", "kind")
                )
            )
            if found
            else None
        )
        if whole is None or not len(whole.rank):
            return {"kinds": [], "calls": [], "count": 0}
        longest = np.argsort(whole.began - whole.ended, kind="stable")[:most]
        kinds, index = np.unique(whole.kind[longest], return_inverse=True)
        rows = zip(
            whole.rank[longest].tolist(),
            ((whole.began[longest] + self._date) / 1e9).tolist(),
            ((whole.ended[longest] + self._date) / 1e9).tolist(),
            index.tolist(),
            strict=True,
        )
        return {
            "kinds": [self._kinds[kind] for kind in kinds.tolist()],
            "calls": [list(row) for row in rows],
            "count": len(whole.rank),
        }

    def _new_calls(self, look: Look, snapshot: Snapshot) -> tuple[dict[str, list[float]], _Chunk | None]:
        """Bytes and calls by collective since the last look, and the calls that have ended since."""
        moved: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        parts: list[tuple[NDArray[np.int64], ...]] = []
        for record in look.records:
            offset = snapshot.charges.world.offset_of(record.rank)
            for name, calls in record.calls.items():
                if name.endswith((MESSAGES, BATCHES)):  # those are no calls
                    continue
                newest, ended_last = self._seen.get((record.rank, name), (0, 0))
                new = calls.numbers > newest
                if not self._looked_at:  # the first look tells of those of the last second alone
                    new &= calls.began > look.now - 1_000_000_000
                self._count(record.text, calls, new, calls.newest - newest, moved)
                over = (calls.ended > ended_last) & (calls.ended > 0)
                self._seen[record.rank, name] = calls.newest, int(calls.ended.max(initial=ended_last))
                if over.any():
                    texts, where = np.unique(calls.texts[over], return_inverse=True)
                    kinds = np.array([self._kind(record.text(int(text))) for text in texts])[where]
                    ranks = np.full(int(over.sum()), record.rank)
                    parts.append((ranks, calls.began[over] + offset, calls.ended[over] + offset, kinds))
        if not parts:
            return moved, None
        return moved, _Chunk(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _count(self, text_of: Any, calls: Calls, new: NDArray[np.bool_], made: int, moved: Any) -> None:
        """Add new calls to `moved`. Of more calls than the record has, the known ones are taken for all."""
        known = int(new.sum())
        if not known:
            return
        factor = max(1.0, made / known) if self._looked_at else 1.0
        texts, counts = np.unique(calls.texts[new], return_counts=True)
        for text, count in zip(texts.tolist(), counts.tolist(), strict=True):
            description = text_of(text)
            row = moved[description.collective or "other"]
            row[0] += description.nbytes * count * factor
            row[1] += count * factor

    def _kind(self, description: Any) -> int:
        key = description.collective, description.call
        if key not in self._index:
            self._index[key] = len(self._kinds)
            self._kinds.append(key)
        return self._index[key]

    def _dated(self, moment: int) -> float:
        return (moment + self._date) / 1e9

    def _forget(self, now: int) -> None:
        oldest = now - int(SECONDS * 1e9)
        while self._columns and self._columns[0].ended < self._dated(oldest):
            self._columns.popleft()
        while self._chunks and (
            int(self._chunks[0].ended.max()) < oldest or sum(len(chunk.rank) for chunk in self._chunks) > _MOST_CALLS
        ):
            self._chunks.popleft()


def _chosen(chunk: _Chunk, first: int, last: int, ranks: tuple[int, int]) -> _Chunk:
    chosen = (chunk.ended >= first) & (chunk.began <= last) & (chunk.rank >= ranks[0]) & (chunk.rank < ranks[1])
    return _Chunk(chunk.rank[chosen], chunk.began[chosen], chunk.ended[chosen], chunk.kind[chosen])
