"""Viewers: processes of the user, such as `ronde top`, that ask ranks about themselves through their store.

A viewer asks one rank of each host for the digest of the host's flight records, and any rank for its stack. The ranks
answer from the watchdog's thread. A viewer that hangs, dies or asks too often delays nobody: a rank answers at most ten
times a second, and forgets answers that nobody fetches.

Store keys, in the part that the watchdogs of a group share
    viewers/RANK          counts the questions for digests to a rank
    digests/RANK/NUMBER   the answer to one question
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from collectives.failure import wake
from collectives.flight import Digest, Door, digest_of, unpack_digest
from collectives.watchdog.stall_report import Answer, read_answer
from transports.errors import DeadlineExceeded, RendezvousError
from transports.rendezvous import open_store
from transports.store import MAX_VALUE_BYTES, Store
from transports.tls import Tls

_PAUSE_SECONDS: Final = 0.1
"""Time between two answers of a rank."""
_MOST_QUESTIONS: Final = 8
"""Number of questions that one answer is given to; older ones get none. As many answers stay in the store."""


class ViewerAnswers:
    """The answers of one rank. For the watchdog's thread. The methods raise RendezvousError.

    store    the part that the watchdogs share
    folder   the one of the world's records; None if nothing is recorded
    """

    def __init__(self, rank: int, store: Store, folder: Path | None) -> None:
        self._rank = rank
        self._store = store
        self._folder = folder
        self._answered = 0
        self._next_at = 0.0
        self.due = float("inf")
        """The time at which `answer` has something to do (monotonic seconds)."""

    def answer(self, now: float) -> None:
        """Answer the questions that are new since the last call, or later, if that was a moment ago."""
        if now < self._next_at:
            self.due = self._next_at
            return
        self.due = float("inf")
        count = self._store.peek(f"viewers/{self._rank}") or b""
        asked = int(count) if count.isdigit() and len(count) < 20 else 0
        if self._folder is None or asked == self._answered:
            return
        data = digest_of(self._folder).pack(MAX_VALUE_BYTES)
        for number in range(max(self._answered, asked - _MOST_QUESTIONS) + 1, asked + 1):
            self._store.set(f"digests/{self._rank}/{number}", data)
            self._store.delete(f"digests/{self._rank}/{number - _MOST_QUESTIONS}")
        self._answered = asked
        self._next_at = time.monotonic() + _PAUSE_SECONDS


class Viewer:
    """A client of the store of a world, which asks its ranks. For one thread; close it. Raises ConfigError for
    certificates that cannot be read.

    door      the way to the ranks
    timeout   seconds for the store to accept a connection
    """

    def __init__(self, door: Door, timeout: float) -> None:
        tls = Tls(*door.tls) if door.tls else None
        self._door = door
        self._opened = open_store(door.place.url, door.secret, 0.0, tls=tls, purpose=door.place.purpose)
        limited = self._opened.with_timeout(timeout)
        self._group_store = limited.prefixed(door.place.prefix.rstrip("/")) if door.place.prefix else limited
        self._store = self._group_store.prefixed("watch")

    def digests(self, ranks: Sequence[int], until: float) -> Mapping[int, Digest]:
        """The digests of the hosts of `ranks`, each on this host's clock; those that have come by `until` (monotonic
        seconds). Raises RendezvousError."""
        asked_at = time.perf_counter_ns()
        numbers = self._ask("viewers", ranks)
        found = {}
        for rank, number in numbers.items():
            key = f"digests/{rank}/{number}"
            try:
                data = self._store.get(key, until)
            except DeadlineExceeded:
                continue
            middle = (asked_at + time.perf_counter_ns()) // 2
            self._store.delete(key)
            with contextlib.suppress(ValueError):  # a rank of another version
                digest = unpack_digest(data)
                found[rank] = digest.shifted(middle - digest.now)
        return found

    def answer(self, rank: int, until: float) -> Answer | None:
        """The calls and the stack of a rank; None if it does not answer by `until`. Raises RendezvousError."""
        number = self._ask("questions", [rank])[rank]
        key = f"answers/{rank}/{number}"
        try:
            data = self._store.get(key, until)
        except DeadlineExceeded:
            return None
        with contextlib.suppress(RendezvousError):
            self._store.delete(key)
        return read_answer(data, sum(map(len, self._door.hosts)))

    def _ask(self, kind: str, ranks: Sequence[int]) -> dict[int, int]:
        """Count a question to each of `ranks`, and wake them; the numbers of the questions."""
        numbers = {rank: self._store.add(f"{kind}/{rank}", 1) for rank in ranks}
        wake(self._group_store, ranks)
        return numbers

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._opened.close()
