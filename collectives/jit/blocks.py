"""The words of the allocator of arrays, 64 bits each: what Python writes and the compiled functions read.

A keeper belongs to the process: NumPy's functions get its address. It has the lock, and the books of the present arena
and of those that are not shared any more. Books describe the pages of one arena:

    blocks   | free | used      | free |          pages that were never used          |
    tags     t    t u         u f    f            TOP
    pages    0                                                                    PAGES

A block has its tag in the words of its first and of its last page. The free blocks of similar size are a list, a bin.
"""

from __future__ import annotations

from typing import Final

# Words of the keeper.
LOCK: Final = 0
PRESENT: Final = 1
"""Address of the books of the arena for new arrays; 0: there is none."""
FORMER: Final = 2
"""Address of the books of the newest arena that takes no new arrays; 0: there is none."""
LOWEST: Final = 3
HIGHEST: Final = 4
"""No array in an arena lies outside of these addresses."""
LEAST: Final = 5
"""The fewest bytes of a block in an arena."""
REFUSED: Final = 6
"""Number of blocks that did not fit into the arena."""
MALLOC: Final = 7
CALLOC: Final = 8
REALLOC: Final = 9
FREE: Final = 10
"""The functions of NumPy's own handler, for all other blocks."""
CONTEXT: Final = 11
"""The first argument of these."""
KEEPER_WORDS: Final = 12

# Words of books.
BASE: Final = 0
"""Address of the first page."""
PAGES: Final = 1
TOP: Final = 2
"""Pages from here on were never used, or have been given back."""
USED: Final = 3
"""Pages of all arrays."""
COUNT: Final = 4
"""Number of arrays."""
STALE: Final = 5
"""Pages of free blocks that still take memory."""
KEPT: Final = 6
"""The most of these before their memory is given back to the system."""
NEXT: Final = 7
"""Address of the books of the next older arena."""
TAGS: Final = 8
"""Address of a word for each page."""
LINKS: Final = 9
"""Address of two words for each page: the next and the previous block of a bin, as page + 1; 0: none."""
BYTES: Final = 10
"""Bytes of the books, tags and links included, which begin a mapping of their own."""
TURN: Final = 11
"""Number of blocks that were ever given out; see COLOUR."""
ZERO: Final = 12
"""1 if the newest block is known to be zeros."""
BINS: Final = 16
"""The first block of each bin, as page + 1; bin b has blocks of 2**b pages, to less than twice as many."""
BOOK_WORDS: Final = BINS + 48

# Bits of a tag, beside the number of pages.
TAKEN: Final = 1
CLEAN: Final = 2
"""A free block that takes no memory: zeros, once it is read."""
TAG_BITS: Final = 2

PAGE: Final = 4096
HUGE_PAGE: Final = 1 << 21
MOST_HUGE: Final = 1 << 28
"""The most bytes of a block whose huge pages are made when it is given out. A larger array may be a sparse one."""
COLOUR: Final = 17 * 64
"""Successive blocks begin at other places of their first pages, since a copy is a fifth slower when source and target
have nearly the same offset in their pages (4K aliasing). All are multiples of 64."""
