"""Flight records that are made, not written by ranks: a small simulation of ranks that compute and make calls."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collectives.flight import OPEN, Calls, Description, Record
from collectives.observing.comparing import GIVING, PREFIXES, TAKING

MS = 1_000_000
ORDERED = "0-0"


def described(
    collective: str = "allreduce", nbytes: int = 4096, root: int = -1, line: str = "train.py:7", **more: Any
) -> Description:
    text = f"{collective}(float32, {nbytes // 4} elements{''.join(f', {k}={v}' for k, v in more.items())})"
    return Description(text, collective, nbytes, "ring", zlib.crc32(f"{text}{root}".encode()), root, line)


@dataclass
class MadeRank:
    """One rank: its clock, and its calls by communicator as (number, began, ended or 0, description)."""

    rank: int
    host: str
    now: int = 1_000 * MS
    calls: dict[str, list[tuple[int, int, int, Description]]] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)


class MadeWorld:
    """Ranks on one true clock; `offsets` are what the clock of each host shows beyond it."""

    def __init__(self, hosts: Sequence[str], offsets: Mapping[str, int] | None = None) -> None:
        self.ranks = [MadeRank(rank, host) for rank, host in enumerate(hosts)]
        self.members = {ORDERED: tuple(range(len(hosts)))}
        self.labels: dict[str, str] = {}
        self.offsets = dict(offsets or {})

    def split(self, context: int, ranks: Sequence[int], label: str = "") -> str:
        """Another communicator; its name."""
        name = f"{context << 32:x}-{ranks[0]}"
        self.members[name] = tuple(ranks)
        self.labels[name] = label
        return name

    def compute(self, *milliseconds: float) -> None:
        """Every rank computes: one time for all, or one for each."""
        for rank in self.ranks:
            rank.now += int(milliseconds[rank.rank % len(milliseconds)] * MS)

    def call(
        self,
        description: Description | None = None,
        name: str = ORDERED,
        transfer: float | Callable[[int], float] = 0.1,
        without: Sequence[int] = (),
    ) -> None:
        """A call of all members but those `without`. `transfer` is milliseconds from the last arrival that a rank needs
        to its end. Nobody who needs a rank that is left out ends the call."""
        description = description or described()
        members = self.members[name]
        began = {rank: self.ranks[rank].now for rank in members if rank not in without}
        for place, rank in enumerate(members):
            if rank in without:
                continue
            if description.collective in GIVING:
                needed = [members[description.root]]
            elif description.collective in TAKING:
                needed = list(members) if place == description.root else []
            elif description.collective in PREFIXES:
                needed = list(members[: place + 1])
            else:
                needed = list(members)
            one = self.ranks[rank]
            number = one.newest[name] = one.newest.get(name, 0) + 1
            end = 0
            if not set(needed) & set(without):
                seconds = transfer(rank) if callable(transfer) else transfer
                end = max([began[other] for other in needed] + [one.now]) + int(seconds * MS)
            one.calls.setdefault(name, []).append((number, one.now, end, description))
            one.now = end or one.now

    def records(self, read_after: float = 5.0, **facts: Mapping[int, Any]) -> list[Record]:
        """The records, read some milliseconds after the last entry. `facts`: alive, state, failure, by rank."""
        moment = max(rank.now for rank in self.ranks) + int(read_after * MS)
        return [
            self._record(rank, moment, {name: values.get(rank.rank) for name, values in facts.items()})
            for rank in self.ranks
        ]

    def _record(self, rank: MadeRank, moment: int, facts: Mapping[str, Any]) -> Record:
        ahead = self.offsets.get(rank.host, 0)
        texts: dict[Description, int] = {}
        calls = {}
        for name, rows in rank.calls.items():
            rows = rows[-2048:]
            numbers, began, ended = (np.array([row[at] for row in rows], np.int64) for at in range(3))
            kinds = np.array([texts.setdefault(row[3], len(texts) + 1) for row in rows], np.int64)
            index, size = self.members[name].index(rank.rank), len(self.members[name])
            label = self.labels.get(name, "")
            ended = np.where(ended > 0, ended + ahead, 0)
            calls[name] = Calls(name, label, size, index, True, rank.newest[name], numbers, began + ahead, ended, kinds)
        alive = facts.get("alive")
        return Record(
            path=Path(f"rank-{rank.rank}.flight"),
            facts={
                "world": "made",
                "rank": rank.rank,
                "size": len(self.ranks),
                "host": rank.host,
                "hostname": rank.host,
                "pid": 100 + rank.rank,
                "clock": 0,
                "date": 0.0,
            },
            alive=True if alive is None else alive,
            state=facts.get("state") or OPEN,
            ended_at=0,
            failure=facts.get("failure") or {},
            calls=calls,
            descriptions={number: text for text, number in texts.items()},
            read_at=moment + ahead,
        )
