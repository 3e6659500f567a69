"""Errors: the exception of MPI, its classes, codes and texts, and the translation of Ronde's errors."""

from __future__ import annotations

from typing import Any, Final

from collectives import AbortedError, ClosedError, DeadlineExceeded, MismatchError, PeerLost, RondeError

_TEXTS: Final = (
    ("SUCCESS", "no error"),
    ("ERR_BUFFER", "invalid buffer"),
    ("ERR_COUNT", "invalid count"),
    ("ERR_TYPE", "invalid datatype"),
    ("ERR_TAG", "invalid tag"),
    ("ERR_COMM", "invalid communicator"),
    ("ERR_RANK", "invalid rank"),
    ("ERR_REQUEST", "invalid request"),
    ("ERR_ROOT", "invalid root"),
    ("ERR_GROUP", "invalid group"),
    ("ERR_OP", "invalid op"),
    ("ERR_TOPOLOGY", "invalid topology"),
    ("ERR_DIMS", "invalid dimensions"),
    ("ERR_ARG", "invalid argument"),
    ("ERR_UNKNOWN", "unknown error"),
    ("ERR_TRUNCATE", "a message is longer than the memory of its receive"),
    ("ERR_OTHER", "error without a class of its own"),
    ("ERR_INTERN", "internal error"),
    ("ERR_IN_STATUS", "the error is in the status"),
    ("ERR_PENDING", "the request is pending"),
    ("ERR_ACCESS", "permission denied"),
    ("ERR_AMODE", "invalid access mode of a file"),
    ("ERR_ASSERT", "invalid assertion"),
    ("ERR_BAD_FILE", "invalid name of a file"),
    ("ERR_BASE", "invalid base address"),
    ("ERR_CONVERSION", "error in a conversion of data"),
    ("ERR_DISP", "invalid displacement"),
    ("ERR_DUP_DATAREP", "the data representation is known already"),
    ("ERR_FILE_EXISTS", "the file exists"),
    ("ERR_FILE_IN_USE", "the file is in use"),
    ("ERR_FILE", "invalid file"),
    ("ERR_INFO_KEY", "invalid key of an info"),
    ("ERR_INFO_NOKEY", "the info has no such key"),
    ("ERR_INFO_VALUE", "invalid value of an info"),
    ("ERR_INFO", "invalid info"),
    ("ERR_IO", "error of input or output"),
    ("ERR_KEYVAL", "invalid attribute key"),
    ("ERR_LOCKTYPE", "invalid type of lock"),
    ("ERR_NAME", "the name is not published"),
    ("ERR_NO_MEM", "out of memory"),
    ("ERR_NOT_SAME", "the arguments of a collective call differ between ranks"),
    ("ERR_NO_SPACE", "no space is left"),
    ("ERR_NO_SUCH_FILE", "no such file"),
    ("ERR_PORT", "invalid port"),
    ("ERR_PROC_ABORTED", "a rank has aborted"),
    ("ERR_QUOTA", "the quota is exceeded"),
    ("ERR_READ_ONLY", "the file is read-only"),
    ("ERR_RMA_ATTACH", "memory cannot be attached"),
    ("ERR_RMA_CONFLICT", "conflicting accesses to a window"),
    ("ERR_RMA_FLAVOR", "the window has the wrong flavor"),
    ("ERR_RMA_RANGE", "the memory is outside of the window"),
    ("ERR_RMA_SHARED", "memory cannot be shared"),
    ("ERR_RMA_SYNC", "wrong synchronization of a window"),
    ("ERR_SERVICE", "invalid service"),
    ("ERR_SESSION", "invalid session"),
    ("ERR_SIZE", "invalid size"),
    ("ERR_SPAWN", "processes cannot be spawned"),
    ("ERR_UNSUPPORTED_DATAREP", "the data representation is not supported"),
    ("ERR_UNSUPPORTED_OPERATION", "the operation is not supported"),
    ("ERR_VALUE_TOO_LARGE", "the value is too large"),
    ("ERR_WIN", "invalid window"),
    ("ERR_ERRHANDLER", "invalid error handler"),
    ("ERR_ABI", "invalid binary interface"),
    ("ERR_REVOKED", "the communicator is revoked"),
    ("ERR_PROC_FAILED", "a rank has failed"),
    ("ERR_PROC_FAILED_PENDING", "a rank that could have sent the message has failed"),
)

CODES: Final = {name: number for number, (name, _) in enumerate(_TEXTS)}
"""The error classes by their names."""
ERR_LASTCODE: Final = 1000
"""The highest code of the standard's error classes; those of the program follow."""


class _Registry:
    """The classes and codes of a program, which follow those of the standard."""

    def __init__(self) -> None:
        self.texts = dict(enumerate(text for _, text in _TEXTS))
        self.texts[ERR_LASTCODE] = "the last code of the standard"
        self.classes = {number: number for number in self.texts}
        self.last = ERR_LASTCODE

    def add(self, error_class: int | None) -> int:
        """A new code of a class; None makes a new class."""
        self.last += 1
        self.texts[self.last] = ""
        self.classes[self.last] = self.last if error_class is None else error_class
        return self.last

    def remove(self, code: int, *, is_class: bool) -> None:
        """Remove a code or class of the program that has no text and no codes. Raises Exception."""
        known = code > ERR_LASTCODE and code in self.classes and (self.classes[code] == code) == is_class
        codes = [other for other, its_class in self.classes.items() if its_class == code and other != code]
        if not known or self.texts[code] or codes:
            raise error("ERR_OTHER", f"error code {code} is not the program's own, or is in use")
        del self.classes[code], self.texts[code]
        self.last = max(self.classes)


_registry: Final = _Registry()


class Exception(RuntimeError):
    """An error of MPI. It compares as its code.

    ierr  the error code
    """

    __module__ = "frontends.mpi.MPI"

    def __init__(self, ierr: int = 0, /, *, text: str = "") -> None:
        self.ob_mpi = int(ierr) if ierr >= 0 else CODES["ERR_UNKNOWN"]
        self._text = text
        super().__init__(self.ob_mpi, text) if text else super().__init__(self.ob_mpi)

    def __eq__(self, other: object) -> bool:
        return self.ob_mpi == _code(other)

    def __ne__(self, other: object) -> bool:
        return self.ob_mpi != _code(other)

    def __lt__(self, other: object) -> bool:
        return self.ob_mpi < _number(other)

    def __le__(self, other: object) -> bool:
        return self.ob_mpi <= _number(other)

    def __gt__(self, other: object) -> bool:
        return self.ob_mpi > _number(other)

    def __ge__(self, other: object) -> bool:
        return self.ob_mpi >= _number(other)

    def __hash__(self) -> int:
        return hash(self.ob_mpi)

    def __bool__(self) -> bool:
        return self.ob_mpi != 0

    def __int__(self) -> int:
        return self.ob_mpi

    def __repr__(self) -> str:
        return f"MPI.Exception({self.ob_mpi})"

    def __str__(self) -> str:
        return self._text or Get_error_string(self.ob_mpi)

    def __reduce__(self) -> Any:
        return _restored, (self.ob_mpi, self._text)

    def Get_error_code(self) -> int:
        return self.ob_mpi

    def Get_error_class(self) -> int:
        return Get_error_class(self.ob_mpi)

    def Get_error_string(self) -> str:
        return Get_error_string(self.ob_mpi)

    @property
    def error_code(self) -> int:
        return self.Get_error_code()

    @property
    def error_class(self) -> int:
        return self.Get_error_class()

    @property
    def error_string(self) -> str:
        return self.Get_error_string()


def _restored(code: int, text: str) -> Exception:
    return Exception(code, text=text)


def _code(value: object) -> object:
    return value.ob_mpi if isinstance(value, Exception) else value


def _number(value: object) -> int:
    if isinstance(value, Exception):
        return value.ob_mpi
    if isinstance(value, int):
        return value
    raise TypeError(f"{value!r}: an error code compares with ints and errors of MPI")


class Failure(Exception, RondeError):
    """A failure of Ronde as an error of MPI: the ranks are lost, late, or do not make the same calls.

    rank, peer  see RondeError; `__cause__` is Ronde's own error
    """

    __module__ = "frontends.mpi.MPI"

    def __init__(self, code: int, cause: RondeError) -> None:
        Exception.__init__(self, code, text=str(cause))
        self.rank = cause.rank
        self.peer = cause.peer

    @property
    def message(self) -> str:
        """The text."""
        return str(self)

    def __reduce__(self) -> Any:
        return _restored, (self.ob_mpi, str(self))


def failure(cause: RondeError) -> Failure:
    """The error of MPI for an error of Ronde, which becomes its cause."""
    if isinstance(cause, Failure):
        return cause
    name = "ERR_OTHER"
    if isinstance(cause, (PeerLost, AbortedError, DeadlineExceeded)):
        name = "ERR_PROC_FAILED"
    elif isinstance(cause, MismatchError):
        name = "ERR_NOT_SAME"
    elif isinstance(cause, ClosedError):
        name = "ERR_COMM"
    made = Failure(CODES[name], cause)
    made.__cause__ = cause
    return made


def error(name: str, text: str) -> Exception:
    """The exception of an error class, by its name."""
    return Exception(CODES[name], text=f"{_TEXTS[CODES[name]][1]}: {text}")


def missing(call: str, instead: str = "") -> NotImplementedError:
    """The error of a call that ronde.mpi does not have."""
    return NotImplementedError(f"ronde.mpi has no {call}{': ' if instead else ''}{instead}")


def Get_error_class(errorcode: int) -> int:
    """The class of an error code."""
    return _registry.classes.get(errorcode, CODES["ERR_UNKNOWN"])


def Get_error_string(errorcode: int) -> str:
    """The text of an error code."""
    return _registry.texts.get(errorcode, "unknown error code")


def Add_error_class() -> int:
    """A new error class."""
    return _registry.add(None)


def Remove_error_class(errorclass: int) -> None:
    """Remove an error class of the program."""
    _registry.remove(errorclass, is_class=True)


def Add_error_code(errorclass: int) -> int:
    """A new error code of a class."""
    if errorclass not in _registry.classes:
        raise error("ERR_ARG", f"errorclass={errorclass}: must be an error class")
    return _registry.add(errorclass)


def Remove_error_code(errorcode: int) -> None:
    """Remove an error code of the program."""
    _registry.remove(errorcode, is_class=False)


def Add_error_string(errorcode: int, string: str) -> None:
    """Give a class or code of the program its text."""
    if errorcode not in _registry.texts or errorcode <= ERR_LASTCODE:
        raise error("ERR_ARG", f"errorcode={errorcode}: must be a class or code that the program has added")
    _registry.texts[errorcode] = str(string)


def Remove_error_string(errorcode: int) -> None:
    """Remove the text of a class or code of the program."""
    Add_error_string(errorcode, "")


def last_used_code() -> int:
    """The highest error code."""
    return _registry.last
