"""The world communicator: made by `init`, used by the functions of the package, ended by `shutdown`.

There is one per process, and it is the only global state. Ranks that run as threads of one process (`run` with the
local transport) have one per thread instead, through a context variable.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from collectives.communicator import Communicator
from collectives.config import Config
from collectives.launch.blame import say_why
from collectives.launch.left_out import take_back
from transports.base import Group
from transports.errors import ConfigError, RondeError
from transports.rendezvous.bootstrap import job_from_environment, join, next_meeting, open_store, world_of_one
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.store import Store
from transports.tls import Tls

if TYPE_CHECKING:
    from collectives.process_sets import ProcessSet

_CLOSE_SECONDS = 10.0

_mine: contextvars.ContextVar[Communicator | None] = contextvars.ContextVar("ronde_world", default=None)


class _World:
    """The process's world communicator and what must be released after it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.communicator: Communicator | None = None
        self.resources = contextlib.ExitStack()


_world = _World()


def init(
    *,
    transport: str | None = None,
    rank: int | None = None,
    size: int | None = None,
    store: Store | str | None = None,
    secret: bytes = b"",
    config: Config | Mapping[str, Any] | None = None,
    process_sets: Iterable[ProcessSet | Sequence[int]] = (),
) -> Communicator:
    """Find the other ranks and connect to them; returns the world communicator. Collective.

    Who the ranks are comes from the arguments, else from the environment of `ronde run`; else this process is a world
    of one.

    transport  a transport's name; goes before every other setting of it
    rank, size, store   given together: this process's number, how many there are, and a store that all of them reach
               (an object, or a URL such as 'tcp://host:port' or 'file:///shared/directory')
    secret     the per-job secret, at least 16 bytes, where `store` is given
    config     settings that go before those of the environment and the file
    process_sets   what add_process_set is called with at once, the same on all ranks

    Raises ConfigError for a bad setting; RendezvousError, ConnectError or DeadlineExceeded if the ranks do not come
    together within the setting connect_timeout; what add_process_set raises; RuntimeError if there is a world already.
    Nothing stays open then.
    """
    from collectives.process_sets import enroll  # which needs this module

    settings = _settings(config, transport)
    with _world.lock:
        if is_initialized():
            raise RuntimeError("init: there is a world communicator already; call shutdown first")
        deadline = time.monotonic() + settings.connect_timeout
        with contextlib.ExitStack() as resources:
            group, meeting = _find_group(rank, size, store, secret, settings.load_tls(), deadline, resources)
            _world.communicator = connect(group, settings, deadline)
            _tell_others_at_exit(meeting, group.rank, resources)
            _world.resources = resources.pop_all()
        try:
            enroll(process_sets)
        except BaseException:
            _close(_CLOSE_SECONDS)
            raise
        return _world.communicator


def connect(group: Group, config: Config, deadline: float) -> Communicator:
    """The communicator of a group, over the transport that the settings name. Collective. Raises as `init`."""
    communicator = Communicator.connect(group, config, deadline)
    if config.timeline:
        try:
            communicator.start_timeline(config.timeline)
        except OSError as error:
            communicator.abort(f"the timeline cannot be written: {error}")
            communicator.close()
            raise ConfigError(f"timeline={config.timeline!r}: cannot be written: {error}") from error
    return communicator


def shutdown(timeout: float | None = None) -> None:
    """Finish what was begun, close the world communicator and release everything. Idempotent; `init` may follow.

    timeout  seconds, by default the setting `timeout`. Raises DeadlineExceeded if it does not suffice; everything is
             released all the same.
    """
    with _world.lock:
        _close(timeout)


def _close(timeout: float | None) -> None:
    communicator, _world.communicator = _world.communicator, None
    with _world.resources:
        if communicator is not None:
            communicator.current.close(timeout)


def is_initialized() -> bool:
    """True between `init` and `shutdown`."""
    return _mine.get() is not None or _world.communicator is not None


def world() -> Communicator:
    """The world communicator. Raises RuntimeError before `init`."""
    communicator = _mine.get() or _world.communicator
    if communicator is None:
        raise RuntimeError("there is no world communicator: call collectives.init() first")
    return communicator.current


@contextlib.contextmanager
def world_scope(communicator: Communicator) -> Iterator[Communicator]:
    """Make `communicator` the world of this thread (and of what it awaits) for a while: how ranks share a process."""
    token = _mine.set(communicator)
    try:
        yield communicator
    finally:
        _mine.reset(token)


def _settings(config: Config | Mapping[str, Any] | None, transport: str | None) -> Config:
    if isinstance(config, Config):
        if transport is not None:
            raise ConfigError(f"transport={transport!r}: give it in the Config, or give settings as a mapping")
        return config
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"config={config!r}: must be a Config or a mapping of settings")
    arguments = dict(config or {})
    if transport is not None:
        arguments["transport"] = transport
    return Config.load(arguments)


def _find_group(
    rank: int | None,
    size: int | None,
    store: Store | str | None,
    secret: bytes,
    tls: Tls | None,
    deadline: float,
    resources: contextlib.ExitStack,
) -> tuple[Group, Store]:
    given = {"rank": rank, "size": size, "store": store}
    absent = [name for name, value in given.items() if value is None]
    if len(absent) == len(given):
        job = job_from_environment(os.environ)
        if job is None:
            return world_of_one(), MemoryStore()
        rank, size, store, secret = job.rank, job.size, job.store, job.secret
    elif absent:
        raise ConfigError(f"init: {', '.join(absent)} missing; rank, size and store must be given together")
    assert rank is not None
    assert size is not None
    assert store is not None
    if isinstance(store, str):
        store = open_store(store, secret, deadline, tls=tls)
        resources.callback(store.close)
    generation = next_meeting(rank, store)
    take_back(store, rank)
    return join(rank, size, store, secret=secret, generation=generation, deadline=deadline), store


def _tell_others_at_exit(store: Store, rank: int, resources: contextlib.ExitStack) -> None:
    """If this process ends without `shutdown`, the launcher and the other ranks learn why rather than wait. `rank` is
    the one that the launcher knows."""
    previous = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _world.communicator is not None:
            say_why(store, rank, error)
            _world.communicator.current.abort(f"{kind.__name__}: {error}")
        previous(kind, error, trace)

    def restore() -> None:
        if sys.excepthook is report:
            sys.excepthook = previous

    def leave() -> None:
        with contextlib.suppress(RondeError):  # the process ends; there is nobody left to hear of it
            shutdown(_CLOSE_SECONDS)

    sys.excepthook = report
    resources.callback(restore)
    atexit.register(leave)
    resources.callback(atexit.unregister, leave)
