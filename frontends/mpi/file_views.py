"""Views of files: the bytes of a file that a rank sees as a stream. Nothing here does I/O."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.mpi.layout import Layout


class View:
    """A stream of elements in a file.

    disp      byte at which the view begins
    etype     layout of the elements that offsets count
    filetype  layout that tiles the file; only its data belong to the view
    """

    def __init__(self, disp: int, etype: Layout, filetype: Layout) -> None:
        self.disp = disp
        self.etype = etype
        self.filetype = filetype

    def byte_offset(self, offset: int) -> int:
        """The place in the file of an element."""
        start = offset * self.etype.size
        if self.filetype.whole:
            return self.disp + start
        if not self.filetype.size:
            return self.disp
        tile, within = divmod(start, self.filetype.size)
        offsets, lengths = self.filetype.blocks
        ends = np.cumsum(lengths)
        block = int(np.searchsorted(ends, within, side="right"))
        place = int(offsets[block]) + within - int(ends[block] - lengths[block])
        return self.disp + tile * self.filetype.extent + place

    def pieces(self, start: int, nbytes: int) -> list[tuple[int, int]]:
        """The pieces of the file, as (place, length), that hold so many bytes of the stream, from byte `start` on."""
        if not nbytes:
            return []
        if self.filetype.whole:
            return [(self.disp + start, nbytes)]
        size = self.filetype.size
        if not size:
            return []
        offsets, lengths = self.filetype.blocks
        first, last = start // size, (start + nbytes - 1) // size
        tiles = np.arange(first, last + 1, dtype=np.int64)
        places = (tiles[:, None] * self.filetype.extent + offsets + self.disp).reshape(-1)
        sizes: Any = np.tile(lengths, len(tiles))
        begins = first * size + np.concatenate(([0], np.cumsum(sizes)[:-1]))
        cut_left = np.clip(start - begins, 0, sizes)
        cut_right = np.clip(begins + sizes - (start + nbytes), 0, sizes)
        places, sizes = places + cut_left, sizes - cut_left - cut_right
        chosen = sizes > 0
        return list(zip(places[chosen].tolist(), sizes[chosen].tolist(), strict=True))

    def end_offset(self, nbytes: int) -> int:
        """The number of whole elements of the view in a file of so many bytes."""
        if nbytes <= self.disp or not self.etype.size:
            return 0
        if self.filetype.whole:
            return (nbytes - self.disp) // self.etype.size
        if not self.filetype.extent:
            return 0
        tiles, rest = divmod(nbytes - self.disp, self.filetype.extent)
        offsets, lengths = self.filetype.blocks
        inside = int(np.clip(rest - offsets, 0, lengths).sum())
        return (tiles * self.filetype.size + inside) // self.etype.size
