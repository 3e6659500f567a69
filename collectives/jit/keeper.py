"""The keeper of arrays in arenas: the memory that Python writes for the allocator, by the layout of `blocks`."""

from __future__ import annotations

import ctypes
from typing import Final, NamedTuple

import numpy as np

from collectives.jit import blocks
from collectives.jit.machine_code import MachineCode
from transports.arenas import map_memory, words_at

_READ_WRITE: Final = 1 | 2
"""PROT_READ and PROT_WRITE."""
_TABLE_WORDS: Final = 3
"""Words of tags and links for each page."""


class Allocation(NamedTuple):
    """Addresses of the functions of an allocator of NumPy's, and their first argument."""

    context: int
    malloc: int
    calloc: int
    realloc: int
    free: int


class ArrayKeeper:
    """The keeper of this process, for arrays of `least` bytes and more. It must never be released: arrays call its
    functions when they end.

    functions   of the allocator, for NumPy
    """

    def __init__(self, code: MachineCode, usual: Allocation, least: int) -> None:
        """`usual`: NumPy's own allocator, for all other arrays."""
        self._words = np.zeros(blocks.KEEPER_WORDS, np.int64)
        self._words[blocks.MALLOC : blocks.CONTEXT + 1] = (*usual[1:], usual.context)
        self._words[blocks.LEAST] = least
        self._words[blocks.LOWEST] = np.iinfo(np.int64).max
        self._at = int(self._words.__array_interface__["data"][0])
        found, word = code.allocator, ctypes.c_int64
        self.functions = Allocation(self._at, *(found[name] for name in ("malloc", "calloc", "realloc", "free")))
        self._retire = ctypes.CFUNCTYPE(word, word)(found["retire"])
        self._used_pages = ctypes.CFUNCTYPE(word, word)(found["used_pages"])
        self._settle = ctypes.CFUNCTYPE(word, word, word, word)(found["settle"])
        for immortal in (code, self._words):  # arrays may end after the modules
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(immortal))

    @property
    def refused(self) -> int:
        """Number of arrays that did not fit into the arena."""
        return int(self._words[blocks.REFUSED])

    @property
    def used(self) -> int:
        """Bytes of the arrays in all arenas."""
        return int(self._used_pages(self._at)) * blocks.PAGE

    def begin(self, start: int, nbytes: int, kept: int) -> None:
        """Have new arrays born in the arena at `start`; there must be no present one. `kept`: the most bytes of free
        blocks that stay with the process. Raises OSError."""
        pages = nbytes // blocks.PAGE
        size = -(-8 * (blocks.BOOK_WORDS + _TABLE_WORDS * pages) // blocks.PAGE) * blocks.PAGE
        at = map_memory(size, -1, _READ_WRITE, private=True)
        books = words_at(at, blocks.BOOK_WORDS)
        books[blocks.BASE], books[blocks.PAGES], books[blocks.BYTES] = start, pages, size
        books[blocks.KEPT] = kept // blocks.PAGE
        books[blocks.TAGS] = at + 8 * blocks.BOOK_WORDS
        books[blocks.LINKS] = at + 8 * (blocks.BOOK_WORDS + pages)
        words = self._words
        words[blocks.LOWEST] = min(words[blocks.LOWEST], start)
        words[blocks.HIGHEST] = max(words[blocks.HIGHEST], start + nbytes)
        words[blocks.PRESENT] = at  # the last: the functions use it from now on

    def retire(self) -> tuple[int, int]:
        """Have no more arrays born in the present arena. Returns what `settle` wants: the address of its books, and
        its bytes from the begin on in which there are arrays."""
        at = self._retire(self._at)
        return at, int(words_at(at, blocks.BOOK_WORDS)[blocks.TOP]) * blocks.PAGE

    def settle(self, books: int, nbytes: int) -> None:
        """The arena that was retired has so many bytes from now on. It is unmapped with its last array."""
        self._settle(self._at, books, nbytes // blocks.PAGE)

    def after_fork(self) -> None:
        """In a forked child: a thread of the parent may hold the lock."""
        self._words[blocks.LOCK] = 0
