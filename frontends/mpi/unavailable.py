"""Objects of MPI that ronde.mpi does not have: their handles exist, and are null."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from frontends.mpi.errhandlers import Handling
from frontends.mpi.errors import missing
from frontends.mpi.handles import SURFACE


class Session(Handling):
    """A session. There are none: ranks begin with `Init`."""

    __module__ = SURFACE
    null = "SESSION_NULL"
    handling_error = "ERR_SESSION"

    @classmethod
    def Init(cls, *arguments: Any, **options: Any) -> NoReturn:
        raise missing("Session.Init", "use MPI.COMM_WORLD")


Session.family = Session
SESSION_NULL: Final = Session()
