"""Rank processes that stay, and that come into being with their framework imported.

    pool = framework("torch")(2)
    results = pool.run(function, *args, transport="shm")     # function(*args) in every rank; `init()` finds its job

A ForkServer is one process that imports the framework once; every rank is forked from it in milliseconds. So a new
rank costs no import, and the ranks of a job begin together however busy the machine is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

import pytest

from transports.auth import new_secret
from transports.launchers import Job, job_to_environment
from transports.rendezvous.server import TcpStoreServer

ROOT = Path(__file__).parents[2]


COMPILING = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""Environment in which XLA compiles quickly: tests run small programs, and spend most of their time in its compiler."""


def bound(seconds: float = 120.0) -> float:
    """A limit for something that takes much less than `seconds` on a quiet machine: more where others compute, too."""
    others = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return seconds * (1.0 + others / (os.cpu_count() or 1))


class RankError(AssertionError):
    """Raised by `Pool.run`: the tracebacks of the ranks that failed."""


class ForkServer:
    """A process that imports modules and then forks ranks. It starts with the first rank."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """`environment` is added to this process's before anything is imported."""
        self._modules = list(modules)
        self._environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(environment or {})}
        self._process: Any = None
        self._link: Connection | None = None

    def fork(self) -> tuple[int, Connection]:
        """Start a rank; its process id, and the connection to it."""
        if not hasattr(os, "fork"):
            pytest.skip("ranks are forked here, which this system cannot do")
        link = self._start() if self._link is None else self._link
        link.send(("fork", None))
        pid: int = link.recv()
        return pid, Connection(recv_handle(link))

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a rank that has ended or is about to; None if it does not end."""
        assert self._link is not None
        self._link.send(("exit code", pid))
        code: int | None = self._link.recv()
        return code

    def close(self) -> None:
        """End the process. Its ranks end when their connections are closed."""
        if self._link is not None:
            self._link.close()
            self._process.join(bound(10))
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()
            self._link = None

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        link, far = context.Pipe()
        with pytest.MonkeyPatch.context() as patch, far:
            for name, value in self._environment.items():
                patch.setenv(name, value)
            self._process = context.Process(target=_serve_forks, args=(far, self._modules), daemon=True)
            self._process.start()
        self._link = link
        text = link.recv() if link.poll(bound(300)) else "no answer"
        if text:
            self.close()
            raise RankError(f"the fork server did not import {self._modules}:\n{text}")
        return link


def _serve_forks(link: Connection, modules: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for module in modules:
            importlib.import_module(module)
        link.send("")
    except BaseException:
        link.send(traceback.format_exc())
        return
    codes: dict[int, int | None] = {}
    with contextlib.suppress(EOFError):
        while True:
            request, pid = link.recv()
            if request == "fork":
                near, far = multiprocessing.Pipe()
                pid = os.fork()
                if pid == 0:
                    link.close()
                    near.close()
                    _serve_and_exit(far)
                far.close()
                link.send(pid)
                send_handle(link, near.fileno(), os.getppid())
                near.close()
            else:
                if codes.get(pid) is None:
                    codes[pid] = _exit_code(pid)
                link.send(codes[pid])


def _exit_code(pid: int) -> int | None:
    deadline = time.monotonic() + bound(10)
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def _serve_and_exit(link: Connection) -> None:
    """The life of a rank. It leaves without the handlers that are the fork server's."""
    code = 1
    try:
        _serve(link)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Pool:
    """Up to `size` ranks, started when they are needed. Those of a run that did not end well are replaced."""

    def __init__(self, size: int, server: ForkServer) -> None:
        self.size = size
        self._server = server
        self._ranks: list[tuple[int, Connection]] = []

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        transport: str = "shm",
        ranks: int | None = None,
        **settings: Any,
    ) -> list[Any]:
        """function(*args) in every rank, which finds its job in the environment; the results in rank order.

        `function` must be importable. `ranks`, if given, is how many of the processes take part. `settings` are
        Ronde's, by name. Raises RankError.
        """
        size = ranks or self.size
        outcomes = self._run(size, function, args, transport, settings)
        missing = [rank for rank in range(size) if rank not in outcomes]
        failed = {rank: text for rank, (text, _) in outcomes.items() if text}
        if missing or failed:
            self.close()
            told = "".join(f"\n--- rank {rank}:\n{text}" for rank, text in sorted(failed.items()))
            raise RankError(f"no result in time from ranks {missing}{told}" if missing else told)
        return [outcomes[rank][1] for rank in range(size)]

    def run_script(
        self, script: Path, *arguments: object, ranks: int | None = None, lost: Mapping[int, int] | None = None
    ) -> str:
        """Run a script as `__main__` in every rank; what the ranks have written to stdout, in rank order.

        `lost` are the ranks that end their process, with their exit codes. Raises RankError.
        """
        size, lost = ranks or self.size, lost or {}
        argv = [str(script), *map(str, arguments)]
        outcomes = self._run(size, run_as_main, (argv,), "auto", {})
        wrong = [
            f"\n--- rank {rank}:\n{text}"
            for rank in range(size)
            for text, _ in [outcomes.get(rank, ("no result in time", None))]
            if text != (_ended(lost[rank]) if rank in lost else "")
        ]
        if wrong or lost:
            self.close()
        said = [outcomes[rank][1] or "" for rank in sorted(outcomes)]
        if wrong:
            raise RankError("".join([*wrong, *said]))
        return "".join(said)

    def close(self) -> None:
        """End the processes."""
        for _, link in self._ranks:
            link.close()
        for pid, _ in self._ranks:
            if self._server.exit_code(pid) is None:
                os.kill(pid, signal.SIGKILL)
                self._server.exit_code(pid)
        self._ranks.clear()

    def _run(
        self, size: int, function: Callable[..., Any], args: Any, transport: str, settings: Mapping[str, Any]
    ) -> dict[int, tuple[str, Any]]:
        """Rank -> error text, empty if there is none, and result. A rank without an outcome is late."""
        while len(self._ranks) < size:
            self._ranks.append(self._server.fork())
        secret, limit = new_secret(), bound()
        given = {"transport": transport, "timeout": limit / 2, "connect_timeout": limit / 2, **settings}
        variables = {f"RONDE_{name.upper()}": str(value) for name, value in given.items()}
        with TcpStoreServer("127.0.0.1", secret=secret) as server:
            for rank, (_, link) in enumerate(self._ranks[:size]):
                job = Job(rank, size, server.url, secret, rank, size, "test")
                link.send((function, args, variables | job_to_environment(job), limit))
            return self._collect(size, time.monotonic() + limit)

    def _collect(self, size: int, deadline: float) -> dict[int, tuple[str, Any]]:
        outcomes: dict[int, tuple[str, Any]] = {}
        waiting = {link: rank for rank, (_, link) in enumerate(self._ranks[:size])}
        while waiting and (ready := wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            for link in ready:
                assert isinstance(link, Connection)
                rank = waiting.pop(link)
                try:
                    outcomes[rank] = link.recv()
                except (EOFError, ConnectionResetError):
                    outcomes[rank] = _ended(self._server.exit_code(self._ranks[rank][0])), None
                else:
                    if outcomes[rank][0]:  # the others may be waiting for this one
                        deadline = min(deadline, time.monotonic() + bound(15))
        return outcomes


def _ended(code: int | None) -> str:
    return f"the process ended, exit code {code}"


def _serve(link: Connection) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            function, args, variables, limit = link.recv()
            faulthandler.dump_traceback_later(0.9 * limit)
            for name in [name for name in os.environ if name.startswith("RONDE_")]:
                del os.environ[name]
            os.environ.update(variables)
            try:
                link.send(("", function(*args)))
            except BaseException:
                link.send((traceback.format_exc(), None))
            faulthandler.cancel_dump_traceback_later()


def run_as_main(argv: list[str]) -> str:
    """In a rank: run a script with these arguments; what it has written to stdout."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(StringIO()) as said:
        patch.setattr(sys, "argv", argv)
        patch.setattr(sys, "path", [str(Path(argv[0]).parent), *sys.path])
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
    return said.getvalue()


class Framework:
    """The pools of one framework, one for each size. Their ranks are forked from one server and stay for all tests."""

    def __init__(self, *modules: str, **environment: str) -> None:
        self._server = ForkServer(modules, environment)
        self._pools: dict[int, Pool] = {}

    def __call__(self, size: int) -> Pool:
        """The pool of `size` ranks."""
        return self._pools.setdefault(size, Pool(size, self._server))

    def fresh(self, size: int) -> Pool:
        """A pool whose ranks have run nothing yet, and are used by nobody else. The caller closes it."""
        return Pool(size, self._server)

    def close(self) -> None:
        """End all processes."""
        for pool in self._pools.values():
            pool.close()
        self._server.close()


def framework(name: str) -> Framework:
    """torch, jax, mxnet, numpy (with scikit-learn), tensorflow (with Keras on it), tf-keras; or keras-jax and
    keras-torch, which have no other framework."""
    if name == "numpy":
        return Framework("frontends.numpy", "sklearn.datasets", "sklearn.linear_model", "sklearn.model_selection")
    if name == "torch":
        return Framework("frontends.torch", "frontends.torch.distributed")
    if name == "jax":
        return Framework("frontends.jax", "optax", **COMPILING)
    if name == "mxnet":
        return Framework("frontends.mxnet", "sklearn.datasets")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    if name == "tf-keras":
        return Framework("frontends.keras", KERAS_BACKEND="tensorflow", TF_USE_LEGACY_KERAS="1", **quiet)
    if name == "tensorflow":
        return Framework(
            "tests.frontends.keras_alone", "frontends.tensorflow", KERAS_BACKEND=name, **quiet, **COMPILING
        )
    return Framework("tests.frontends.keras_alone", KERAS_BACKEND=name.removeprefix("keras-"), **quiet, **COMPILING)
