"""The contenders of a comparison: each is a job of its own, started by its own launcher, which waits for requests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WORKER: Final = Path(__file__).with_name("library.py")
START_SECONDS: Final = 120.0
TURN_LIMIT: Final = 120.0
OURS: Final = "ronde"


@dataclass(frozen=True)
class Contender:
    """A library.

    name      of the contender; that of MPI's is its implementation, openmpi or mpich
    library   one of library.LIBRARIES
    python    the interpreter of its ranks
    launcher  that of MPI
    """

    name: str
    library: str
    python: Path
    launcher: Path | None = None

    def command(self, np: int, link: str) -> list[list[str]]:
        """The processes that start `np` ranks over a link, each as a command; more than one if the library has no
        launcher."""
        worker = [str(self.python), str(WORKER), self.library]
        if self.library.startswith(OURS):
            return [[str(self.python.with_name("ronde")), "run", "-np", str(np), "--transport", link, *worker]]
        if self.name == "openmpi":
            few = np <= (os.cpu_count() or 1)
            options = [] if few else ["--map-by", ":OVERSUBSCRIBE"]
            if link == "tcp":
                options += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
            root = ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
            return [[str(self.launcher), *root, *options, "-np", str(np), *worker]]
        if self.library == "mpi":
            return [[str(self.launcher), "-np", str(np), *worker]]
        return [worker] * np


class Job:
    """The ranks of a contender, which wait for requests."""

    def __init__(self, contender: Contender, np: int, link: str, directory: Path) -> None:
        self.name = contender.name
        self.version = ""
        self.algorithms: list[str] = []
        """The algorithms of the last turn's calls; empty if the library does not report them."""
        self.algorithm: str | None = None
        """The algorithm of Ronde's allreduces that `prepare` asks for; None for Ronde's own choice."""
        self._ranks: list[Any] = []
        self._links: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        path = directory / f"{contender.name}.socket"
        log = directory / f"{contender.name}.log"
        with socket.socket(socket.AF_UNIX) as listener, open(log, "wb") as output:
            listener.bind(str(path))
            listener.listen(np)
            listener.settimeout(1.0)
            environment = os.environ | {"OMP_NUM_THREADS": "1", "COMPARE_MEETING": f"file://{directory}/meeting-{np}"}
            for rank, command in enumerate(contender.command(np, link)):
                ranks = {} if contender.library != "gloo" else {"RONDE_RANK": str(rank), "RONDE_SIZE": str(np)}
                self._processes.append(
                    subprocess.Popen(
                        [*command, str(path)],
                        env=environment | ranks,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
            try:
                self._accept_ranks(listener, np)
            except BaseException:
                self.close()
                sys.stderr.write(log.read_text(errors="replace"))
                raise

    def _accept_ranks(self, listener: socket.socket, np: int) -> None:
        until = time.monotonic() + START_SECONDS
        while len(self._links) < np:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                ended = [process for process in self._processes if process.poll() is not None]
                if ended or time.monotonic() > until:
                    raise RuntimeError(f"{self.name} did not start {np} ranks; its output follows") from None
                continue
            link.settimeout(TURN_LIMIT)
            self._links.append(link)
        self._ranks = [link.makefile("rw") for link in self._links]
        self.version = self._read_answers()[0]["version"]

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """Send a request to every rank and return their answers."""
        for rank in self._ranks:
            rank.write(json.dumps(request) + "\n")
            rank.flush()
        return self._read_answers()

    def _read_answers(self) -> list[dict[str, Any]]:
        lines = [rank.readline() for rank in self._ranks]
        if not all(lines):
            raise RuntimeError(f"{self.name}: a rank has ended")
        return [json.loads(line) for line in lines]

    def prepare(self, collective: str, nbytes: int, *, fresh: bool = False) -> int:
        """Make the arrays; returns the maximum number of calls in a batch. `fresh`: see library.Trial."""
        answers = self.ask(do="prepare", collective=collective, bytes=nbytes, algorithm=self.algorithm, fresh=fresh)
        return int(min(answer["longest"] for answer in answers))

    def turn(self, calls: int, batches: int) -> tuple[float, int]:
        """Seconds per call of the slowest rank, and wrong elements on all ranks."""
        answers = self.ask(do="turn", calls=calls, batches=batches)
        self.algorithms = sorted({name for answer in answers for name in answer["algorithms"]})
        return max(answer["seconds"] for answer in answers), sum(answer["wrong"] for answer in answers)

    def singles(self, calls: int, batches: int) -> list[float]:
        """Seconds of the slowest rank for each of the calls."""
        answers = self.ask(do="singles", calls=calls, batches=batches)
        return [max(seconds) for seconds in zip(*(answer["seconds"] for answer in answers), strict=True)]

    def close(self) -> None:
        """End the ranks; kill processes that do not end in time."""
        for file in [*self._ranks, *self._links]:
            with contextlib.suppress(OSError):  # the rank may have ended
                file.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def started(contenders: Sequence[Contender], np: int, link: str) -> Iterator[list[Job]]:
    """The jobs of all contenders."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ronde-compare-")))
        jobs = []
        for contender in contenders:
            jobs.append(Job(contender, np, link, directory))
            stack.callback(jobs[-1].close)
        yield jobs
