"""Files: the calls of MPI.File that read and write, on the files of the system."""

from __future__ import annotations

from typing import Any, Final

from frontends.mpi.comm import Intracomm
from frontends.mpi.errors import error
from frontends.mpi.file_base import FileBase, FileBody, at, begun, ended
from frontends.mpi.handles import SURFACE
from frontends.mpi.ints import as_int
from frontends.mpi.requests import Request
from frontends.mpi.specs import message
from frontends.mpi.status import Status

Envelope = tuple[int, int, int, bool]


def _call(way: str, *, write: bool) -> Any:
    """A method that reads or writes and waits; `way` is how the place in the file is found."""

    def explicit(self: File, offset: int, buf: Any, status: Status | None = None) -> None:
        ended(self._transfer(way, buf, offset, write=write), status)

    def implicit(self: File, buf: Any, status: Status | None = None) -> None:
        ended(self._transfer(way, buf, None, write=write), status)

    return explicit if way == "at" else implicit


def _immediate(way: str, *, write: bool) -> Any:
    """A method that gives a request."""

    def explicit(self: File, offset: int, buf: Any) -> Request:
        return begun(self._transfer(way, buf, offset, write=write))

    def implicit(self: File, buf: Any) -> Request:
        return begun(self._transfer(way, buf, None, write=write))

    return explicit if way == "at" else implicit


def _split(way: str, *, write: bool) -> tuple[Any, Any]:
    """The methods that begin and end a collective transfer."""

    def explicit(self: File, offset: int, buf: Any) -> None:
        self._begin(self._transfer(way, buf, offset, write=write))

    def implicit(self: File, buf: Any) -> None:
        self._begin(self._transfer(way, buf, None, write=write))

    def end(self: File, buf: Any, status: Status | None = None) -> None:
        body = self._known()
        if body.pending is None:
            raise error("ERR_REQUEST", "no collective transfer was begun")
        envelope, body.pending = body.pending, None
        ended(envelope, status)

    return (explicit if way == "at" else implicit), end


class File(FileBase):
    """An open file of several ranks."""

    __module__ = SURFACE

    def _transfer(self, way: str, buf: Any, offset: int | None, *, write: bool) -> Envelope:
        """Transfer a buffer: `at` an offset, at the rank's `own` pointer, at the `shared` one, or `ordered` by rank."""
        body = self._known()
        block = message(buf, writable=not write)
        elements, rest = divmod(block.nbytes, body.view.etype.size)
        if rest:
            raise error(
                "ERR_IO", f"{block.nbytes} bytes: must be elements of {body.view.etype.size} bytes, as in the view"
            )
        if way in ("at", "own"):
            body.check_random()
            offset = None if offset is None else as_int(offset, "offset")
        else:
            offset = self._advance(elements) if way == "shared" else self._in_order(body, elements)
        return at(body, block, offset, write=write)

    def _in_order(self, body: FileBody, elements: int) -> int:
        """The place of this rank's elements behind those of lower ranks. Collective."""
        sizes = Intracomm.of(body.peers).allgather(elements)
        comm = Intracomm.of(body.peers)
        start = comm.bcast(self._advance(sum(sizes)) if body.peers.rank == 0 else None)
        return int(start + sum(sizes[: body.peers.rank]))

    def _begin(self, envelope: Envelope) -> None:
        body = self._known()
        if body.pending is not None:
            raise error("ERR_OTHER", "a collective transfer was begun before, and has not ended")
        body.pending = envelope

    Read_at = _call("at", write=False)
    Iread_at = _immediate("at", write=False)
    Read_at_all = _call("at", write=False)
    Iread_at_all = _immediate("at", write=False)
    Read = _call("own", write=False)
    Iread = _immediate("own", write=False)
    Read_all = _call("own", write=False)
    Iread_all = _immediate("own", write=False)
    Read_shared = _call("shared", write=False)
    Iread_shared = _immediate("shared", write=False)
    Read_ordered = _call("ordered", write=False)
    Read_at_all_begin, Read_at_all_end = _split("at", write=False)
    Read_all_begin, Read_all_end = _split("own", write=False)
    Read_ordered_begin, Read_ordered_end = _split("ordered", write=False)
    Write_at = _call("at", write=True)
    Iwrite_at = _immediate("at", write=True)
    Write_at_all = _call("at", write=True)
    Iwrite_at_all = _immediate("at", write=True)
    Write = _call("own", write=True)
    Iwrite = _immediate("own", write=True)
    Write_all = _call("own", write=True)
    Iwrite_all = _immediate("own", write=True)
    Write_shared = _call("shared", write=True)
    Iwrite_shared = _immediate("shared", write=True)
    Write_ordered = _call("ordered", write=True)
    Write_at_all_begin, Write_at_all_end = _split("at", write=True)
    Write_all_begin, Write_all_end = _split("own", write=True)
    Write_ordered_begin, Write_ordered_end = _split("ordered", write=True)


File.family = File
FILE_NULL: Final = File()
