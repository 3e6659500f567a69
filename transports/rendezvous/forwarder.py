"""The work of a store's proxy, without I/O: it forwards requests, and a repeated one only once.

    put          rows of a table are held until all ranks below have given theirs, or HOLD_SECONDS; they go up together
    get, any     the ranks that wait for a key wait here; the store is asked once. A complete table is kept for the next
    others       go up one by one

So a table that all ranks fill and read costs a proxy two messages up, however many ranks are below it; and proxies may
stand behind proxies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from transports.packed import pack, unpack
from transports.rendezvous.book import Answer, Desk, Reply, Wait, Waits, rows_to_put, wait_of
from transports.rendezvous.wire import LONGEST_GET
from transports.store import is_table

HOLD_SECONDS: Final = 0.05
"""Time for which rows wait for those of other ranks. A rank that is late delays the others' rows no longer."""
_MOST_BYTES: Final = 1 << 19
"""Bytes of rows that go up in one request, about."""
_MOST_TABLES: Final = 4
"""Number of complete tables that are kept."""


@dataclass
class _Batch:
    """Rows for one table that go up together, and the requests that brought them, with the number of their rows."""

    due: float
    rows: dict[int, bytes] = field(default_factory=dict)
    askers: list[tuple[Hashable, int, int]] = field(default_factory=list)


class Forwarder(Desk):
    """The requests of one proxy.

    send    sends a request up
    below   number of ranks whose requests come through this proxy
    """

    def __init__(self, reply: Reply, send: Callable[[list[object]], None], below: int) -> None:
        self._reply = reply
        self._send = send
        self._below = below
        self._numbers = itertools.count(1)
        self._asked: dict[int, Callable[[Answer], None]] = {}
        self._waits = Waits(reply)
        self._awaited: set[str] = set()  # keys that the store was asked for
        self._batches: dict[tuple[str, int], _Batch] = {}
        self._tables: dict[str, bytes] = {}

    @property
    def due(self) -> float:
        return min([self._waits.due, *(batch.due for batch in self._batches.values())])

    def tick(self, now: float) -> None:
        self._waits.expire(now)
        for table, size in [key for key, batch in self._batches.items() if batch.due <= now]:
            self._put(table, size)

    def forget(self, client: Hashable) -> None:
        self._waits.forget(client)

    def ask(self, client: Hashable, number: int, request: list[object], now: float) -> None:
        wait = wait_of(client, number, request, now)
        if wait is not None and wait.until > now:
            self._wait(wait)
            return
        match request:
            case ["put", str(table), bytes(argument)]:
                self._hold(client, number, table, *rows_to_put(table, argument), now)
            case [str(), str(), _]:
                self._forward(request, partial(self._reply, client, number))
            case _:
                raise ValueError("no request")

    def answered(self, number: int, answer: Answer) -> None:
        """Take an answer of the store. Raises ValueError if nothing was asked."""
        ask = self._asked.pop(number, None)
        if ask is None:
            raise ValueError("an answer to nothing")
        ask(answer)

    def _forward(self, request: list[object], then: Callable[[Answer], None]) -> None:
        number = next(self._numbers)
        self._asked[number] = then
        self._send([number, *request])

    # Waits

    def _wait(self, wait: Wait) -> None:
        for key in wait.keys:
            if key in self._tables:
                self._reply(wait.client, wait.number, wait.answer(key, self._tables[key]))
                return
        self._waits.add(wait)
        for key in wait.keys:
            if key not in self._awaited:
                self._await(key)

    def _await(self, key: str) -> None:
        self._awaited.add(key)
        self._forward(["any", key, pack([[key], LONGEST_GET])], partial(self._came, key))

    def _came(self, key: str, answer: Answer) -> None:
        self._awaited.discard(key)
        match answer:
            case ["ok", [0, bytes(value)]]:
                if is_table(value):
                    self._tables[key] = value
                    if len(self._tables) > _MOST_TABLES:
                        del self._tables[next(iter(self._tables))]
                self._waits.set(key, value)
            case ["late", None]:  # after LONGEST_GET
                if self._waits.awaited(key):
                    self._await(key)
            case _:
                raise ValueError("no answer")

    # Rows

    def _hold(
        self, client: Hashable, number: int, table: str, size: int, rows: list[tuple[int, bytes]], now: float
    ) -> None:
        batch = self._batches.get((table, size))
        if batch is not None and any(place in batch.rows for place, _ in rows):
            self._put(table, size)  # the store decides which of two rows for one place was first
            batch = None
        if batch is None:
            batch = self._batches[table, size] = _Batch(now + HOLD_SECONDS)
        batch.rows.update(rows)
        batch.askers.append((client, number, len(rows)))
        if len(batch.rows) >= min(size, self._below) or sum(map(len, batch.rows.values())) >= _MOST_BYTES:
            self._put(table, size)

    def _put(self, table: str, size: int) -> None:
        batch = self._batches.pop((table, size))
        argument = pack([size, [[place, row] for place, row in batch.rows.items()]])
        self._forward(["put", table, argument], partial(self._were_put, batch))

    def _were_put(self, batch: _Batch, answer: Answer) -> None:
        match answer:
            case ["ok", bytes(packed)]:
                results, first = unpack(packed), 0
                if not isinstance(results, list) or len(results) != len(batch.rows):
                    raise ValueError("no answer")
                for client, number, count in batch.askers:
                    self._reply(client, number, ["ok", pack(results[first : first + count])])
                    first += count
            case _:
                for client, number, _ in batch.askers:
                    self._reply(client, number, answer)
