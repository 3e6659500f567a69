"""Arrays in windows: memory that all ranks of a communicator map, so that they can combine it where it lies.

The arrays of `Communicator.empty` are numbered alike on all ranks, those of named calls by themselves. Where a
collective is given such arrays, on all ranks the same ones at the same places, the planner may choose an algorithm that
stages nothing (algorithms/windowed.py).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.alarm import Alarm
from collectives.algorithms import algorithms
from collectives.buffers import Array
from collectives.schedule import Buf
from transports.base import Transport
from transports.errors import RendezvousError, RondeError
from transports.onesided import OneSided, Window

_ROOM: Final = (
    "Memory that ranks share is in /dev/shm; in a container it may have to be made larger (docker: --shm-size)"
)


_REMEMBERED: Final = 512
"""Arrays that have been found to lie in windows."""


class Place(NamedTuple):
    """Where an array begins: the number of a window, and bytes from its beginning."""

    window: int
    offset: int


Places = tuple[Place | None, Place | None]
"""Of IN and of OUT; None for what is in no window, or need not be."""


@cache
def wanted(collective: str) -> frozenset[Buf]:
    """Which of IN and OUT the algorithms for windows want to be in one."""
    return frozenset(buf for algorithm in algorithms(collective).values() for buf in algorithm.windows)


class _Piece:
    """A window with an array in it. `root` is what NumPy gives as `base` of that array and of all views of it."""

    def __init__(self, window: Window, root: Array) -> None:
        self.window = window
        self.address = _address(root)
        self.root = weakref.ref(root)


class Windows:
    """The windows of a communicator that arrays lie in."""

    def __init__(self, transport: Transport, alarm: Alarm, ranks: tuple[int, ...], tag: int) -> None:
        onesided = transport.ability(OneSided)
        able = onesided is not None and len(ranks) > 1 and onesided.reaches(ranks)
        self.onesided = onesided if able else None
        """What makes windows; None where the ranks cannot map each other's memory."""
        self._alarm = alarm
        self._ranks = ranks
        self._key = f"array/{tag:x}/{ranks[0]}"
        self._made = {False: 0, True: 0}
        self._lock = threading.Lock()
        self.pieces: dict[int, _Piece] = {}
        """By number; empty where no array lies in a window."""
        self._numbers: dict[int, int] = {}
        """id of a root -> the number of its window. Other arrays may have the id when the root is gone."""
        self._found: dict[int, tuple[weakref.ref[Array], Place]] = {}
        """id of an array -> where it lies, since it takes long to ask NumPy for an address. Likewise."""

    def make(self, shape: tuple[int, ...], dtype: np.dtype[Any], deadline: float, *, named: bool = False) -> Array:
        """A new array of zeros in a window, or plain memory where there can be none. Collective.

        `named` windows are made in an order of their own, which is that of named operations; here and below.
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
            raise self._alarm.give_up(error, f"in empty({nbytes} bytes)") from None
        except OSError as error:
            raise RendezvousError(f"there is no room for {nbytes} bytes on each rank: {error}. {_ROOM}") from error
        root = np.frombuffer(window.view(window.index), np.uint8)
        with self._lock:
            self.pieces[number] = _Piece(window, root)
            self._numbers = {id(piece.root()): key for key, piece in self.pieces.items()}
        array: Array = root.view(dtype).reshape(shape)
        return array

    def unused(self, *, named: bool = False) -> list[int]:
        """For each window, in an order that all ranks share, 1 if nothing on this rank looks at its array any more,
        else 0."""
        with self._lock:
            return [int(self.pieces[number].root() is None) for number in self._numbers_of(named)]

    def release(self, flags: Sequence[int], *, named: bool = False) -> bool:
        """Close the windows that are flagged, in the order of `unused`. True if there were any. Collective."""
        with self._lock:
            found = [number for number, flag in zip(self._numbers_of(named), flags, strict=True) if flag]
            pieces = [self.pieces.pop(number) for number in found]
        for piece in pieces:
            piece.window.close()
        return bool(found)

    def places(self, collective: str, source: Array | None, target: Array | None) -> Places | None:
        """Where the arrays of a call lie, if all that are wanted lie in windows; else None."""
        needed = wanted(collective)
        if not needed:
            return None
        place_in = self._find(source) if Buf.IN in needed else None
        if Buf.IN in needed and place_in is None:
            return None
        if Buf.OUT not in needed:
            return place_in, None
        place_out = place_in if target is source and place_in is not None else self._find(target)
        return None if place_out is None else (place_in, place_out)

    def part(self, place: Place, index: int, start: int, stop: int) -> Array:
        """Bytes start..stop from a place on, of the array of position `index` in the communicator."""
        memory = np.frombuffer(self.pieces[place.window].window.view(index), np.uint8)
        piece: Array = memory[place.offset + start : place.offset + stop]
        return piece

    def own(self, place: Place, nbytes: int) -> Array:
        """This rank's bytes from a place on, as a piece of the array there, even if that has been dropped."""
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
        """Release all. Arrays that are still looked at keep their memory."""
        for piece in self.pieces.values():
            piece.window.close()
        self.pieces.clear()
        self._numbers.clear()
        self._found.clear()

    def _numbers_of(self, named: bool) -> list[int]:
        return sorted(number for number in self.pieces if (number < 0) == named)

    def _find(self, array: Array | None) -> Place | None:
        found = self._found.get(id(array))
        if found is not None and found[0]() is array:
            return found[1]
        root = None if array is None else array.base
        number = None if root is None else self._numbers.get(id(root))
        piece = None if number is None else self.pieces.get(number)
        if number is None or piece is None or piece.root() is not root or array is None:
            return None
        place = Place(number, _address(array) - piece.address)
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        self._found[id(array)] = weakref.ref(array), place
        return place


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
