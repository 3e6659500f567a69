"""Startup of a rank: read the settings, find the other ranks, connect to them, and make the world communicator."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, SupportsIndex

from collectives import membership
from collectives.communicator import Communicator
from collectives.config import Config, unknown_variables
from collectives.endings import END_SECONDS, end_with_process
from collectives.execution import WAIT_SECONDS, machine_code
from collectives.failure import report_exit, withdraw_left_out
from collectives.logs import shown
from collectives.membership import CONNECT_SECONDS, Standby
from collectives.process_sets import ProcessSet, add_given
from collectives.sharing import SharedArrays, begin_sharing, is_sharing
from collectives.world_communicator import PROCESS_WORLD, is_initialized, world
from transports import launchers
from transports.auth import check_secret
from transports.base import Group
from transports.errors import ConfigError, RendezvousError, RondeError, TransportError, described
from transports.rendezvous import (
    MemoryStore,
    join,
    leave,
    open_store,
)
from transports.store import Store

log = logging.getLogger("ronde.startup")

_COMPILING: Final = ("auto", "shm", "tcp")
"""The transports for which programs run in the compiled interpreter."""


def init(
    *,
    transport: str | None = None,
    rank: int | None = None,
    size: int | None = None,
    store: Store | str | None = None,
    secret: bytes = b"",
    join: bool | None = None,
    config: Config | Mapping[str, Any] | None = None,
    process_sets: Iterable[ProcessSet | Sequence[int]] = (),
) -> Communicator:
    """Find the other ranks and connect to them. Returns the world communicator. Collective.

    transport          name of the transport; precedes every other setting of it
    rank, size, store  given together: this process's number, the number of ranks, and a store that all of them reach
                       (an object, or a URL such as 'tcp://host:port' or 'file:///shared/directory')
    secret             the secret of the job, at least 16 bytes, where `store` is given
    join               True to join a world that runs, as a newcomer: give the store in which its ranks met, and no rank
                       and size, unless the launcher has started this process as a newcomer. It waits until the ranks
                       call `regroup`, and gets the highest rank. By default the launcher decides
    config             settings; they precede the environment and the file
    process_sets       process sets to add at once, the same on all ranks; see add_process_set

    Without rank, size and store the ranks are those of the launcher that started this process: `ronde run`, torchrun,
    an MPI launcher, srun or another that docs/launching.md lists. A launcher whose ranks cannot meet is an error;
    without a launcher, or with RONDE_LAUNCHER=none, this process is a world of one. A process that a rank has started
    inherits its environment, but is not that rank: with `rank=0, size=1, store="memory:"` it makes a world of its own.

    A second call returns the existing world if the arguments that are given agree with it.

    Raises ConfigError for a bad setting, if a launcher has started several ranks and they cannot meet (the text names
    the variables that were seen and what is missing), and if the environment is that of a rank which is another
    process; RendezvousError, ConnectError or DeadlineExceeded if the ranks do not come together within the setting
    `connect_timeout`, or do not admit a newcomer within `join_timeout`; the errors of add_process_set; RuntimeError if
    a world exists already and differs from the arguments. After an error nothing stays open but that world.
    """
    settings = _settings(config, transport)
    with PROCESS_WORLD.lock:
        if is_initialized():
            given = Config.__dataclass_fields__ if isinstance(config, Config) else {**(config or {})}
            names = [*given] if transport is None else [*given, "transport"]
            return _existing_world(settings, names, rank, size, process_sets)
        deadline = time.monotonic() + settings.connect_timeout
        with contextlib.ExitStack() as resources:
            rename = resources.enter_context(shown(settings.log_level, f"pid {os.getpid()}"))
            if settings.share_arrays:
                resources.enter_context(share_arrays())
            place = _find_place(rank, size, store, secret, join, settings, deadline, resources)
            communicator = _connect_at(place, settings, deadline)
            PROCESS_WORLD.communicator = communicator
            rename(f"rank {communicator.rank}")
            _log_start(communicator, settings)
            PROCESS_WORLD.forked = None
            number = communicator.transport.group.numbers[communicator.rank]
            _end_with_process(communicator, place.store, number, resources)
            if place.number is not None and (place.size or 0) > 1:
                resources.callback(leave, place.store, place.number, communicator.transport.group.generation)
            PROCESS_WORLD.resources = resources.pop_all()
        try:
            add_given(process_sets)
        except BaseException:
            PROCESS_WORLD.close(END_SECONDS)
            raise
        return communicator


def share_arrays(limit: int | None = None) -> SharedArrays:
    """From now on large NumPy arrays that this thread makes lie in memory that the other ranks of this host read
    directly. Not collective; to be called before `init`, on all ranks.

    limit  bytes of all such arrays of this process at a time, at least 1 MiB; arrays beyond it are ordinary ones. By
           default half of the machine's memory. Only what arrays need is taken

    Arrays of 64 KiB and more are born so, also results of arithmetic; calls on them of 64 KiB and more move each byte
    once. Any other array may be used beside them. The setting `share_arrays` does the same in `init`, until `shutdown`.

    A thread has the handler of NumPy's memory that its context has (NEP 49): one that is started later makes ordinary
    arrays, unless it calls this too. When the process forks, the arrays that there are become ordinary ones, with
    copies on write, in both processes; new ones of the parent are born shared. Arrays in a child are ordinary.

    Use the result as a context, or call its `close`, to end it; arrays that there are become ordinary ones. A world
    that began before the first call keeps its ways, and a warning is logged.

    Raises ConfigError on a system without memfd_create, without Numba (`ronde[jit]`), or if the memory cannot be
    mapped; TypeError or ValueError for a bad limit, or another one than that of the arena that the process has.
    """
    late = is_initialized() and not is_sharing()
    shared = begin_sharing(limit)
    if late:
        log.warning("share_arrays: to be called before init; the calls of this world go their ways as without it")
    return shared


def _log_start(communicator: Communicator, settings: Config) -> None:
    """Log the place of this rank, and the settings that are not the defaults."""
    here = communicator.members[communicator.rank]
    log.info(
        "rank %d of %d on host %s, process %d, transport %s",
        communicator.rank,
        communicator.size,
        here.host,
        os.getpid(),
        communicator.transport.name,
    )
    if communicator.rank == 0:
        for text in unknown_variables(os.environ):
            log.warning("no setting is called %s", text)
    for name, source in settings.sources.items():
        log.debug("setting %s=%r from %s", name, getattr(settings, name), source)


def _existing_world(
    settings: Config,
    names: Iterable[str],
    rank: int | None,
    size: int | None,
    process_sets: Iterable[ProcessSet | Sequence[int]],
) -> Communicator:
    """The world, if the settings of these names and the other arguments agree with it. Raises RuntimeError."""
    communicator = world()
    found = [(name, settings.value(name), communicator.config.value(name)) for name in names]
    found += [(name, given, getattr(communicator, name)) for name, given in {"rank": rank, "size": size}.items()]
    differing = [f"{name}={given!r} (the world has {has!r})" for name, given, has in found if given not in (None, has)]
    for item in process_sets:
        process_set = item if isinstance(item, ProcessSet) else ProcessSet(item)
        if process_set.process_set_id is None:
            differing.append(f"{process_set!r} (the world does not have it: use add_process_set)")
    if differing:
        text = ", ".join(differing)
        raise RuntimeError(f"init: there is a world communicator already, and it differs: {text}; call shutdown first")
    return communicator


def connect(group: Group, config: Config, deadline: float) -> Communicator:
    """The communicator of a group, over the transport that the settings name. Collective.

    group     the ranks and their store
    config    the settings
    deadline  the time of time.monotonic() at which connecting gives up

    Raises as `init` does. After an error nothing stays open.
    """
    if group.size > 1 and config.transport in _COMPILING:
        # The ranks have met, and those that have the code wait for this one: it goes on without it in time
        now = time.monotonic()
        machine_code(config.compiled, now + min(WAIT_SECONDS, (deadline - now) / 2))
    with contextlib.ExitStack() as made:
        standby = _standby(config)
        made.callback(standby.close)
        communicator = _connected(group, config, deadline, standby)
        made.pop_all()
        return communicator


def _connected(group: Group, config: Config, deadline: float, standby: Standby) -> Communicator:
    """Do the same as `connect`. `standby` belongs to the communicator then, after an error to the caller."""
    communicator = Communicator.connect(group, config, deadline, standby)
    if config.timeline:
        try:
            communicator.start_timeline(config.timeline, config.timeline_style)
        except OSError as error:
            communicator.abort(f"the timeline cannot be written: {error}")
            communicator.close()
            raise ConfigError(f"timeline={config.timeline!r}: cannot be written: {error}") from error
    return communicator


def _settings(config: Config | Mapping[str, Any] | None, transport: str | None) -> Config:
    """The settings of `init`'s arguments, the environment and the file. Raises ConfigError."""
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


@dataclass(frozen=True)
class _Place:
    """The place of this process in a job.

    number  its rank; of a newcomer, the number by which the launcher knows it, None without one
    size    the number of ranks; None for a newcomer
    store   the store of the job
    secret  the secret of the job
    """

    number: int | None
    size: int | None
    store: Store
    secret: bytes = field(repr=False)


def _find_place(
    rank: int | None,
    size: int | None,
    store: Store | str | None,
    secret: bytes,
    newcomer: bool | None,
    settings: Config,
    deadline: float,
    resources: contextlib.ExitStack,
) -> _Place:
    """The place of this process. `resources` gets what must be closed later. Raises ConfigError, RendezvousError."""
    given = {"rank": rank, "size": size, "store": store}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return _place_by_launcher(newcomer, settings, deadline, resources)
    if newcomer:
        if store is None or rank is not None or size is not None:
            raise ConfigError(f"init: join=True, rank={rank!r}, size={size!r}: give a newcomer the store alone")
    elif missing:
        raise ConfigError(f"init: {', '.join(missing)} missing; rank, size and store must be given together")
    else:
        rank, size = _whole("rank", rank, 0), _whole("size", size, 1)
        if rank >= size:
            raise ConfigError(f"init: rank={rank}: must be less than size={size}")
    if isinstance(store, str):
        store = open_store(store, secret, deadline, tls=settings.load_tls(), size=size or 1)
        resources.callback(store.close)
    elif not isinstance(store, Store):
        raise ConfigError(f"init: store={store!r}: must be a Store, or the URL of one")
    return _Place(rank, size, store, secret)


def _whole(name: str, value: object, least: int) -> int:
    """An argument as an integer: one of NumPy is taken, a text such as os.environ["RANK"] is not. Raises
    ConfigError."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or operator.index(value) < least:
        raise ConfigError(f"init: {name}={value!r}: must be an integer, {least} or more")
    return operator.index(value)


def _place_by_launcher(
    newcomer: bool | None, settings: Config, deadline: float, resources: contextlib.ExitStack
) -> _Place:
    launch = launchers.find(os.environ)
    joins = launch is not None and launch.joins
    if newcomer is not None and newcomer != joins:
        says = "nothing of it" if launch is None else str(launch)
        raise ConfigError(
            f"init: join={newcomer}, but the launcher says {says}; give the store in which the ranks met, or set "
            f"RONDE_JOIN, RONDE_STORE and RONDE_SECRET for a newcomer alone"
        )
    if launch is None:
        launchers.check_rank_is_told(os.environ)
        return _Place(0, 1, MemoryStore(), b"")
    launchers.check_not_taken(launch, os.environ)
    store, secret = launchers.meet(
        launch,
        history=PROCESS_WORLD.meetings[launch.job],
        interface=settings.transport_options("tcp").interface,
        deadline=deadline,
        tls=settings.load_tls(),
        resources=resources,
    )
    resources.callback(launchers.mark_as_rank(launch, os.environ))
    return _Place(launch.rank, None if joins else launch.size, store, secret)


def _connect_at(place: _Place, settings: Config, deadline: float) -> Communicator:
    """Connect this process to the other ranks. Collective."""
    if place.size is None:
        return wait_to_join(place.store, number=place.number, secret=place.secret, config=settings)
    assert place.number is not None
    if place.size > 1:
        deadline += _prepare(settings, 0.0)
    group = join(
        place.number,
        place.size,
        place.store,
        secret=place.secret,
        generation=None,
        deadline=deadline,
        terms=settings.terms,
    )
    if group.generation:
        withdraw_left_out(place.store, place.number)
    failure = None
    if not group.original_ranks:
        try:
            return connect(group, settings, deadline)
        except TransportError as error:
            if not membership.is_elastic(place.store):
                raise
            failure = error
    return _go_on(group, failure, settings)


def _go_on(group: Group, failure: RondeError | None, settings: Config) -> Communicator:
    """The first world of an elastic job without the ranks that were lost before it was connected. Collective.

    failure  why the group could not be connected; None if it was not tried
    """
    with contextlib.ExitStack() as made:
        standby = _standby(settings)
        made.callback(standby.close)

        def connected(group: Group) -> Communicator:
            return _connected(group, settings, time.monotonic() + CONNECT_SECONDS, standby)

        communicator = membership.regroup(
            group,
            failure,
            settings.connect_timeout,
            settings.heartbeat,
            terms=settings.terms,
            standby=standby,
            leave=lambda: None,
            connect=connected,
        )
        if communicator is None:
            raise RendezvousError("init: this rank was asked to leave before the first world began", rank=group.rank)
        made.pop_all()
        return communicator


def _standby(settings: Config) -> Standby:
    return Standby(settings.standbys, settings.transport_options("tcp").interface, settings.load_tls())


def wait_to_join(
    store: Store,
    *,
    number: int | None = None,
    secret: bytes = b"",
    config: Config,
    timeout: float | None = None,
) -> Communicator:
    """Join a world that runs, as a newcomer: wait until its ranks admit this process in `Communicator.regroup`, and
    connect. Returns the communicator, in which this process has one of the highest ranks.

    store    the store in which the ranks met; it must stay open as long as the communicator
    number   the number by which the launcher knows this process, other than that of any process before; by default the
             ranks give it one
    secret   the secret of the job, at least 16 bytes; empty if the ranks have none
    config   the settings: version and transport must be those of the ranks
    timeout  seconds until it is admitted; by default the setting `join_timeout`

    Raises DeadlineExceeded if it is not admitted, ConfigError if it does not fit, RendezvousError if the store cannot
    be reached; the errors of `init` if it was admitted several times and could not connect. Nothing stays open then,
    and the ranks go on without it.
    """
    check_secret(secret)
    _prepare(config, WAIT_SECONDS)
    seconds = config.join_timeout if timeout is None else timeout

    def connected(group: Group) -> Communicator:
        return connect(group, config, time.monotonic() + min(config.connect_timeout, CONNECT_SECONDS))

    deadline = time.monotonic() + seconds
    return membership.wait_to_join(store, number, config.terms, secret, deadline, connected)


def _prepare(settings: Config, seconds: float) -> float:
    """Have the interpreter compiled if that has not been done on this machine, and wait for so many seconds until it is
    there; with compiled="on", for as long as it takes. Returns the seconds that this took. Raises ConfigError."""
    began = time.monotonic()
    if settings.transport in _COMPILING:
        machine_code(settings.compiled, began + seconds)
    return time.monotonic() - began


def _end_with_process(communicator: Communicator, store: Store, rank: int, resources: contextlib.ExitStack) -> None:
    """Close the world if this process ends without `shutdown`. An exception that ends it is reported to the launcher
    and the other ranks.

    communicator  the world
    store         the store that the launcher reads
    rank          this process's number, as the launcher knows it
    """

    def abort(error: BaseException) -> None:
        if PROCESS_WORLD.communicator is communicator:  # a forked child has another world, or none
            report_exit(store, rank, error)
            communicator.current.abort(described(error))

    def close() -> None:
        with contextlib.suppress(RondeError), PROCESS_WORLD.lock:  # the process ends: no caller is left to handle it
            PROCESS_WORLD.close(END_SECONDS, communicator.config.timeout)

    end_with_process(close, abort, resources)
