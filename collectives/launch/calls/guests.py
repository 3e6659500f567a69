"""Ranks as guests of an engine such as Ray, Dask or Spark: the engine places the processes, and Ronde connects them.

One process that all workers reach, the engine's driver or the first worker, is the host of the job: `GuestJob` serves
the store there and makes a `Seat` for each worker. The engine carries the seats to the workers, where an `Occupant`
takes the place of the rank. The way to meet is that of `ronde run`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from collectives.config import Config
from collectives.launch.calls.outcome import Failure, Success, dump, failure
from collectives.launch.processes import PASSED_ON, passed_on, rank_environment
from collectives.launch.store_keeper import StoreKeeper, free_port, reach
from collectives.membership import set_bounds
from collectives.startup import init
from collectives.world_communicator import is_initialized, shutdown, world
from transports import launchers
from transports.auth import new_secret
from transports.errors import RondeError, described

_CLOSE_SECONDS: Final = 10.0
"""Seconds to close the world of a worker that is released."""


@dataclass(frozen=True)
class Place:
    """A worker as the engine has placed it.

    node     the engine's name of the node: workers with the same are neighbours
    address  a name or an address of the node, by which other nodes reach it
    """

    node: str
    address: str


@dataclass(frozen=True)
class Seat:
    """A rank, as its worker is told. It can be pickled, and its repr does not show the secret.

    job        rank, size, the store and the secret
    torch      the address and port that MASTER_ADDR and MASTER_PORT say
    variables  more variables for the environment of the rank
    """

    job: launchers.Job
    torch: tuple[str, int]
    variables: Mapping[str, str] = field(repr=False)

    @property
    def rank(self) -> int:
        """The number of the rank; that of a newcomer tells it from all others, and its rank is known once it has
        joined."""
        return self.job.rank


class WorkerLost(RuntimeError):
    """A worker has died. The text names its rank and process, and the engine's name of its node or address."""


def in_rank_order(places: Sequence[Place]) -> list[int]:
    """The indices of the workers in the order of their ranks: those of a node together, the nodes as they first
    come."""
    nodes = list(dict.fromkeys(place.node for place in places))
    return sorted(range(len(places)), key=lambda worker: nodes.index(places[worker].node))


def free_address(address: str) -> tuple[str, int]:
    """This node's address and a port that is free there now, for MASTER_ADDR and MASTER_PORT. For the first rank."""
    return address, free_port(address)


def own_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Ronde's settings in `environment`, which the ranks of an engine get as well. What holds for one process or is
    secret is not among them."""
    prefix = next(name for name in PASSED_ON if name.startswith("RONDE")).rstrip("*")
    return {name: value for name, value in passed_on(environment, {}).items() if name.startswith(prefix)}


class GuestJob:
    """A job whose ranks an engine starts. It serves their store in this process until `close`.

    variables  for the environment of all ranks; settings of Ronde in it hold for the store, too

    `with GuestJob() as job` closes it.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        self._keeper = StoreKeeper({**own_settings(), **self._variables})
        self._name = f"guests-{uuid.uuid4().hex[:12]}"
        self._seats: list[Seat] = []
        self._here: Counter[str] = Counter()
        """The ranks that each node has had."""

    def seats(self, places: Sequence[Place], torch: tuple[str, int] | None = None) -> list[Seat]:
        """Serve the store; the seats of the workers in the order of `places`. Once.

        places  where each worker is. The ranks follow `in_rank_order`
        torch   address and port for rank 0 of torch, see `free_address`; by default one on this host

        Raises ConfigError, RendezvousError; ValueError without places. Nothing stays open then.
        """
        if not places:
            raise ValueError("places: must have at least one worker")
        secret = new_secret()
        interface = Config.load(environment={**own_settings(), **self._variables}).transport_options("tcp").interface
        url, own = self._keeper.serve(secret, interface, list(dict.fromkeys(place.address for place in places)))
        sizes = Counter(place.node for place in places)
        seats: dict[int, Seat] = {}
        for rank, worker in enumerate(in_rank_order(places)):
            node = places[worker].node
            job = launchers.Job(rank, len(places), url, secret, self._here[node], sizes[node], self._name)
            seats[worker] = Seat(job, torch or own, self._variables)
            self._here[node] += 1
        self._seats = [seats[worker] for worker in range(len(places))]
        return list(self._seats)

    def let_ranks_come(self, minimum: int, maximum: int | None = None) -> None:
        """Set the bounds on the number of ranks of an elastic job, see `collectives.membership.set_bounds`. After
        `seats`. Raises RendezvousError."""
        with contextlib.closing(self._keeper.client()) as store:
            set_bounds(store, minimum, maximum)

    def newcomer(self, place: Place) -> Seat:
        """The seat of a worker that comes later. `Occupant.connect` waits there until the ranks admit it, at their next
        `changes_pending` or `regroup`. The seat's number is the next that no worker has had. After `seats`.
        """
        first, number = self._seats[0], len(self._seats)
        local = self._here[place.node]
        self._here[place.node] += 1
        job = replace(first.job, rank=number, local_rank=local, local_size=local + 1, joins=True)
        self._seats.append(replace(first, job=job))
        return self._seats[-1]

    def close(self) -> None:
        """End the store. Idempotent."""
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Occupant:
    """The worker's side: while it is open, this process is the rank of the seat, in the environment of that rank.

    `with Occupant(seat) as rank: value = rank.call(fn)`. On exit the world is closed, and the environment and the
    working directory are as before, so that the engine can use the process for something else.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._before: dict[str, str] = {}
        self._folder = ""

    def __enter__(self) -> Self:
        seat = self._seat
        if is_initialized():
            raise RuntimeError(f"rank {seat.rank}: this process is a rank of another job already")
        self._before = dict(os.environ)
        with contextlib.suppress(FileNotFoundError):  # the engine may have removed it
            self._folder = os.getcwd()
        environment = rank_environment(seat.job, {**os.environ, **seat.variables}, seat.torch)
        for name in os.environ.keys() - environment.keys():  # the seat decides, whatever started the engine
            del os.environ[name]
        os.environ.update(environment)
        return self

    def connect(self) -> None:
        """Make the world communicator, if there is none yet. Collective. Raises as `init`, but RendezvousError soon if
        the job has ended: its store was there before the seat."""
        if not is_initialized():
            reach(self._seat.job.store, self._seat.job.secret, os.environ)
            init()

    def call(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call the function and return its result.

        Raises its error; SystemExit and KeyboardInterrupt become a RuntimeError, which does not end the engine's
        worker. The communicator is aborted then, so that no other rank waits for this one.
        """
        try:
            return fn(*args, **(kwargs or {}))
        except BaseException as error:
            shown = failure(self._seat.rank, error).error
            if is_initialized():
                world().abort(described(shown))
            if shown is error:
                raise
            raise shown from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with contextlib.suppress(*(() if error is None else (RondeError,))):  # the first error is the one to raise
                shutdown(_CLOSE_SECONDS)
        finally:
            for name in os.environ.keys() - self._before.keys():
                del os.environ[name]
            os.environ.update(self._before)
            with contextlib.suppress(OSError):  # the function may have removed it
                os.chdir(self._folder)
            gc.collect()  # objects of the closed world refer to each other, and to its shared memory


class Lines(io.TextIOBase):
    """The output of a rank in an engine's worker: whole lines are passed on, and everything goes to the worker's own
    stream as well. Several threads may write. Bytes, which go to its `buffer` or descriptor, are the worker's alone.

    own   the worker's stream
    send  called with each line, without its end. It can be encoded: engines send UTF-8
    """

    def __init__(self, own: Any, send: Callable[[str], None]) -> None:
        super().__init__()
        self._own = own
        self._send = send
        self._rest = ""
        self._lock = threading.RLock()  # a signal handler may print while its thread does

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in typeshed
        return str(self._own.encoding)

    @property
    def buffer(self) -> Any:
        return self._own.buffer

    def fileno(self) -> int:
        return int(self._own.fileno())

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._own.write(text)
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._send(_escaped(line))
        return len(text)

    def flush(self) -> None:
        if not self._own.closed:  # it may be, when this stream is collected and flushed once more
            self._own.flush()

    def finish(self) -> None:
        """Send the line that has no end."""
        with self._lock:
            rest, self._rest = self._rest, ""
            if rest:
                self._send(_escaped(rest))


def _escaped(text: str, encoding: str = "utf-8") -> str:
    """Text with escapes in place of characters that the encoding lacks, such as a byte of a file name."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def show_line(rank: int, line: str) -> None:
    """Print a line of a rank's output. Characters that stdout cannot encode are escaped, so that none ends the job."""
    if sys.stdout is not None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(_escaped(f"[rank {rank}] {line}\n", encoding))


def call_as_rank(
    seat: Seat,
    function: bytes,
    send: Callable[[str], None],
    pickler: Callable[[object], bytes],
    *,
    first: Sequence[Any] = (),
    connected: Callable[[], None] | None = None,
) -> tuple[bytes, int]:
    """Be the rank of the seat and call a function: the whole of an engine's task. Raises no Exception.

    function   a pickled tuple of the function, its arguments and its keyword arguments
    send       called with each line that the function prints by Python; the worker's own streams get it as well
    pickler    pickles the outcome, such as cloudpickle.dumps
    first      arguments before those in `function`
    connected  called when the world is there

    Returns the dumped outcome, and the number that the rank had in the world in the end. An error of unpickling, of
    connecting or of the function is an outcome as well, so that the engine does not repeat the task.
    """
    outcome: Success | Failure
    rank = seat.rank
    out, err = Lines(sys.stdout, send), Lines(sys.stderr, send)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            called, args, kwargs = pickle.loads(function)
            with Occupant(seat) as occupant:
                occupant.connect()
                if connected is not None:
                    connected()
                value = occupant.call(called, [*first, *args], kwargs)
                if is_initialized():
                    rank = world().rank
        outcome = Success(seat.rank, value)
    except Exception as error:  # noqa: BLE001  the caller of the job must learn of any error
        outcome = Failure(seat.rank, error)
    for stream in (out, err):
        stream.finish()
    return dump(outcome, pickler), rank
