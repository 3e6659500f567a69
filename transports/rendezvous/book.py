"""The dictionary of a store server, without I/O: requests go in, answers come out, some of them later."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Protocol

from transports.packed import pack, unpack
from transports.rendezvous.wire import LONGEST_GET
from transports.store import MAX_VALUE_BYTES, MOST_AWAITED, check_item, check_row, counted, pack_table

MAX_STORED: Final = 1 << 28
MOST_WAITS: Final = 1 << 16
"""Maximum number of unanswered requests of one client."""

Answer = list[object]
Reply = Callable[[Hashable, int, Answer], None]
"""Called with a client, the number of its request, and the answer."""


class Desk(Protocol):
    """The data behind a server's connections."""

    def ask(self, client: Hashable, number: int, request: list[object], now: float) -> None:
        """Take a request; it is answered now or later. Raises ValueError if it is none."""

    def forget(self, client: Hashable) -> None:
        """A client has left: answer it no more."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    @property
    def due(self) -> float:
        """The time of the next `tick`; earlier is no harm."""


@dataclass(eq=False, slots=True)
class Wait:
    """A request that waits until one of its keys has a value. `several`: the answer tells which of them."""

    client: Hashable
    number: int
    keys: tuple[str, ...]
    until: float
    several: bool

    def answer(self, key: str, value: bytes) -> Answer:
        """The answer when `key` has a value."""
        return ["ok", [self.keys.index(key), value] if self.several else value]


class Waits:
    """Requests that wait for keys."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._by_key: dict[str, dict[Wait, None]] = {}
        self._by_client: dict[Hashable, dict[Wait, None]] = {}
        self.due = math.inf

    def add(self, wait: Wait) -> None:
        """Wait. Raises ValueError if the client waits for too much."""
        own = self._by_client.setdefault(wait.client, {})
        if len(own) >= MOST_WAITS:
            raise ValueError("too many requests wait")
        own[wait] = None
        for key in wait.keys:
            self._by_key.setdefault(key, {})[wait] = None
        self.due = min(self.due, wait.until)

    def set(self, key: str, value: bytes) -> None:
        """Answer all that wait for `key`."""
        for wait in list(self._by_key.get(key, ())):
            self._remove(wait)
            self._reply(wait.client, wait.number, wait.answer(key, value))

    def awaited(self, key: str) -> bool:
        """True if a request waits for `key`."""
        return key in self._by_key

    def forget(self, client: Hashable) -> None:
        """Drop the waits of a client."""
        for wait in list(self._by_client.get(client, ())):
            self._remove(wait)

    def expire(self, now: float) -> None:
        """Answer those whose time is up."""
        if now < self.due:
            return
        late = [wait for waits in self._by_client.values() for wait in waits if wait.until <= now]
        for wait in late:
            self._remove(wait)
            self._reply(wait.client, wait.number, ["late", None])
        self.due = min((wait.until for waits in self._by_client.values() for wait in waits), default=math.inf)

    def _remove(self, wait: Wait) -> None:
        own = self._by_client[wait.client]
        del own[wait]
        if not own:
            del self._by_client[wait.client]
        for key in wait.keys:
            waits = self._by_key[key]
            del waits[wait]
            if not waits:
                del self._by_key[key]


class _Table:
    """The rows of a table by place, and the number of those that are missing."""

    __slots__ = ("missing", "rows")

    def __init__(self, size: int) -> None:
        self.rows: list[bytes | None] = [None] * size
        self.missing = size


class Book(Desk):
    """One dictionary for all clients. All values together are limited to MAX_STORED bytes."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._values: dict[str, bytes] = {}
        self._tables: dict[str, _Table] = {}
        self._stored = 0
        self._waits = Waits(reply)

    @property
    def due(self) -> float:
        return self._waits.due

    def tick(self, now: float) -> None:
        self._waits.expire(now)

    def forget(self, client: Hashable) -> None:
        self._waits.forget(client)

    def ask(self, client: Hashable, number: int, request: list[object], now: float) -> None:
        wait = wait_of(client, number, request, now)
        if wait is None:
            self._reply(client, number, self._answer(request))
            return
        found = next((key for key in wait.keys if key in self._values), None)
        if found is not None:
            self._reply(client, number, wait.answer(found, self._values[found]))
        elif wait.until > now:
            self._waits.add(wait)
        else:
            self._reply(client, number, ["late", None])

    def _answer(self, request: list[object]) -> Answer:
        match request:
            case ["set", str(key), bytes(value)]:
                return self._put(key, value)
            case ["default", str(key), bytes(value)]:
                known = self._values.get(key)
                if known is not None:
                    return ["ok", known]
                kept = self._put(key, value)
                return ["ok", value] if kept[0] == "ok" else kept
            case ["add", str(key), int(amount)]:
                return self._add(key, amount)
            case ["delete", str(key), None]:
                return ["ok", self._delete(key)]
            case ["forget", str(prefix), bytes(argument)]:
                return self._forget_all(prefix, keys_in(argument))
            case ["put", str(table), bytes(argument)]:
                return self._put_rows(table, *rows_to_put(table, argument))
            case ["rows", str(table), None]:
                found = self._tables.get(table)
                return self._fitting(table, pack_table(found.rows if found is not None else []))
            case ["peek", str(), bytes(argument)]:
                return ["ok", pack([self._values.get(key) for key in keys_in(argument)])]
        raise ValueError("no request")

    def _add(self, key: str, amount: int) -> Answer:
        try:
            total = counted(key, self._values.get(key), amount)
        except ValueError as error:
            return ["bad", str(error)]
        kept = self._put(key, b"%d" % total)
        return ["ok", total] if kept[0] == "ok" else kept

    def _put_rows(self, table: str, size: int, rows: list[tuple[int, bytes]]) -> Answer:
        """The answer has, for each row, None or the reason why it was refused."""
        found = self._tables.get(table)
        if found is None:
            found = self._tables[table] = _Table(size)
        if len(found.rows) != size:
            refused = f"size={size}: table {table!r} has {len(found.rows)} places"
            return ["ok", pack([refused] * len(rows))]
        results: list[str | None] = []
        for place, row in rows:
            if found.rows[place] is not None:
                results.append(f"place={place}: is taken in table {table!r}")
                continue
            if self._stored + len(row) > MAX_STORED:
                return self._full(f"table {table!r}")
            self._stored += len(row)
            found.rows[place] = row
            found.missing -= 1
            results.append(None)
        if not found.missing and table not in self._values:
            complete = self._fitting(table, pack_table(found.rows))
            value = complete[1]
            kept = self._put(table, value) if isinstance(value, bytes) else complete
            if kept[0] != "ok":
                return kept
        return ["ok", pack(results)]

    def _fitting(self, table: str, value: bytes) -> Answer:
        """The answer with the value of a table, if it has room in a frame."""
        if len(value) > MAX_VALUE_BYTES:
            return ["full", f"table {table!r} of {len(value)} bytes does not fit: at most {MAX_VALUE_BYTES} do"]
        return ["ok", value]

    def _put(self, key: str, value: bytes) -> Answer:
        check_item(key, value)
        grown = self._stored + len(value) - len(self._values.get(key, b""))
        if key not in self._values:
            grown += len(key.encode())
        if grown > MAX_STORED:
            return self._full(f"key {key!r} with {len(value)} bytes")
        self._stored = grown
        self._values[key] = value
        self._waits.set(key, value)
        return ["ok", None]

    def _full(self, what: str) -> Answer:
        return ["full", f"{what} does not fit: it holds at most {MAX_STORED} bytes"]

    def _delete(self, key: str) -> bool:
        value = self._values.pop(key, None)
        if value is None:
            return False
        self._stored -= len(value) + len(key.encode())
        return True

    def _forget_all(self, prefix: str, kept: list[str]) -> Answer:
        """Forget what is under a prefix, but whole keys that are kept."""
        for key in [key for key in self._values if key.startswith(f"{prefix}/") and key not in kept]:
            self._delete(key)
        for table in [table for table in self._tables if table.startswith(f"{prefix}/") and table not in kept]:
            self._stored -= sum(len(row) for row in self._tables.pop(table).rows if row is not None)
        return ["ok", None]


def wait_of(client: Hashable, number: int, request: list[object], now: float) -> Wait | None:
    """The wait that a request asks for; None if it asks for something else. Raises ValueError."""
    match request:
        case ["get", str(key), float(seconds)] if 0 <= seconds <= LONGEST_GET:
            return Wait(client, number, (key,), now + seconds, False)
        case ["any", str(), bytes(argument)]:
            match unpack(argument):
                case [[*keys], float(seconds)] if 0 < len(keys) <= MOST_AWAITED and 0 <= seconds <= LONGEST_GET:
                    return Wait(client, number, tuple(dict.fromkeys(map(str, keys))), now + seconds, True)
            raise ValueError("no keys to wait for")
    return None


def keys_in(argument: bytes) -> list[str]:
    """The keys of a request "peek" or "forget". Raises ValueError."""
    match unpack(argument):
        case [*keys] if all(isinstance(key, str) for key in keys):
            return keys
    raise ValueError("no keys")


def rows_to_put(table: str, argument: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """Size of the table and the rows, with their places, of a request "put". Raises ValueError."""
    match unpack(argument):
        case [int(size), [*entries]]:
            rows = [_row_to_put(table, size, entry) for entry in entries]
            if len({place for place, _ in rows}) == len(rows) > 0:
                return size, rows
    raise ValueError("no rows")


def _row_to_put(table: str, size: int, entry: object) -> tuple[int, bytes]:
    match entry:
        case [int(place), bytes(row)]:
            check_row(table, place, size, row)
            return place, row
    raise ValueError("no row")
