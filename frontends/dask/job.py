"""`run`: a function on ranks in the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final

import cloudpickle
from distributed import Client, futures_of, wait
from distributed.comm import get_address_host

from collectives.launch import (
    REPORT_SECONDS,
    Failure,
    GuestJob,
    Outcomes,
    Place,
    Success,
    WorkerLost,
    call_of,
    count_of,
    free_address,
    load,
    own_settings,
    pickled_call,
    seconds_of,
    show_line,
    variables_of,
)
from frontends.dask.reservation import Answer, present, release, reserve
from frontends.dask.task import Event, call, cancel, locate, topic_of
from transports.errors import DeadlineExceeded

_TICK: Final = 0.5
"""Seconds between two looks at the scheduler's workers: Dask tells a client of no lost worker."""


def run(
    client: Client,
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int | None = None,
    workers: Iterable[str] | None = None,
    data: Any = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    on_progress: Callable[[int, float, float], None] | None = None,
) -> list[Any]:
    """Call `function(*args, **kwargs)` on a rank in each worker process; the results in rank order.

    client       a client of the cluster. The store in which the ranks meet is in its process, so the workers must be
                 able to reach its host
    function     pickled by cloudpickle: it may be defined anywhere. The world communicator is there when it is called
    np           number of ranks; by default that of `workers`
    workers      addresses of workers to choose from; by default all of the cluster
    data         an array, a dataframe or another collection of Dask's. The function gets a list of partitions as its
                 first argument: those that the worker of the rank holds. Partitions elsewhere are shared out
    env          variables for the ranks, besides Ronde's settings in this process's environment
    timeout      seconds until all ranks have been started and connected: for the workers of other jobs, tasks that run
                 on the workers, and the computation of `data`. Persist data that take long before
    on_progress  called with rank, done and total of each `report_progress`

    The job gets all workers at once, or none: those of other jobs are waited for. Ranks of a host have neighbouring
    numbers. What a rank prints appears here with its rank. After KeyboardInterrupt the communicator of the ranks is
    aborted; a rank that computes in its thread ends with its next call of Ronde's.

    Raises the error of the rank that failed first, with a note of its rank and traceback; WorkerLost if a worker died;
    DeadlineExceeded after `timeout`; ValueError for bad arguments.
    """
    _check(client)
    workers = None if workers is None else _addresses(workers)
    called = pickled_call("function", call_of("function", function, args, kwargs), cloudpickle.dumps)
    variables = variables_of("env", env)
    np = None if np is None else count_of("np", np)
    reservation = uuid.uuid4().hex
    until = time.monotonic() + seconds_of("timeout", timeout)
    with contextlib.ExitStack() as resources:
        resources.enter_context(client.as_current())  # other functions of Dask's take the newest client otherwise
        addresses = _reserve(client, reservation, np, workers, until)
        resources.callback(client.run_on_scheduler, release, reservation)
        places, pids = _places(client, addresses, until)
        job = resources.enter_context(GuestJob({**own_settings(), **variables}))
        torch = _ask(client, until, addresses[:1], free_address, places[0].address)[addresses[0]]
        seats = job.seats(places, torch)
        name = seats[0].job.name
        told = resources.enter_context(_shown(client, name, len(seats), on_progress))
        parts = _shares(client, data, addresses, until)
        futures = {
            seat.rank: client.submit(
                call, seat, pid, called, part, key=f"{name}-rank-{seat.rank}", workers=[address], retries=0,
                allow_other_workers=False, pure=False,
            )
            for address, pid, seat, part in zip(addresses, pids, seats, parts, strict=True)
        }  # fmt: skip
        names = {
            seat.rank: (address, f"worker {address}, pid {pid}")
            for address, pid, seat in zip(addresses, pids, seats, strict=True)
        }
        try:
            values = _collect(client, futures, names, told, until)
        except BaseException:
            _end(client, name, {names[rank][0]: future for rank, future in futures.items()})
            raise
        told.ended.wait(REPORT_SECONDS)
        return values


def _check(client: object) -> None:
    if not isinstance(client, Client):
        raise TypeError(f"client={client!r}: must be a distributed.Client")
    if client.asynchronous:
        raise ValueError("client: must be synchronous; call run in a thread with a client of its own")


def _addresses(workers: Iterable[str]) -> list[str]:
    """The addresses that the caller has given. Raises ValueError."""
    addresses = [] if isinstance(workers, str) or not isinstance(workers, Iterable) else list(workers)
    if not addresses or not all(isinstance(address, str) for address in addresses):
        raise ValueError(f"workers={workers!r}: must be addresses of workers, or None")
    twice = [address for address, count in Counter(addresses).items() if count > 1]
    if twice:
        raise ValueError(f"workers={workers!r}: names {twice[0]} twice, and a worker has one rank")
    return addresses


def _reserve(
    client: Client, reservation: str, np: int | None, workers: Sequence[str] | None, until: float
) -> list[str]:
    known = client.scheduler_info(n_workers=-1)["workers"]
    unknown = [address for address in workers or () if address not in known]
    if unknown:
        raise ValueError(f"workers: the cluster has no {', '.join(unknown)}; it has {', '.join(known)}")
    limit = len(known if workers is None else workers)
    if np is not None and np > limit:
        raise ValueError(f"np={np}: there are {limit} workers, and a worker has one rank")
    while True:  # the scheduler tells nobody when workers become free
        answer: Answer = client.run_on_scheduler(reserve, reservation, client.id, np, workers)
        if answer.reserved:
            return list(answer.reserved)
        if time.monotonic() > until:
            taken = ", ".join(answer.taken) or "none, and some are missing"
            raise DeadlineExceeded(f"run: the workers were not free in time; those of other jobs: {taken}")
        time.sleep(0.1)


def _ask(client: Client, until: float, addresses: Sequence[str], function: Callable[..., Any], *args: Any) -> Any:
    """Call a function beside the tasks of workers; the results by address. Raises DeadlineExceeded."""

    async def ask() -> Any:
        return await client.run(function, *args, workers=list(addresses))

    try:
        return client.sync(ask, callback_timeout=max(0.0, until - time.monotonic()))
    except TimeoutError:
        raise DeadlineExceeded(f"run: not all workers have answered within timeout: {', '.join(addresses)}") from None


def _places(client: Client, addresses: Sequence[str], until: float) -> tuple[list[Place], list[int]]:
    located = _ask(client, until, addresses, locate)
    if len(set(located.values())) < len(addresses):
        raise ValueError("client: some workers are threads of one process; a rank needs a worker process of its own")
    places = [Place(located[address][0], get_address_host(address)) for address in addresses]
    return places, [located[address][1] for address in addresses]


def _shares(client: Client, data: Any, addresses: Sequence[str], until: float) -> list[Any]:
    """The partitions of each worker, as futures."""
    if data is None:
        return [None] * len(addresses)
    parts = futures_of(client.persist(data))
    try:
        wait(parts, timeout=max(0.0, until - time.monotonic()))
    except TimeoutError:
        left = sum(part.status == "pending" for part in parts)
        raise DeadlineExceeded(
            f"run: {left} of the {len(parts)} partitions of data were not computed within timeout"
        ) from None
    holders = client.who_has(parts)
    shares: dict[str, list[Any]] = {address: [] for address in addresses}
    elsewhere = []
    for part in parts:
        here = [address for address in holders.get(part.key, ()) if address in shares]
        if here:
            shares[min(here, key=lambda address: len(shares[address]))].append(part)
        else:
            elsewhere.append(part)
    for part in elsewhere:
        min(shares.values(), key=len).append(part)
    return [shares[address] for address in addresses]


class _Told:
    """The events of the ranks. `joined`: set when all have connected; `ended`: when all have ended."""

    def __init__(self, count: int, on_progress: Callable[[int, float, float], None] | None) -> None:
        self.joined, self.ended = threading.Event(), threading.Event()
        self.away, self._running = set(range(count)), set(range(count))
        self._on_progress = on_progress

    def show(self, event: tuple[float, Event]) -> None:
        """Handle an event, in Dask's thread."""
        sort, rank, content = event[1]
        if sort == "line":
            show_line(rank, content)
        elif sort == "progress" and self._on_progress is not None:
            self._on_progress(rank, *content)
        elif sort == "joined":
            self.away.discard(rank)
            if not self.away:
                self.joined.set()
        elif sort == "end":
            self._running.discard(rank)
            if not self._running:
                self.ended.set()


@contextlib.contextmanager
def _shown(
    client: Client, name: str, count: int, on_progress: Callable[[int, float, float], None] | None
) -> Iterator[_Told]:
    """Show the output of the ranks, and note when they have connected and ended."""
    told = _Told(count, on_progress)
    client.subscribe_topic(topic_of(name), told.show)
    try:
        yield told
    finally:
        client.unsubscribe_topic(topic_of(name))


def _collect(
    client: Client, futures: Mapping[int, Any], names: Mapping[int, tuple[str, str]], told: _Told, until: float
) -> list[Any]:
    """The results of the ranks. Raises the root cause; DeadlineExceeded if they have not all connected by `until`."""
    outcomes = Outcomes(futures)
    while not outcomes.decided and time.monotonic() < outcomes.until:
        waiting = {rank: futures[rank] for rank in outcomes.waiting}
        with contextlib.suppress(TimeoutError, CancelledError):
            wait(list(waiting.values()), timeout=_TICK, return_when="FIRST_COMPLETED")
        done = [rank for rank, future in waiting.items() if future.status not in ("pending", "lost")]
        for rank in done:
            outcomes.add(_outcome(rank, waiting.pop(rank)), time.monotonic())
        alive = set(client.run_on_scheduler(present, [names[rank][0] for rank in waiting])) if waiting else set()
        for rank in [rank for rank in waiting if names[rank][0] not in alive]:
            outcomes.add(Failure(rank, WorkerLost(f"rank {rank} ({names[rank][1]}) was lost")), time.monotonic())
        if not (told.joined.is_set() or outcomes.failed or done) and time.monotonic() >= until:
            late = ", ".join(f"rank {rank} ({names[rank][1]})" for rank in sorted(told.away))
            raise DeadlineExceeded(
                f"run: not started and connected within timeout: {late}; a task that runs on a worker delays its rank"
            )
    return outcomes.values()


def _outcome(rank: int, future: Any) -> Success | Failure:
    if future.status == "finished":
        return load(rank, future.result())
    if future.status == "cancelled":
        return Failure(rank, RuntimeError(f"rank {rank}: its task was cancelled"))
    return Failure(rank, future.exception())


def _end(client: Client, name: str, futures: Mapping[str, Any]) -> None:
    """Abort the world, wait until the ranks have left it, and cancel the tasks. `futures`: by address."""
    alive = client.run_on_scheduler(present, list(futures))
    if alive:
        client.run(cancel, name, workers=alive, on_error="ignore")
        with contextlib.suppress(TimeoutError, CancelledError):
            wait([futures[address] for address in alive if futures[address].status == "pending"], REPORT_SECONDS)
    client.cancel(list(futures.values()), force=True)
