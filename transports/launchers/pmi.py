"""PMI-1, by which hydra (MPICH, Intel MPI, MVAPICH) and Flux hand small values from rank to rank.

A text protocol on a connection that each process inherits (PMI_FD) or opens (PMI_PORT), see Flux RFC 13:

    cmd=put kvsname=K key=A value=V     cmd=put_result rc=0
    cmd=barrier_in                      cmd=barrier_out             once all processes have said it
    cmd=get kvsname=K key=A             cmd=get_result rc=0 value=V

`cmd=init` is not needed and not sent, except to Slurm's plugin pmi2, which speaks PMI-2 without it. A process that has
said anything must say `cmd=finalize` before it ends, or its launcher ends the job; after that nobody can use the
connection. So it is said when the interpreter exits, and a process may meet many times before. MPI in the same process
(mpi4py) says it itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import select
import socket
import stat
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from transports import names
from transports.errors import ConfigError, DeadlineExceeded, RendezvousError
from transports.launchers.keyvalue import KeyValue
from transports.launchers.variables import Env, integer, number_of
from transports.moments import seconds_until

FD: Final = "PMI_FD"
PORT: Final = "PMI_PORT"
ID: Final = "PMI_ID"
JOB: Final = "PMI_JOBID"
MAX_LINE: Final = 1 << 16
MAX_CHUNK: Final = 512
"""Most characters of one value, where the launcher allows more. Old ones allow 256."""
MAX_CHUNKS: Final = 64
CONNECT_SECONDS: Final = 10.0
FAREWELL_SECONDS: Final = 1.0


def is_slurms(env: Env) -> bool:
    """True if PMI_FD is that of Slurm's plugin pmi2. Hydra's processes inside a step of Slurm have one of hydra's."""
    return JOB in env and "SLURM_STEP_ID" in env and "MPI_LOCALRANKID" not in env


def of_port(env: Env) -> dict[str, str]:
    """The variables of the connection that is made to PMI_PORT, without the descriptor of an outer launcher."""
    return {name: env[name] for name in (PORT, ID) if name in env}


def lacking_of_slurm(env: Env) -> str | None:
    """The reason for which this task of Slurm's has no PMI_FD of the plugin pmi2; None if it has one. A descriptor or a
    port of an outer launcher, which a task inherits, is none: there it is another rank."""
    steps = [f"{env[name]}.{env.get('SLURM_STEP_ID')}" for name in ("SLURM_JOB_ID", "SLURM_HET_JOB_ID") if name in env]
    if FD not in env or env.get(JOB) not in steps:
        return f"{FD}, {JOB}: are not set for this step, so srun does not speak PMI-2 (--mpi=pmi2)"
    return lacking(env)


def lacking(env: Env) -> str | None:
    """The reason for which this process has no PMI-1 connection; None if it has one."""
    if FD in env:
        descriptor = integer(env, FD, 0, None, "")
        try:
            os.fstat(descriptor)
        except OSError:
            return (
                f"{FD}={descriptor} is not open: a program between the launcher and this one has closed it (with "
                f"MPICH, mpiexec -pmi-port does without)"
            )
        return None
    return None if PORT in env else f"{FD} or {PORT}: is not set, so the launcher does not speak PMI-1"


def connection_id(env: Env) -> str:
    """An identifier of the PMI-1 connection of this process, unlike any other."""
    if FD in env:
        with contextlib.suppress(OSError):
            found = os.fstat(integer(env, FD, 0, None, ""))
            return f"{found.st_dev}.{found.st_ino}"
    return f"{env.get(PORT, '')} {env.get(ID, '')}"


def rank_and_size(env: Env) -> tuple[int, int]:
    """Rank and size that the server at PMI_PORT has for this process. Raises ConfigError if it does not say."""
    try:
        connection = _connected(env[PORT], env.get(ID, ""), os.getpid())
    except (RendezvousError, DeadlineExceeded) as error:
        raise ConfigError(f"{PORT}={env[PORT]!r}: {error.message}") from error
    return connection.rank, connection.size


class Pmi(KeyValue):
    """The PMI-1 connection of this process. Closing this object leaves it open, for others and for later.

    introduce  choose PMI-1 where the launcher speaks PMI-2 else, as Slurm's plugin pmi2
    """

    def __init__(self, env: Env, deadline: float, *, introduce: bool = False) -> None:
        if FD in env:
            self._line = Line(_connection(env))
            if introduce:
                _introduce(self._line.descriptor, os.getpid())
            _finalize_at_exit(self._line.descriptor, os.getpid(), shared=True)
        else:
            self._line = _connected(env[PORT], env.get(ID, ""), os.getpid()).line
        maxes = self._line.ask("cmd=get_maxes", "maxes", deadline)
        self._chunk = min(MAX_CHUNK, _number(maxes, "vallen_max") - 1)
        self._space = _field(self._line.ask("cmd=get_my_kvsname", "my_kvsname", deadline), "kvsname")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing."""

    def put(self, key: str, value: bytes, deadline: float) -> None:
        text = value.hex()
        chunks = [text[start : start + self._chunk] for start in range(0, len(text), self._chunk)]
        if len(chunks) > MAX_CHUNKS:
            raise RendezvousError(f"{len(value)} bytes are too many for the launcher's PMI-1 values")
        for name, chunk in [(f"{key}-n", str(len(chunks))), *((f"{key}-{i}", chunk) for i, chunk in enumerate(chunks))]:
            self._line.ask(f"cmd=put kvsname={self._space} key={name} value={chunk}", "put_result", deadline)

    def fence(self, deadline: float) -> None:
        self._line.ask("cmd=barrier_in", "barrier_out", deadline)

    def get(self, key: str, deadline: float) -> bytes:
        count = self._get(f"{key}-n", deadline)
        if not count.isdecimal() or int(count) > MAX_CHUNKS:
            raise RendezvousError(f"PMI-1: key {key!r} does not hold the value that rank 0 has put")
        try:
            return bytes.fromhex("".join(self._get(f"{key}-{i}", deadline) for i in range(int(count))))
        except ValueError as error:
            raise RendezvousError(f"PMI-1: key {key!r} does not hold the value that rank 0 has put") from error

    def _get(self, name: str, deadline: float) -> str:
        return _field(self._line.ask(f"cmd=get kvsname={self._space} key={name}", "get_result", deadline), "value")


def _connection(env: Env) -> int:
    """The descriptor PMI_FD. Raises RendezvousError if something else than a connection has its number, to which
    nothing must be written."""
    descriptor = integer(env, FD, 0, None, "")
    try:
        found = os.fstat(descriptor).st_mode
    except OSError as error:
        raise RendezvousError(f"{FD}={descriptor}: cannot be used: {error.strerror}") from error
    if not stat.S_ISSOCK(found):
        raise RendezvousError(
            f"{FD}={descriptor}: is no connection to the launcher, but another file: a program between the launcher "
            f"and this one has closed it, and opened the other (with MPICH, mpiexec -pmi-port does without)"
        )
    return descriptor


class Line:
    """The text protocol on a connection's descriptor, of which nothing is changed: others may share it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def ask(self, request: str, answer: str, deadline: float) -> dict[str, str]:
        self._write(request.encode() + b"\n", deadline)
        return self.read(answer, deadline)

    def _write(self, data: bytes, deadline: float) -> None:
        while data:
            self._await(select.POLLOUT, deadline)
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError as error:
                raise RendezvousError(f"the launcher's PMI-1 connection failed: {error}") from error

    def read(self, answer: str, deadline: float) -> dict[str, str]:
        """The fields of the next line, which must be the answer. Nothing is read beyond it: others share the
        connection."""
        line = bytearray()
        while not line.endswith(b"\n"):
            self._await(select.POLLIN, deadline)
            try:
                piece = os.read(self.descriptor, 1)
            except OSError as error:
                raise RendezvousError(f"the launcher's PMI-1 connection failed: {error}") from error
            if not piece or len(line) > MAX_LINE:
                raise RendezvousError("the launcher's PMI-1 connection was closed by the launcher")
            line += piece
        text = line.decode("ascii", "replace").strip()
        fields = dict(re.findall(r"(\w+)=(\S*)", text))
        if fields.get("cmd") != answer:
            raise RendezvousError(f"the launcher's PMI-1 said {text[:100]!r}, where cmd={answer} should be")
        if fields.get("rc", "0") != "0":
            raise RendezvousError(f"the launcher's PMI-1 refused: {text[:100]!r}")
        return fields

    def _await(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.descriptor, event)
        if not poll.poll(1000 * seconds_until(deadline)):
            raise DeadlineExceeded("not all ranks came to the launcher's PMI-1 barrier in time, or it does not answer")


@dataclass(frozen=True)
class _Connection:
    """The connection that this process has made to PMI_PORT, with the rank and size that it was told."""

    socket: socket.socket
    line: Line
    rank: int
    size: int


@functools.cache
def _connected(place: str, ident: str, process: int) -> _Connection:
    """Connect to PMI_PORT, once in a process: its launcher takes the end of the connection for that of the rank."""
    deadline = time.monotonic() + CONNECT_SECONDS
    host, _, port = place.rpartition(":")
    try:
        connection = names.connect((host, int(port)), deadline)
    except (OSError, ValueError, OverflowError, UnicodeError) as error:
        raise RendezvousError(f"no connection to the launcher's PMI-1 server: {error}") from error
    try:
        connection.settimeout(None)
        line = Line(connection.fileno())
        line.ask(f"cmd=initack pmiid={ident}", "initack", deadline)
        told: dict[str, str] = {}
        for _ in range(3):
            told |= line.read("set", deadline)
        rank, size = _number(told, "rank"), _number(told, "size")
    except BaseException:
        connection.close()
        raise
    _finalize_at_exit(line.descriptor, process, shared=False)
    return _Connection(connection, line, rank, size)


@functools.cache
def _introduce(descriptor: int, process: int) -> None:
    """Choose PMI-1, once in a process."""
    request = "cmd=init pmi_version=1 pmi_subversion=1"
    Line(descriptor).ask(request, "response_to_init", time.monotonic() + CONNECT_SECONDS)


@functools.cache
def _finalize_at_exit(descriptor: int, process: int, *, shared: bool) -> None:
    """Say `cmd=finalize` when the interpreter exits; once, however often this is called.

    shared  MPI in this process would use the same connection, and then says it itself
    """
    atexit.register(_finalize, descriptor, process, shared)


def _finalize(descriptor: int, process: int, shared: bool) -> None:
    mpi = sys.modules.get("mpi4py.MPI") if shared else None
    if os.getpid() != process or (mpi is not None and mpi.Is_initialized()):
        return
    with contextlib.suppress(RendezvousError, DeadlineExceeded):  # a launcher that is gone needs no farewell
        Line(descriptor).ask("cmd=finalize", "finalize_ack", time.monotonic() + FAREWELL_SECONDS)


def _field(fields: dict[str, str], name: str) -> str:
    if name not in fields:
        raise RendezvousError(f"the launcher's PMI-1 did not report {name}")
    return fields[name]


def _number(fields: dict[str, str], name: str) -> int:
    text = _field(fields, name)
    value = number_of(text)
    if value is None:
        raise RendezvousError(f"the launcher's PMI-1 said {name}={text[:100]!r}, where a number should be")
    return value
