"""The allocator of arrays that are born shared, as Numba compiles it: the functions of a handler of NumPy (NEP 49).

Large blocks lie in the arena; NumPy's own functions serve the small ones, and those for which the arena is full.
`blocks` names the words that it works on. Any thread may call it, with or without Python's lock. Numba is needed to
import this module.
"""

from __future__ import annotations

from typing import Any, Final

import numba

from collectives.jit import blocks as at
from collectives.jit.atomics import (
    WORD,
    call_function,
    clear_bytes,
    compiled,
    copy_bytes,
    field,
    load_acquire,
    madvise,
    munmap,
    pause,
    put,
    sched_yield,
    store_release,
    swap,
    word,
)

_SPINS = 100
_GIVE_BACK = 9
"""Linux' MADV_REMOVE: a hole in the file, for all processes that map it."""
_DROP = 4
"""Linux' MADV_DONTNEED."""
_COLLAPSE = 25
"""Linux' MADV_COLLAPSE: make huge pages now, also where the system makes none of itself (Linux 6.1)."""
_PAGES_OF_HUGE = at.HUGE_PAGE // at.PAGE
_TRIED = 8
"""Blocks of the own bin that are looked at, before a larger one is cut."""


@compiled
def lock(keeper: int) -> None:
    """Take the lock."""
    spins = _SPINS
    while swap(keeper + 8 * at.LOCK, 1) != 0:
        if spins > 0:
            spins -= 1
            pause()
        else:
            sched_yield()


@compiled
def unlock(keeper: int) -> None:
    """Release the lock."""
    store_release(keeper + 8 * at.LOCK, 0)


@compiled
def note(books: int, index: int, change: int) -> None:
    """Add to a word."""
    put(books + 8 * index, field(books, index) + change)


@compiled
def bin_of(pages: int) -> int:
    """The number of the bin of blocks with so many pages."""
    found = 0
    while pages > 1:
        pages >>= 1
        found += 1
    return found


@compiled
def tag(books: int, page: int) -> int:
    """The tag in the word of a page."""
    return field(field(books, at.TAGS), page)


@compiled
def set_tag(books: int, page: int, pages: int, bits: int) -> None:
    """Make a block."""
    tags, value = field(books, at.TAGS), pages << at.TAG_BITS | bits
    put(tags + 8 * page, value)
    put(tags + 8 * (page + pages - 1), value)


@compiled
def link(books: int, page: int, pages: int, clean: int) -> None:
    """Add a free block to its bin."""
    set_tag(books, page, pages, clean)
    links, first = field(books, at.LINKS), books + 8 * (at.BINS + bin_of(pages))
    after = word(first)
    put(links + 16 * page, after)
    put(links + 16 * page + 8, 0)
    if after != 0:
        put(links + 16 * (after - 1) + 8, page + 1)
    put(first, page + 1)
    if clean == 0:
        note(books, at.STALE, pages)


@compiled
def unlink(books: int, page: int) -> None:
    """Take a free block out of its bin."""
    found, links = tag(books, page), field(books, at.LINKS)
    after, before = word(links + 16 * page), word(links + 16 * page + 8)
    if before != 0:
        put(links + 16 * (before - 1), after)
    else:
        put(books + 8 * (at.BINS + bin_of(found >> at.TAG_BITS)), after)
    if after != 0:
        put(links + 16 * (after - 1) + 8, before)
    if found & at.CLEAN == 0:
        note(books, at.STALE, -(found >> at.TAG_BITS))


@compiled
def search(books: int, pages: int, most: int) -> int:
    """A free block that is large enough, as page + 1; 0: none is found. `most` blocks of the own bin are looked at."""
    links, number = field(books, at.LINKS), bin_of(pages)
    place = field(books, at.BINS + number)
    while place != 0 and most != 0:
        if tag(books, place - 1) >> at.TAG_BITS >= pages:
            return place
        place = word(links + 16 * (place - 1))
        most -= 1
    number += 1
    while number < at.BOOK_WORDS - at.BINS:
        place = field(books, at.BINS + number)
        if place != 0:
            return place
        number += 1
    return 0


@compiled
def tidy(books: int) -> None:
    """Give the memory of all free blocks back to the system, and join neighbours."""
    for number in range(at.BOOK_WORDS - at.BINS):
        put(books + 8 * (at.BINS + number), 0)
    put(books + 8 * at.STALE, 0)
    page, top, start = 0, field(books, at.TOP), -1
    stale = False
    while page <= top:
        found = tag(books, page) if page < top else at.TAKEN
        if found & at.TAKEN == 0:
            if start < 0:
                start, stale = page, False
            stale = stale or found & at.CLEAN == 0
        elif start >= 0:
            base = field(books, at.BASE) + start * at.PAGE
            clean = at.CLEAN
            if stale and madvise(base, (page - start) * at.PAGE, _GIVE_BACK) & 0xFFFFFFFF != 0:
                clean = 0
            if page == top and clean != 0:
                put(books + 8 * at.TOP, start)
            else:
                link(books, start, page - start, clean)
            start = -1
        page += max(1, found >> at.TAG_BITS)


@compiled
def take(books: int, size: int) -> int:
    """The address of a new block; 0 if there is no room."""
    turn = field(books, at.TURN)
    colour = turn * at.COLOUR & at.PAGE - 1
    pages = (size + colour + at.PAGE - 1) // at.PAGE
    place, top = search(books, pages, _TRIED), field(books, at.TOP)
    gap = -top % _PAGES_OF_HUGE if pages >= _PAGES_OF_HUGE else 0
    if place == 0 and gap != 0 and top + gap + pages <= field(books, at.PAGES):
        link(books, top, gap, at.CLEAN)
        top += gap
        put(books + 8 * at.TOP, top)
    if place == 0 and top + pages > field(books, at.PAGES):
        place = search(books, pages, -1)
        if place == 0 and field(books, at.STALE) != 0:
            tidy(books)
            place, top = search(books, pages, -1), field(books, at.TOP)
    if place != 0:
        page = place - 1
        found = tag(books, page)
        unlink(books, page)
        clean, rest = found & at.CLEAN, (found >> at.TAG_BITS) - pages
        if rest > 0:
            link(books, page + pages, rest, clean)
    elif top + pages <= field(books, at.PAGES):
        page, clean = top, at.CLEAN
        put(books + 8 * at.TOP, top + pages)
    else:
        return 0
    set_tag(books, page, pages, at.TAKEN)
    put(books + 8 * at.TURN, turn + 1)
    put(books + 8 * at.ZERO, clean)
    note(books, at.USED, pages)
    note(books, at.COUNT, 1)
    return field(books, at.BASE) + page * at.PAGE + colour


@compiled
def give(books: int, address: int) -> None:
    """Take a block of the present arena back."""
    page = (address - field(books, at.BASE)) // at.PAGE
    pages = tag(books, page) >> at.TAG_BITS
    note(books, at.USED, -pages)
    note(books, at.COUNT, -1)
    after = page + pages
    if after < field(books, at.TOP):
        found = tag(books, after)
        if found & (at.TAKEN | at.CLEAN) == 0:
            unlink(books, after)
            pages += found >> at.TAG_BITS
    if page > 0:
        found = tag(books, page - 1)
        if found & (at.TAKEN | at.CLEAN) == 0:
            page -= found >> at.TAG_BITS
            pages += found >> at.TAG_BITS
            unlink(books, page)
    link(books, page, pages, 0)
    if field(books, at.STALE) > field(books, at.KEPT):
        tidy(books)


@compiled
def dissolve(keeper: int, books: int) -> None:
    """Release a former arena that has no arrays any more, and its books."""
    place = keeper + 8 * at.FORMER
    while word(place) != books:
        place = word(place) + 8 * at.NEXT
    put(place, field(books, at.NEXT))
    munmap(field(books, at.BASE), field(books, at.PAGES) * at.PAGE)
    munmap(books, field(books, at.BYTES))


@compiled
def drop(keeper: int, books: int, address: int) -> None:
    """Take a block of a former arena back, which is not used again. The last one releases the arena."""
    page = (address - field(books, at.BASE)) // at.PAGE
    pages = tag(books, page) >> at.TAG_BITS
    note(books, at.USED, -pages)
    note(books, at.COUNT, -1)
    if field(books, at.COUNT) > 0:
        madvise(field(books, at.BASE) + page * at.PAGE, pages * at.PAGE, _DROP)
    else:
        dissolve(keeper, books)


@compiled
def books_of(keeper: int, address: int) -> int:
    """The books of the arena with an address; 0: it lies in none."""
    if not field(keeper, at.LOWEST) <= address < field(keeper, at.HIGHEST):
        return 0
    books = field(keeper, at.PRESENT)
    if books != 0 and 0 <= address - field(books, at.BASE) < field(books, at.PAGES) * at.PAGE:
        return books
    books = field(keeper, at.FORMER)
    while books != 0:
        if 0 <= address - field(books, at.BASE) < field(books, at.PAGES) * at.PAGE:
            return books
        books = field(books, at.NEXT)
    return 0


@compiled
def make_huge(address: int, size: int) -> None:
    """Make huge pages of a block of zeros that takes no memory yet: a page of each must be there."""
    start = (address + at.HUGE_PAGE - 1) // at.HUGE_PAGE * at.HUGE_PAGE
    end = (address + size) // at.HUGE_PAGE * at.HUGE_PAGE
    for page in range(start, end, at.HUGE_PAGE):
        put(page, 0)
    if start < end:
        madvise(start, end - start, _COLLAPSE)


@compiled
def find_room(keeper: int, size: int, zeros: bool) -> int:
    """The address of a new block in the present arena; 0 if it belongs to NumPy's own functions."""
    if size < field(keeper, at.LEAST) or load_acquire(keeper + 8 * at.PRESENT) == 0:
        return 0
    lock(keeper)
    books, found, clean = field(keeper, at.PRESENT), 0, 0
    if books != 0:
        found = take(books, size)
        clean = field(books, at.ZERO)
        if found == 0:
            note(keeper, at.REFUSED, 1)
    unlock(keeper)
    if found != 0 and clean != 0 and size <= at.MOST_HUGE:
        make_huge(found, size)
    if found != 0 and zeros and clean == 0:
        clear_bytes(found, size)
    return found


@compiled
def release(keeper: int, address: int) -> bool:
    """Take a block back; False if it lies in no arena."""
    if not field(keeper, at.LOWEST) <= address < field(keeper, at.HIGHEST):
        return False
    lock(keeper)
    books = books_of(keeper, address)
    if books != 0:
        if books == field(keeper, at.PRESENT):
            give(books, address)
        else:
            drop(keeper, books, address)
    unlock(keeper)
    return books != 0


@compiled
def room_of(keeper: int, address: int) -> int:
    """The bytes that a block has room for; 0 if it lies in no arena."""
    if not field(keeper, at.LOWEST) <= address < field(keeper, at.HIGHEST):
        return 0
    lock(keeper)
    books, room = books_of(keeper, address), 0
    if books != 0:
        offset = address - field(books, at.BASE)
        room = (tag(books, offset // at.PAGE) >> at.TAG_BITS) * at.PAGE - offset % at.PAGE
    unlock(keeper)
    return room


@compiled
def malloc(keeper: int, size: int) -> int:
    """A block of `size` bytes."""
    found = find_room(keeper, size, False)
    return found if found != 0 else call_function(field(keeper, at.MALLOC), field(keeper, at.CONTEXT), size, 0)


@compiled
def calloc(keeper: int, count: int, each: int) -> int:
    """A block of zeros. NumPy has refused sizes that a word does not hold."""
    found = find_room(keeper, count * each, True)
    return found if found != 0 else call_function(field(keeper, at.CALLOC), field(keeper, at.CONTEXT), count, each)


@compiled
def free(keeper: int, address: int, size: int) -> int:
    """Take a block back."""
    if not release(keeper, address):
        call_function(field(keeper, at.FREE), field(keeper, at.CONTEXT), address, size)
    return 0


@compiled
def realloc(keeper: int, address: int, size: int) -> int:
    """The block with its content in `size` bytes, here or elsewhere. A block of NumPy's own functions stays theirs."""
    room = room_of(keeper, address)
    if room == 0:
        return call_function(field(keeper, at.REALLOC), field(keeper, at.CONTEXT), address, size)
    if room // 2 < size <= room:
        return address
    found = malloc(keeper, size)
    if found != 0:
        copy_bytes(found, address, min(size, room))
        release(keeper, address)
    return found


@compiled
def retire(keeper: int) -> int:
    """Have no more arrays born in the present arena, and count one array in it until `settle`. Free blocks are not used
    again: their memory is given back while the file still allows it. Returns the address of the books; 0: there is
    none."""
    lock(keeper)
    books = field(keeper, at.PRESENT)
    if books != 0:
        tidy(books)
        put(keeper + 8 * at.PRESENT, 0)
        put(books + 8 * at.NEXT, field(keeper, at.FORMER))
        put(keeper + 8 * at.FORMER, books)
        note(books, at.COUNT, 1)
    unlock(keeper)
    return books


@compiled
def settle(keeper: int, books: int, pages: int) -> int:
    """End what `retire` has begun: the arena has so many pages from now on. Without arrays it is released."""
    lock(keeper)
    put(books + 8 * at.PAGES, pages)
    note(books, at.COUNT, -1)
    if field(books, at.COUNT) == 0:
        dissolve(keeper, books)
    unlock(keeper)
    return 0


@compiled
def used_pages(keeper: int) -> int:
    """The number of pages of the arrays in all arenas."""
    lock(keeper)
    books = field(keeper, at.PRESENT)
    pages = field(books, at.USED) if books != 0 else 0
    books = field(keeper, at.FORMER)
    while books != 0:
        pages += field(books, at.USED)
        books = field(books, at.NEXT)
    unlock(keeper)
    return pages


FUNCTIONS: Final[dict[str, tuple[Any, int]]] = {
    "malloc": (malloc, 2),
    "calloc": (calloc, 3),
    "realloc": (realloc, 3),
    "free": (free, 3),
    "retire": (retire, 1),
    "settle": (settle, 3),
    "used_pages": (used_pages, 1),
}
"""Name -> the function and the number of its arguments."""


def entry(name: str) -> Any:
    """One of the FUNCTIONS as a C function."""
    function, count = FUNCTIONS[name]
    return numba.cfunc(WORD(*[WORD] * count), error_model="numpy")(function.py_func)
