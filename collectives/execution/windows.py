"""Arrays in windows: memory that all ranks of a communicator map, so that collectives work on it without staging.

The arrays of `Communicator.empty` have the same numbers on all ranks; those of named calls are numbered by themselves.
If all ranks pass the same arrays at the same offsets, the planner may choose an algorithm that stages nothing
(algorithms/windowed.py).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np

from collectives.algorithms import algorithms
from collectives.arrays import Array
from collectives.failure import AbortSignal
from collectives.jit import ANYWHERE, OUTSIDE, Extents, Location
from collectives.planning import WindowOffset, WindowOffsets
from collectives.schedule import Buf
from transports.base import Transport
from transports.errors import RendezvousError, RondeError
from transports.locks import let_go
from transports.onesided import OneSided, Window

_REMEMBERED: Final = 512
"""Arrays whose place in a window is remembered."""


@cache
def wanted(collective: str) -> frozenset[Buf]:
    """The buffers of IN and OUT that the algorithms for windows want to be in a window."""
    return frozenset(buf for algorithm in algorithms(collective).values() for buf in algorithm.windows)


class _Piece:
    """A window with an array in it. `root` is NumPy's `base` of that array and of all its views."""

    def __init__(self, window: Window, root: Array) -> None:
        self.window = window
        self.address = _address(root)
        self.root = weakref.ref(root)


class Windows:
    """The windows of one communicator that hold arrays."""

    def __init__(self, transport: Transport, abort_signal: AbortSignal, ranks: tuple[int, ...], tag: int) -> None:
        onesided = transport.ability(OneSided)
        able = onesided is not None and len(ranks) > 1 and onesided.reaches(ranks)
        self.onesided = onesided if able else None
        """Makes the windows; None where the ranks cannot map each other's memory."""
        self._abort_signal = abort_signal
        self._ranks = ranks
        self._key = f"array/{tag:x}/{ranks[0]}"
        self._made = {False: 0, True: 0}
        self._on_release: list[Callable[[], object]] = []
        self._lock = threading.RLock()
        self.pieces: dict[int, _Piece] = {}
        """Number -> window; empty if no array lies in a window."""
        self.extents = Extents()
        """The own parts of the windows."""
        self._numbers: dict[int, int] = {}
        """id of a root -> number of its window. Another array may get the id once the root is gone."""
        self._found: dict[int, tuple[weakref.ref[Array], WindowOffset]] = {}
        """id of an array -> its place, since NumPy is slow to tell an address. The same holds for the id."""

    def on_release(self, forget: Callable[[], object]) -> None:
        """Have `forget` called before windows are closed: it drops plans, which may be bound to them."""
        self._on_release.append(forget)

    def interrupted(self) -> None:
        """An interrupt has left a call of this thread: release the lock if it still holds it."""
        let_go(self._lock)

    def make(self, shape: tuple[int, ...], dtype: np.dtype[Any], deadline: float, *, named: bool = False) -> Array:
        """A new array of zeros in a window, or plain memory where there can be none. Collective.

        named   the window belongs to the named operations, which have an order of their own (here and below)
        """
        nbytes = prod(shape) * dtype.itemsize
        if self.onesided is None or not nbytes:
            return np.zeros(shape, dtype)
        with self._lock:
            self._made[named] += 1
            number = -self._made[True] if named else self._made[False]
        try:
            window = self.onesided.expose(f"{self._key}/{number}", self._ranks, nbytes, deadline)
        except RendezvousError:
            raise
        except RondeError as error:
            raise self._abort_signal.fail(error, f"in empty({nbytes} bytes)") from None
        root = np.frombuffer(window.view(window.index), np.uint8)
        with self._lock:
            self.pieces[number] = _Piece(window, root)
            self._numbers = {id(piece.root()): key for key, piece in self.pieces.items()}
            self._set_extents()
        array: Array = root.view(dtype).reshape(shape)
        return array

    def unused(self, *, named: bool = False) -> list[int]:
        """For each window, in one order on all ranks: 1 if this rank has dropped its array and all views, else 0."""
        with self._lock:
            return [int(self.pieces[number].root() is None) for number in self._numbers_of(named)]

    def release(self, flags: Sequence[int], *, named: bool = False) -> None:
        """Close the windows that are flagged, in the order of `unused`. Collective. Plans bound to any window are
        forgotten first."""
        with self._lock:
            found = [number for number, flag in zip(self._numbers_of(named), flags, strict=True) if flag]
            pieces = [self.pieces.pop(number) for number in found]
            self._set_extents()
        for forget in self._on_release if pieces else ():
            forget()
        for piece in pieces:
            piece.window.close()

    def offsets(self, collective: str, source: Array | None, target: Array | None) -> WindowOffsets | None:
        """The places of a call's arrays, if all that the algorithms for windows want lie in windows; else None."""
        if not self.pieces:
            return None
        needed = wanted(collective)
        if not needed:
            return None
        source_at = self._find(source) if Buf.IN in needed else None
        if Buf.IN in needed and source_at is None:
            return None
        if Buf.OUT not in needed:
            return source_at, None
        target_at = source_at if target is source and source_at is not None else self._find(target)
        return None if target_at is None else (source_at, target_at)

    def locations(self, collective: str, offsets: WindowOffsets | None, *, in_place: bool) -> tuple[Location, Location]:
        """Locations at which a call's arrays are sure to have these `offsets`."""
        if offsets is not None:
            given, taken = (ANYWHERE if place is None else self._location(place) for place in offsets)
            return given, taken
        needed = wanted(collective)
        given, taken = OUTSIDE if Buf.IN in needed else ANYWHERE, OUTSIDE if Buf.OUT in needed else ANYWHERE
        return (max(given, taken) if in_place else given), taken

    def part(self, place: WindowOffset, index: int, start: int, stop: int) -> Array:
        """Bytes start..stop, counted from a place, of rank `index`'s array."""
        memory = np.frombuffer(self.pieces[place.window].window.view(index), np.uint8)
        piece: Array = memory[place.offset + start : place.offset + stop]
        return piece

    def own(self, place: WindowOffset, nbytes: int) -> Array:
        """This rank's bytes from a place on, also if the array there has been dropped."""
        with self._lock:
            piece = self.pieces[place.window]
            root = piece.root()
            if root is None:
                root = np.frombuffer(piece.window.view(piece.window.index), np.uint8)
                piece.root = weakref.ref(root)
                self._numbers[id(root)] = place.window
        found: Array = root[place.offset : place.offset + nbytes]
        return found

    def close(self) -> None:
        """Release all windows. Arrays that are still referenced keep their memory."""
        for piece in self.pieces.values():
            piece.window.close()
        self.pieces.clear()
        self._set_extents()
        self._numbers.clear()
        self._found.clear()

    def _set_extents(self) -> None:
        self.extents.set([(piece.address, piece.address + piece.window.nbytes) for piece in self.pieces.values()])

    def _location(self, place: WindowOffset) -> Location:
        piece = self.pieces[place.window]
        return Location(piece.address + place.offset, id(piece.root()))

    def _numbers_of(self, named: bool) -> list[int]:
        return sorted(number for number in self.pieces if (number < 0) == named)

    def _find(self, array: Array | None) -> WindowOffset | None:
        found = self._found.get(id(array))
        if found is not None and found[0]() is array:
            return found[1]
        root = None if array is None else array.base
        number = None if root is None else self._numbers.get(id(root))
        piece = None if number is None else self.pieces.get(number)
        if number is None or piece is None or piece.root() is not root or array is None:
            return None
        place = WindowOffset(number, _address(array) - piece.address)
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        self._found[id(array)] = weakref.ref(array), place
        return place


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
