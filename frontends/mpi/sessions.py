"""Sessions: sets of ranks by name, of which a program makes groups and communicators."""

from __future__ import annotations

from typing import Any, Final

from frontends.mpi.comm import COMM_SELF, COMM_WORLD, Intracomm
from frontends.mpi.comm_base import checked_buffer
from frontends.mpi.environment import Init
from frontends.mpi.errhandlers import Errhandler, ErrhandlerBody, Handling
from frontends.mpi.errors import error
from frontends.mpi.groups import Group
from frontends.mpi.handles import SURFACE, Body
from frontends.mpi.info import INFO_NULL, Info
from frontends.mpi.ints import as_int
from frontends.mpi.operations import Ended
from frontends.mpi.processes import current
from frontends.mpi.requests import Request

_SETS: Final[dict[str, Intracomm]] = {"mpi://WORLD": COMM_WORLD, "mpi://SELF": COMM_SELF}


class SessionBody(Body):
    """The settings of a session."""

    def __init__(self, items: dict[str, str]) -> None:
        self.items = items
        self.buffer: Any = None
        self.errhandler: ErrhandlerBody | None = None


class Session(Handling):
    """A session. It has the sets of all ranks and of this rank alone."""

    __module__ = SURFACE
    null = "SESSION_NULL"
    handling_error = "ERR_SESSION"

    def _known(self) -> SessionBody:
        body: SessionBody = self._holder()
        return body

    @classmethod
    def Init(cls, info: Info = INFO_NULL, errhandler: Errhandler | None = None) -> Session:
        """Begin a session. The first one meets the other ranks, if the program has not called `Init`."""
        Init()
        made = cls.of(SessionBody(dict(info.items()) if info else {}))
        if errhandler is not None:
            made.Set_errhandler(errhandler)
        return made

    def Finalize(self) -> None:
        """End the session. Communicators that were made of its groups stay."""
        self.Flush_buffer()
        self._body = None

    def Get_info(self) -> Info:
        return Info.Create(self._known().items)

    def Get_num_psets(self, info: Info = INFO_NULL) -> int:
        self._known()
        return len(_SETS)

    def Get_nth_pset(self, n: int, info: Info = INFO_NULL) -> str:
        self._known()
        if not 0 <= as_int(n, "n") < len(_SETS):
            raise error("ERR_ARG", f"n={n}: must be 0 to {len(_SETS) - 1}")
        return list(_SETS)[n]

    def _set(self, pset_name: str) -> Intracomm:
        self._known()
        if pset_name not in _SETS:
            raise error("ERR_ARG", f"pset_name={pset_name!r}: must be one of {', '.join(_SETS)}")
        return _SETS[pset_name]

    def Get_pset_info(self, pset_name: str) -> Info:
        return Info.Create({"mpi_size": str(self._set(pset_name).size)})

    def Create_group(self, pset_name: str) -> Group:
        return self._set(pset_name).Get_group()

    def Attach_buffer(self, buf: Any) -> None:
        self._known().buffer = checked_buffer(buf)

    def Detach_buffer(self) -> Any:
        self.Flush_buffer()
        body = self._known()
        found, body.buffer = body.buffer, None
        return found

    def Flush_buffer(self) -> None:
        self._known()
        current().flush()

    def Iflush_buffer(self) -> Request:
        self.Flush_buffer()
        return Request.begun(Ended((-1, -1, 0, False)))


Session.family = Session
SESSION_NULL: Final = Session()
