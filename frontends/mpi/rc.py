"""The settings of ronde.mpi, to be changed before MPI is imported."""

from __future__ import annotations

from typing import Any, Final


class Rc:
    """Settings, with mpi4py's names.

    initialize    True: importing MPI initializes it
    threads       kept for programs that set it: threads may always call
    thread_level  the same
    finalize      None or True: MPI is finalized when the process ends; False leaves it to the program
    fast_reduce   kept for programs that set it
    recv_mprobe   the same
    irecv_bufsz   the same: receives of objects need no buffer
    errors        "exception" raises errors; the other values of mpi4py are accepted and do the same
    """

    initialize = True
    threads = True
    thread_level = "multiple"
    finalize: bool | None = None
    fast_reduce = True
    recv_mprobe = True
    irecv_bufsz = 32768
    errors = "exception"

    def __init__(self, **settings: Any) -> None:
        self(**settings)

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name):
            raise TypeError(f"{name}: is no setting")
        super().__setattr__(name, value)

    def __call__(self, **settings: Any) -> None:
        for name in settings:
            if not hasattr(type(self), name):
                raise TypeError(f"{name}: is no setting")
        for name, value in settings.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return "<ronde.mpi.rc>"


rc: Final = Rc()
