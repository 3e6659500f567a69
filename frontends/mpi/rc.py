"""The settings of ronde.mpi, to be changed before MPI is imported."""

from __future__ import annotations

import os
from typing import Any, Final

from frontends.mpi.ints import whole

_WORDS: Final = {
    **dict.fromkeys(("true", "yes", "on", "y", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "0"), False),
    "none": None,
}


class Rc:
    """Settings, with mpi4py's names. Environment variables as MPI4PY_RC_INITIALIZE change them when MPI is imported.

    initialize    True: importing MPI initializes it
    threads       kept for programs that set it: threads may always call
    thread_level  the same
    finalize      True: MPI is finalized when the process ends; False leaves it to the program; None is as `initialize`
    fast_reduce   kept for programs that set it
    recv_mprobe   the same
    irecv_bufsz   the same: receives of objects need no buffer
    errors        "exception" raises errors; the other values of mpi4py are accepted and do the same
    """

    initialize: bool | str = True
    threads: bool = True
    thread_level: str = "multiple"
    finalize: bool | str | None = None
    fast_reduce: bool = True
    recv_mprobe: bool = True
    irecv_bufsz: int = 32768
    errors: str = "exception"

    def __init__(self, **settings: Any) -> None:
        self(**settings)

    def __setattr__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setattr__(name, value)

    def __call__(self, **settings: Any) -> None:
        for name in settings:
            _check_name(name)
        for name, value in settings.items():
            setattr(self, name, value)

    def read(self, name: str, text: str) -> None:
        """Change a setting to the value that a text means. Raises TypeError for a name that is none, ValueError."""
        word = text.strip().lower()
        is_number = type(getattr(type(self), name, None)) is int
        value = whole(word, f"rc.{name}", 0) if is_number else _WORDS.get(word, word)
        self(**{name: value})

    def read_environment(self) -> None:
        """Change the settings that have environment variables. Raises ValueError for one that has no meaning."""
        for name in [name for name in _NAMES if f"MPI4PY_RC_{name.upper()}" in os.environ]:
            self.read(name, os.environ[f"MPI4PY_RC_{name.upper()}"])

    @property
    def initializes(self) -> bool:
        """True if importing MPI initializes it. Raises ValueError."""
        return _flag("initialize", self.initialize)

    @property
    def finalizes(self) -> bool:
        """True if MPI is finalized when the process ends. Raises ValueError."""
        return self.initializes if self.finalize is None else _flag("finalize", self.finalize)

    def __repr__(self) -> str:
        return "<ronde.mpi.rc>"


_NAMES: Final = tuple(Rc.__annotations__)
"""The names of the settings."""


def _check_name(name: str) -> None:
    if name not in _NAMES:
        raise TypeError(f"{name}: is no setting; must be {', '.join(_NAMES)}")


def _flag(name: str, value: Any) -> bool:
    """A setting that a program may give as a word, too. Raises ValueError."""
    found = value if isinstance(value, bool) else _WORDS.get(str(value).lower())
    if found is None:
        raise ValueError(f"rc.{name}={value!r}: must be True or False")
    return found


rc: Final = Rc()
