"""The store contract: a small shared dictionary by which ranks find each other before they have a transport."""

from __future__ import annotations

import re
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

from transports.errors import DeadlineExceeded
from transports.packed import pack, unpack

MAX_KEY_BYTES = 512
MAX_VALUE_BYTES = 1 << 20
MAX_ROW_BYTES: Final = 1 << 16
MOST_AWAITED: Final = 16
"""Maximum number of keys that are awaited at once."""
MAX_PLACES: Final = 1 << 20
"""Maximum number of rows of a table."""
_MAX_TABLE_BYTES: Final = 1 << 27
"""Maximum bytes of a table before it is compressed."""
_PAUSE: Final = 0.1
"""Seconds between two looks at keys that are awaited for long, where the store cannot tell of a change."""
_TABLE: Final = b"\xc1"
"""First byte of a table's value. No msgpack value begins with it."""


class Place(NamedTuple):
    """The way to a store, beside its secret and certificates: see `rendezvous.open_store`.

    purpose  of its server; empty without one
    prefix   of the keys
    """

    url: str
    purpose: bytes = b""
    prefix: str = ""


class Store(ABC):
    """Keys are non-empty strings of up to 512 UTF-8 bytes, values bytes of up to 1 MiB. Threads may share a store.

    A *table* gathers a row from each of several ranks. Its key gets a value, which `get` waits for, when all rows are
    there, or before that by `set_default`. Whatever was first stays.

    Every method raises RendezvousError when the store cannot be reached or was closed, ValueError for a bad key or
    value.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Bind `key` to `value`, replacing what it had."""

    @abstractmethod
    def get(self, key: str, deadline: float) -> bytes:
        """The value of `key`, waited for until `deadline` (absolute `time.monotonic()` seconds).

        Raises DeadlineExceeded naming the key; the store stays usable.
        """

    def peek(self, key: str) -> bytes | None:
        """The value of `key`, or None if it has none. Does not wait."""
        try:
            return self.get(key, time.monotonic())
        except DeadlineExceeded:
            return None

    def awaited(self, *keys: str) -> Awaited:
        """Begin to wait until one of `keys` has a value, for long and in slices. The caller closes what is returned.

        Raises ValueError for more than MOST_AWAITED keys.
        """
        check_awaited(keys)
        return Awaited(self, keys)

    def peek_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """`peek` for each of `keys`."""
        return [self.peek(key) for key in keys]

    @abstractmethod
    def set_default(self, key: str, value: bytes) -> bytes:
        """Bind `key` to `value` if it has none; return the value that it has now. Atomic over all users, so that the
        first of several proposals becomes the decision of all."""

    def put_row(self, table: str, place: int, size: int, row: bytes) -> None:
        """Put a row into a table of `size` rows, at a place from 0 to size - 1. Does not wait.

        Raises ValueError, with nothing changed, if the place is taken or the table has another size.
        """
        check_row(table, place, size, row)
        told = self.set_default(f"{table}/size", b"%d" % size)
        if told != b"%d" % size:
            raise ValueError(f"size={size!r}: table {table!r} has {told.decode(errors='replace')} places")
        if self.add(f"{table}/taken/{place}", 1) > 1:
            raise ValueError(f"place={place!r}: is taken in table {table!r}")
        self.set(f"{table}/row/{place}", row)
        if self.add(f"{table}/count", 1) == size:
            rows = self.rows(table)
            if None not in rows:
                self.set_default(table, pack_table(rows))

    def rows(self, table: str) -> list[bytes | None]:
        """The rows of a table by place, None where there is none yet. Empty if no row was put. Does not wait."""
        told = self.peek(f"{table}/size")
        size = int(told) if told and told.isdigit() and len(told) < 8 else 0
        return [self.peek(f"{table}/row/{place}") for place in range(size)]

    def gather(self, table: str, place: int, size: int, row: bytes, deadline: float) -> list[bytes]:
        """Put a row into a table and wait for all its rows, which are returned. Two round trips.

        Raises what `put_row` and `get` do; ValueError if the table has another value.
        """
        self.put_row(table, place, size, row)
        rows = read_table(self.get(table, deadline))
        if len(rows) != size:
            raise ValueError(f"table {table!r} has {len(rows)} rows, not {size}")
        return rows

    @abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0; return the sum. Atomic over all users. `get` returns a counter as decimal
        ASCII bytes.

        Raises ValueError, with nothing changed, if `key` holds something else or the sum does not fit 64 bits.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Forget `key`; True if it was there."""

    def forget(self, prefix: str, kept: Sequence[str] = ()) -> None:
        """Forget all keys and tables that begin with `prefix` + '/', but those of `kept`, which are whole keys. Nobody
        waits for one of them any more. A store that cannot list its keys keeps them."""
        check_item(prefix)

    @abstractmethod
    def close(self) -> None:
        """Release descriptors and threads. Idempotent."""

    def prefixed(self, prefix: str) -> Store:
        """The part of this store whose keys begin with `prefix` + '/'. Closing it does not close this one."""
        return PrefixStore(self, prefix)

    def local_address(self) -> str | None:
        """The local address of the connection to the store. None if the store was not used yet, or is not reached
        through a network (also by loopback): then the address says nothing about routes to other machines."""
        return None

    def place(self) -> Place | None:
        """The way for other processes to this store; None if there is none."""
        return None

    def with_timeout(self, seconds: float) -> Store:
        """This store with a time-out: calls raise RendezvousError if the store does not accept a connection or answer
        within `seconds` (for `get`: within `seconds` after its deadline). It shares all resources with this store, so
        close only this one.

        A store that is always reachable returns itself.
        """
        return self


class Awaited:
    """Keys one of which is being waited for. For one thread.

    This one polls, with long pauses, since it is for rare events and for hours; a store that can be asked once and
    answers later has its own.
    """

    def __init__(self, store: Store, keys: Sequence[str]) -> None:
        self._store = store
        self._keys = keys

    def wait(self, until: float) -> tuple[int, bytes] | None:
        """The position and the value of a key that has one, waited for until `until` (absolute); None if none has one
        by then. After a value it begins anew. Raises RendezvousError."""
        while True:
            for position, value in enumerate(self._store.peek_all(self._keys)):
                if value is not None:
                    return position, value
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(_PAUSE, left))

    def close(self) -> None:
        """Wait no more. Idempotent."""


def check_item(key: str, value: bytes = b"") -> None:
    """Check the limits of a key and a value. Raises ValueError."""
    if not key or len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"key={key!r}: must be 1 to {MAX_KEY_BYTES} UTF-8 bytes")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"value of {len(value)} bytes for key {key!r}: at most {MAX_VALUE_BYTES} are allowed")


def check_awaited(keys: Sequence[str]) -> None:
    """Check the limits of keys that are awaited. Raises ValueError."""
    if len(keys) > MOST_AWAITED:
        raise ValueError(f"{len(keys)} keys: at most {MOST_AWAITED} are awaited at once")
    for key in keys:
        check_item(key)


def check_row(table: str, place: int, size: int, row: bytes = b"") -> None:
    """Check the limits of a row. Raises ValueError."""
    check_item(table, row)
    if len(row) > MAX_ROW_BYTES:
        raise ValueError(f"row of {len(row)} bytes for table {table!r}: at most {MAX_ROW_BYTES} are allowed")
    if not 0 < size <= MAX_PLACES:
        raise ValueError(f"size={size!r} of table {table!r}: must be 1 to {MAX_PLACES}")
    if not 0 <= place < size:
        raise ValueError(f"place={place!r} in table {table!r}: must be 0 to {size - 1}")


def pack_table(rows: Sequence[bytes | None]) -> bytes:
    """The value of a table. Rows that are much alike take little space: it is compressed."""
    return _TABLE + zlib.compress(pack(list(rows)), 1)


def is_table(value: bytes) -> bool:
    """True if a value is a table, if it can be read at all."""
    return value.startswith(_TABLE)


def read_table(value: bytes) -> list[bytes]:
    """The rows of a table, by place. Raises ValueError if `value` is no complete table."""
    found = read_rows(value)
    rows = [row for row in found if row is not None]
    if len(rows) < len(found):
        raise ValueError("a table that lacks rows")
    return rows


def read_rows(value: bytes) -> list[bytes | None]:
    """The rows of a table that may lack some. Raises ValueError if `value` is no table."""
    if not is_table(value):
        raise ValueError("no table")
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(value[1:], _MAX_TABLE_BYTES)
    except zlib.error as error:
        raise ValueError(f"a table that cannot be read: {error}") from error
    if not unpacker.eof:
        raise ValueError("a table that is cut short, or too large")
    rows = unpack(data, max_bytes=_MAX_TABLE_BYTES, max_items=MAX_PLACES)
    if not isinstance(rows, list) or not all(row is None or isinstance(row, bytes) for row in rows):
        raise ValueError("a table whose rows are not bytes")
    return rows


def counted(key: str, value: bytes | None, amount: int) -> int:
    """The sum of the counter stored as `value` (None: no counter yet) and `amount`.

    Raises ValueError if `value` is no counter or the sum does not fit 64 bits.
    """
    if value is not None and not re.fullmatch(rb"-?[0-9]{1,19}", value):
        raise ValueError(f"key={key!r}: holds a value of {len(value)} bytes that is not a counter")
    total = int(value or 0) + amount
    if not -(2**63) <= total < 2**63:
        raise ValueError(f"amount={amount!r} for key {key!r}: the counter must stay within 64 bits")
    return total


class PrefixStore(Store):
    """A part of another store, so that groups, generations and services never see each other's keys."""

    def __init__(self, inner: Store, prefix: str) -> None:
        check_item(prefix)
        self._inner = inner
        self._prefix = prefix + "/"

    def set(self, key: str, value: bytes) -> None:
        self._inner.set(self._prefix + key, value)

    def get(self, key: str, deadline: float) -> bytes:
        return self._inner.get(self._prefix + key, deadline)

    def awaited(self, *keys: str) -> Awaited:
        return self._inner.awaited(*[self._prefix + key for key in keys])

    def peek_all(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._inner.peek_all([self._prefix + key for key in keys])

    def set_default(self, key: str, value: bytes) -> bytes:
        return self._inner.set_default(self._prefix + key, value)

    def put_row(self, table: str, place: int, size: int, row: bytes) -> None:
        self._inner.put_row(self._prefix + table, place, size, row)

    def rows(self, table: str) -> list[bytes | None]:
        return self._inner.rows(self._prefix + table)

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(self._prefix + key, amount)

    def delete(self, key: str) -> bool:
        return self._inner.delete(self._prefix + key)

    def forget(self, prefix: str, kept: Sequence[str] = ()) -> None:
        self._inner.forget(self._prefix + prefix, [self._prefix + key for key in kept])

    def close(self) -> None:
        """Does nothing: the inner store belongs to its creator."""

    def local_address(self) -> str | None:
        return self._inner.local_address()

    def place(self) -> Place | None:
        found = self._inner.place()
        return found and found._replace(prefix=found.prefix + self._prefix)

    def with_timeout(self, seconds: float) -> Store:
        return PrefixStore(self._inner.with_timeout(seconds), self._prefix[:-1])
