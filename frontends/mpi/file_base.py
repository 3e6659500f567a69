"""Files: opening, views, pointers and transfers. Ranks of several hosts need a file system that they share."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from frontends.mpi.blocks import Block
from frontends.mpi.comm import Intracomm, peers_of
from frontends.mpi.constants import (
    DISPLACEMENT_CURRENT,
    MODE_APPEND,
    MODE_CREATE,
    MODE_DELETE_ON_CLOSE,
    MODE_EXCL,
    MODE_RDONLY,
    MODE_RDWR,
    MODE_SEQUENTIAL,
    MODE_WRONLY,
    PATIENCE,
    SEEK_CUR,
    SEEK_END,
    SEEK_SET,
)
from frontends.mpi.datatypes import BYTE, Datatype
from frontends.mpi.errhandlers import ERRORS_RETURN, Handling
from frontends.mpi.errors import error, missing
from frontends.mpi.file_views import View
from frontends.mpi.groups import Group
from frontends.mpi.handles import Body
from frontends.mpi.info import INFO_NULL, Info, Informed
from frontends.mpi.ints import as_int
from frontends.mpi.memory import Bytes
from frontends.mpi.objects import together
from frontends.mpi.operations import Ended
from frontends.mpi.peers import Peers
from frontends.mpi.requests import Request
from frontends.mpi.segments import Segment
from frontends.mpi.status import Status

_ERRORS: Final = {
    errno.ENOENT: "ERR_NO_SUCH_FILE",
    errno.EEXIST: "ERR_FILE_EXISTS",
    errno.EACCES: "ERR_ACCESS",
    errno.EPERM: "ERR_ACCESS",
    errno.EROFS: "ERR_READ_ONLY",
    errno.ENOSPC: "ERR_NO_SPACE",
    errno.EDQUOT: "ERR_QUOTA",
    errno.EISDIR: "ERR_BAD_FILE",
    errno.ENAMETOOLONG: "ERR_BAD_FILE",
}


class FileBody(Body):
    """An open file.

    position   the rank's own pointer, in elements of the view
    pointer    the pointer that all ranks share; None if they are on several hosts
    pending    the buffer of a collective call that was begun and not ended
    """

    def __init__(self, peers: Peers, descriptor: int, name: Any, amode: int, pointer: Segment | None) -> None:
        self.peers = peers
        self.descriptor = descriptor
        self.name = name
        self.amode = amode
        self.pointer = pointer
        self.position = 0
        self.types = BYTE, BYTE
        self.view = View(0, BYTE.layout, BYTE.layout)
        self.info: dict[str, str] = {}
        self.errhandler: Any = FILE_HANDLING.errhandler
        self.atomic = False
        self.pending: tuple[int, int, int, bool] | None = None

    def check_random(self) -> None:
        """Raise Exception unless the file is open for access in any order."""
        if self.amode & MODE_SEQUENTIAL:
            raise error("ERR_UNSUPPORTED_OPERATION", f"amode={self.amode}: has MODE_SEQUENTIAL")

    def check_resizable(self) -> None:
        """Raise Exception unless the size of the file may be set."""
        self.check_random()
        if self.amode & MODE_RDONLY:
            raise error("ERR_READ_ONLY", f"amode={self.amode}: does not allow it")


class _Defaults(Body):
    """The error handler of files that are opened, which FILE_NULL shows."""

    errhandler: Any = ERRORS_RETURN._body


FILE_HANDLING: Final = _Defaults()


def _system(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the system. Raises MPI's Exception."""
    try:
        return call(*arguments)
    except OSError as cause:
        raise error(_ERRORS.get(cause.errno or 0, "ERR_IO"), str(cause)) from cause


class FileBase(Informed, Handling):
    """The kind of a file, and the modes in which it is opened."""

    null = "FILE_NULL"
    handling_error = "ERR_FILE"

    def _known(self) -> FileBody:
        body: FileBody | None = self._body
        if body is None:
            raise error("ERR_FILE", "it is FILE_NULL")
        return body

    def _holder(self) -> Any:
        return FILE_HANDLING if self._body is None else self._body

    @classmethod
    def Open(cls, comm: Intracomm, filename: Any, amode: int = MODE_RDONLY, info: Info = INFO_NULL) -> Any:
        flags = _flags(amode)
        peers = peers_of(comm).twin()
        first = peers.rank == 0
        opened: list[int] = []

        def open_it(flags: int) -> None:
            opened.append(_system(os.open, filename, flags, 0o666))

        try:
            together(peers, lambda: open_it(flags) if first else None)
            together(peers, lambda: None if first else open_it(flags & ~(os.O_EXCL | os.O_CREAT)))
            hosts = {peers.process.world.members[rank].host for rank in peers.ranks}
            pointer = Segment.make(8, peers) if len(hosts) == 1 else None
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            peers.close()
            raise
        [descriptor] = opened
        body = FileBody(peers, descriptor, filename, amode, pointer)
        body.info = dict(info.items())
        made = cls.of(body)
        if amode & MODE_APPEND:
            body.position = body.view.end_offset(os.fstat(descriptor).st_size)
            if pointer is not None and first:
                pointer.memory.view(np.int64)[0] = body.position
        _barrier(body)
        return made

    def Close(self) -> None:
        self._release()

    def _release(self) -> None:
        """Close it, also if ranks are lost, which raises afterwards."""
        body = self._known()
        self._body = None
        with contextlib.closing(body.peers):
            try:
                _barrier(body)
            finally:
                if body.descriptor >= 0:
                    os.close(body.descriptor)
                    body.descriptor = -1
                if body.pointer is not None:
                    body.pointer.close()
            if body.amode & MODE_DELETE_ON_CLOSE:
                together(body.peers, lambda: _system(os.unlink, body.name) if body.peers.rank == 0 else None)
            else:
                _barrier(body)

    @classmethod
    def Delete(cls, filename: Any, info: Info = INFO_NULL) -> None:
        _system(os.unlink, filename)

    def Set_size(self, size: int) -> None:
        body, size = self._known(), as_int(size, "size")
        body.check_resizable()
        _barrier(body)
        together(body.peers, lambda: _system(os.ftruncate, body.descriptor, size) if body.peers.rank == 0 else None)

    def Preallocate(self, size: int) -> None:
        body, size = self._known(), as_int(size, "size")
        body.check_resizable()
        _barrier(body)

        def grow() -> None:
            if self.Get_size() < size:
                _system(os.ftruncate, body.descriptor, size)

        together(body.peers, lambda: grow() if body.peers.rank == 0 else None)

    def Get_size(self) -> int:
        return int(_system(os.fstat, self._known().descriptor).st_size)

    @property
    def size(self) -> int:
        return self.Get_size()

    def Get_amode(self) -> int:
        return self._known().amode

    @property
    def amode(self) -> int:
        return self.Get_amode()

    def Get_group(self) -> Group:
        return Intracomm.of(self._known().peers).Get_group()

    @property
    def group(self) -> Group:
        return self.Get_group()

    @property
    def group_size(self) -> int:
        return self._known().peers.size

    @property
    def group_rank(self) -> int:
        return self._known().peers.rank

    def _hints(self) -> dict[str, str]:
        return self._known().info

    def Set_atomicity(self, flag: bool) -> None:
        self._known().atomic = bool(flag)

    def Get_atomicity(self) -> bool:
        return self._known().atomic

    @property
    def atomicity(self) -> bool:
        return self.Get_atomicity()

    @atomicity.setter
    def atomicity(self, flag: bool) -> None:
        self.Set_atomicity(flag)

    def Sync(self) -> None:
        body = self._known()
        together(body.peers, lambda: None if body.amode & MODE_RDONLY else _system(os.fsync, body.descriptor))

    # ---- views

    def Set_view(
        self,
        disp: int = 0,
        etype: Datatype = BYTE,
        filetype: Datatype | None = None,
        datarep: str = "native",
        info: Info = INFO_NULL,
    ) -> None:
        body = self._known()
        kind = etype if filetype is None else filetype
        sequential = bool(body.amode & MODE_SEQUENTIAL)

        def check() -> None:
            if datarep not in ("native", "internal"):
                raise missing(f"File.Set_view with datarep={datarep!r}", "files have the native representation")
            if sequential != (disp == DISPLACEMENT_CURRENT):
                raise error("ERR_ARG", f"disp={disp}: DISPLACEMENT_CURRENT and MODE_SEQUENTIAL go together")
            if (disp < 0 and not sequential) or not etype.layout.size or kind.layout.size % etype.layout.size:
                raise error("ERR_ARG", f"disp={disp}: must be 0 or more, and filetype made of etype")

        together(body.peers, check)  # the shared pointer is still that of the view before, for ranks that come later
        if sequential:
            disp = body.view.byte_offset(self._position_shared())
            _barrier(body)
        body.view = View(int(disp), etype.layout, kind.layout)
        body.types = etype, kind
        body.position = 0
        if body.pointer is not None and body.peers.rank == 0:
            body.pointer.memory.view(np.int64)[0] = 0
        _barrier(body)

    def Get_view(self) -> tuple[int, Datatype, Datatype, str]:
        body = self._known()
        etype, filetype = body.types
        return body.view.disp, _own(etype), _own(filetype), "native"

    def Get_byte_offset(self, offset: int) -> int:
        return self._known().view.byte_offset(as_int(offset, "offset"))

    def Get_type_extent(self, datatype: Datatype) -> int:
        return datatype.extent

    # ---- pointers

    def Seek(self, offset: int, whence: int = SEEK_SET) -> None:
        body = self._known()
        body.check_random()
        body.position = self._sought(body.position, offset, whence)

    def Get_position(self) -> int:
        body = self._known()
        body.check_random()
        return body.position

    def _sought(self, position: int, offset: int, whence: int) -> int:
        offset, starts = as_int(offset, "offset"), {SEEK_SET: 0, SEEK_CUR: position}
        if whence == SEEK_END:
            starts[SEEK_END] = self._known().view.end_offset(self.Get_size())
        if whence not in starts or starts[whence] + offset < 0:
            raise error("ERR_ARG", f"offset={offset}, whence={whence}: must lead to 0 or more")
        return starts[whence] + offset

    def _shared(self) -> Segment:
        pointer = self._known().pointer
        if pointer is None:
            raise missing("shared file pointers of ranks on several hosts", "use Write_at with offsets of your own")
        return pointer

    def _advance(self, elements: int) -> int:
        """Move the shared pointer; the place where it was."""
        pointer = self._shared()
        with pointer.locked(0, self._known().peers.process.look):
            words = pointer.memory.view(np.int64)
            before = int(words[0])
            words[0] = before + elements
        return before

    def Seek_shared(self, offset: int, whence: int = SEEK_SET) -> None:
        body = self._known()
        body.check_random()
        _barrier(body)

        def seek() -> None:
            words = self._shared().memory.view(np.int64)
            words[0] = self._sought(int(words[0]), offset, whence)

        together(body.peers, lambda: seek() if body.peers.rank == 0 else None)

    def Get_position_shared(self) -> int:
        self._known().check_random()
        return self._position_shared()

    def _position_shared(self) -> int:
        return int(self._shared().memory.view(np.int64)[0])


def _flags(amode: int) -> int:
    """The system's flags of an access mode. Raises Exception."""
    kinds = {MODE_RDONLY: os.O_RDONLY, MODE_WRONLY: os.O_WRONLY, MODE_RDWR: os.O_RDWR}
    chosen = [flag for mode, flag in kinds.items() if amode & mode]
    if len(chosen) != 1 or (amode & MODE_RDONLY and amode & (MODE_CREATE | MODE_EXCL)):
        raise error("ERR_AMODE", f"amode={amode}: must have one of MODE_RDONLY, MODE_WRONLY and MODE_RDWR")
    if amode & MODE_RDWR and amode & MODE_SEQUENTIAL:
        raise error("ERR_AMODE", f"amode={amode}: MODE_SEQUENTIAL goes with MODE_RDONLY or MODE_WRONLY")
    created = (os.O_CREAT if amode & MODE_CREATE else 0) | (os.O_EXCL if amode & MODE_EXCL else 0)
    return chosen[0] | created | os.O_CLOEXEC


def _barrier(body: FileBody) -> None:
    body.peers.call("barrier", timeout=PATIENCE)


def _own(kind: Datatype) -> Datatype:
    """A handle that the caller may free."""
    return Datatype(kind) if kind.is_predefined else Datatype.of(kind._known().twin())


def _transfer(body: FileBody, block: Block, offset: int, *, write: bool) -> int:
    """Read or write the elements of a block at an offset of the view; the bytes that were transferred."""
    if body.amode & (MODE_RDONLY if write else MODE_WRONLY):
        raise error("ERR_READ_ONLY" if write else "ERR_ACCESS", f"amode={body.amode}: does not allow it")
    if offset < 0:
        raise error("ERR_ARG", f"offset={offset}: must be 0 or more")
    start = offset * body.view.etype.size
    pieces = body.view.pieces(start, block.nbytes)
    if write:
        data, done = block.read(), 0
        for place, length in pieces:
            view = data[done : done + length].data
            while len(view):
                written = _system(os.pwrite, body.descriptor, view, place)
                view, place, done = view[written:], place + written, done + written
        return done
    data, scatter = block.target()
    done = 0
    for place, length in pieces:
        found = _read(body, data[done : done + length], place)
        done += found
        if found < length:
            break
    if scatter is not None:
        scatter(data[:done])
    return done


def _read(body: FileBody, target: Bytes, place: int) -> int:
    done = 0
    while done < len(target):
        found = _system(os.preadv, body.descriptor, [target[done:].data], place + done)
        if not found:
            break
        done += found
    return done


def at(body: FileBody, block: Block, offset: int | None, *, write: bool) -> tuple[int, int, int, bool]:
    """Transfer a block at an offset, or at the rank's pointer, which moves; the envelope for a status."""
    done = _transfer(body, block, body.position if offset is None else offset, write=write)
    if offset is None:
        body.position += done // body.view.etype.size
    return -1, -1, done, False


def ended(envelope: tuple[int, int, int, bool], status: Status | None) -> None:
    """Fill a status."""
    if status is not None:
        status.fill(*envelope)


def begun(envelope: tuple[int, int, int, bool]) -> Request:
    """The request of a transfer, which has ended."""
    return Request.begun(Ended(envelope))
