"""The actors of a job: they start, answer calls, are replaced and end together."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RaySystemError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from collectives.launch import (
    REPORT_SECONDS,
    ElasticOutcomes,
    Failure,
    GuestJob,
    Outcomes,
    Success,
    WorkerLost,
    load,
    own_settings,
    seconds_of,
    unreadable,
)
from frontends.ray.placement import Demand, Placement
from frontends.ray.worker import Worker
from transports.errors import DeadlineExceeded

log: Final = logging.getLogger("ronde.ray")

CLOSE_SECONDS: Final = 10.0
"""Time for the ranks to leave the world by themselves, and then for Ray to end their processes."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Ray colours its tracebacks."""


@dataclass(frozen=True)
class RaySettings:
    """Limits of time.

    timeout_s                   seconds for the workers to start and to connect
    placement_group_timeout_s   seconds for Ray to reserve their resources; in a placement group whose bundles are used,
                                for these to be free, with the start of the workers
    """

    timeout_s: float = 300.0
    placement_group_timeout_s: float = 100.0

    def __post_init__(self) -> None:
        for name in ("timeout_s", "placement_group_timeout_s"):
            object.__setattr__(self, name, seconds_of(name, getattr(self, name)))


@dataclass
class Executable:
    """The object that each rank makes when it has connected: `cls(*args, **kwargs)`; none if cls is None."""

    cls: Callable[..., Any] | None
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None

    def words(self) -> tuple[Callable[..., Any] | None, list[Any], dict[str, Any]]:
        """The arguments of Worker.connect."""
        return self.cls, list(self.args or ()), dict(self.kwargs or {})


@dataclass(eq=False)
class _Rank:
    """An actor. `number`: its rank at the start; a replacement has one that no other had."""

    number: int
    bundle: int
    actor: Any
    name: str


@dataclass
class _Crew:
    """All that a replacement needs. `made`: number of actors of the job so far."""

    group: Any
    job: GuestJob
    executable: Executable
    made: int


class Ranks:
    """The ranks of a job as actors of Ray. `start`, then calls, and `end`, which may be followed by another `start`.

    demand       the workers that are wanted
    settings     limits of time
    use_current  True: inside a placement group, use its bundles
    bounds       smallest and largest number of ranks, if they may come and go
    """

    def __init__(
        self, demand: Demand, settings: RaySettings, *, use_current: bool, bounds: tuple[int, int] | None = None
    ) -> None:
        self._demand = demand
        self._settings = settings
        self._use_current = use_current
        self._bounds = bounds
        self.lost = 0
        """The number of ranks that were lost in `call_elastic`."""
        self._ranks: list[_Rank] = []
        self._submitting = threading.Lock()
        self._crew: _Crew | None = None
        self._resources = contextlib.ExitStack()

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def actors(self) -> list[Any]:
        """The actors, rank 0 first. Raises RuntimeError before `start`."""
        if not self._ranks:
            raise RuntimeError("the executor has no ranks: call start first")
        return [rank.actor for rank in self._ranks]

    def start(self, executable: Executable, variables: Mapping[str, str]) -> None:
        """Start the actors, all or none, and connect them. Raises as RayExecutor.start; nothing is left then."""
        settings = self._settings
        try:
            placement = Placement(self._demand, settings.placement_group_timeout_s, use_current=self._use_current)
            self._resources.callback(placement.close)
            job = self._resources.enter_context(GuestJob({**own_settings(), **variables}))
            self._ranks = [
                _Rank(number, bundle, self._actor(placement.group, number, bundle), f"node {place.address}")
                for number, (bundle, place) in enumerate(zip(placement.bundles, placement.places, strict=True))
            ]
            self._crew = _Crew(placement.group, job, executable, len(self._ranks))
            until = time.monotonic() + settings.timeout_s
            pids = self._pids(placement, until)
            for rank, pid in zip(self._ranks, pids, strict=True):
                rank.name += f", pid {pid}"
            address = placement.places[0].address
            torch = self.collect([self.actors[0].attempt.remote("free_address", address)], until)[0]
            seats = job.seats(placement.places, torch)
            if self._bounds is not None:
                job.let_ranks_come(*self._bounds)
            words = executable.words()
            pairs = zip(self.actors, seats, strict=True)
            self.collect([actor.attempt.remote("connect", seat, *words) for actor, seat in pairs], until)
        except BaseException:
            self.end(wait=False)
            raise

    def _pids(self, placement: Placement, until: float) -> list[int]:
        """The processes of the actors, once they have started. Raises as `start`."""
        references = [actor.attempt.remote("pid") for actor in self.actors]
        if not placement.is_current:
            return self.collect(references, until)
        seconds = min(self._settings.placement_group_timeout_s, self._settings.timeout_s)
        try:
            return self.collect(references, time.monotonic() + seconds)
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"Ray did not start {self._demand} in the current placement group within {seconds:g} s "
                f"(placement_group_timeout_s, timeout_s): this process or others may use its bundles "
                f"({placement.in_use()}); use_current_placement_group=False makes a group of its own"
            ) from None

    def _actor(self, group: Any, number: int, bundle: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        resources = self._demand.resources
        options = {"num_cpus": resources["CPU"], "num_gpus": resources["GPU"], "scheduling_strategy": strategy}
        return ray.remote(Worker).options(**options).remote(number)

    def submit(self, call: Callable[[Any], Any]) -> list[Any]:
        """Make a call to every actor; Ray's references, rank 0 first. The calls of several threads reach all actors in
        one order, so that the same calls meet. Raises RuntimeError before `start`."""
        with self._submitting:
            return [call(actor) for actor in self.actors]

    def collect(self, references: Sequence[Any], until: float | None = None) -> list[Any]:
        """The values of the ranks from 0 on. Raises the root cause; DeadlineExceeded that names the ranks."""
        rank_of = dict(zip(references, self._ranks, strict=False))
        waiting = list(references)
        outcomes = Outcomes((rank_of[reference].number for reference in references), REPORT_SECONDS)
        while not outcomes.decided:
            limit = min(outcomes.until, math.inf if until is None else until)
            left = None if limit == math.inf else max(0.0, limit - time.monotonic())
            done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
            if not done:
                break
            outcomes.add(_outcome(rank_of[done[0]], done[0]), time.monotonic())
        values = outcomes.values()
        if outcomes.waiting:
            late = ", ".join(map(str, sorted(outcomes.waiting)))
            raise DeadlineExceeded(f"start: not within timeout_s={self._settings.timeout_s:g} s: rank {late}")
        return values

    def call_elastic(self, submit: Callable[[Any], Any], losses: int | None) -> list[Any]:
        """Make a call on every rank, and on the replacements of ranks that are lost. The results of the ranks that
        there are in the end, in rank order.

        submit  makes the call to an actor, by `attempt`; Ray's reference
        losses  how many ranks may have been lost, with those of calls before; None for no limit

        Raises the root cause: WorkerLost beyond `losses`, and if the other ranks did not go on without the lost one;
        the error of a replacement that cannot join, if they wait for it.
        """
        crew = self._crew
        assert crew is not None
        running = dict(zip(self.submit(submit), self._ranks, strict=True))
        starting: dict[Any, _Rank] = {}
        joining: dict[Any, _Rank] = {}
        minimum = 1 if self._bounds is None else self._bounds[0]
        outcomes = ElasticOutcomes(self._ranks, None if losses is None else losses - self.lost, minimum)
        while not outcomes.decided:
            left = None if outcomes.until == math.inf else max(0.0, outcomes.until - time.monotonic())
            done, _ = ray.wait([*running, *starting, *joining], num_returns=1, timeout=left)
            if not done:
                break
            reference = done[0]
            rank = (running | starting | joining)[reference]
            outcome = _outcome(rank, reference)
            was_running, was_starting = reference in running, reference in starting
            for references in (running, starting, joining):
                references.pop(reference, None)
            if isinstance(outcome, Failure) and isinstance(outcome.error, WorkerLost):
                outcomes.lose(rank, outcome)
                self.lost += 1
                if rank in self._ranks:
                    self._ranks.remove(rank)
                actor = self._actor(crew.group, crew.made, rank.bundle)
                starting[actor.attempt.remote("place")] = _Rank(crew.made, rank.bundle, actor, rank.name)
                crew.made += 1
            elif was_running:
                outcomes.add(rank, outcome, time.monotonic())
            elif isinstance(outcome, Failure):
                ray.kill(rank.actor)
                if outcomes.refuse(outcome, len(starting) + len(joining), time.monotonic()):
                    log.warning("rank %d (%s) could not join: %s", rank.number, rank.name, outcome.error)
            elif was_starting:
                place, pid = outcome.value
                rank.name = f"node {place.address}, pid {pid}"
                seat = crew.job.newcomer(place)
                joining[rank.actor.attempt.remote("connect", seat, *crew.executable.words())] = rank
            else:
                running[submit(rank.actor)] = rank
                self._ranks.append(rank)
                outcomes.members.add(rank)
        for rank in [*starting.values(), *joining.values()]:
            ray.kill(rank.actor)
        values = outcomes.values()
        numbers = ray.get([actor.rank_now.remote() for actor in self.actors])
        ranks = self._ranks
        if None not in numbers:
            ranks = self._ranks = [
                rank for _, rank in sorted(zip(numbers, ranks, strict=True), key=lambda pair: pair[0])
            ]
        elif self.lost:
            self.end(wait=False)  # the function has closed the world; its first seats cannot make it again
        return [values[rank] for rank in ranks]

    def end(self, *, wait: bool) -> None:
        """End all ranks. `wait`: let them leave the world by themselves. Idempotent."""
        actors, self._ranks, self._crew = [rank.actor for rank in self._ranks], [], None
        resources, self._resources = self._resources, contextlib.ExitStack()
        with resources:
            if wait and actors:
                with contextlib.suppress(RayError, GetTimeoutError):
                    ray.get([actor.leave.remote() for actor in actors], timeout=CLOSE_SECONDS)
            for actor in actors:
                ray.kill(actor)
            if actors:  # a call to an actor fails once Ray has ended its process
                ray.wait([a.pid.remote() for a in actors], num_returns=len(actors), timeout=CLOSE_SECONDS)


def _outcome(rank: _Rank, reference: Any) -> Success | Failure:
    """The outcome of an `attempt`."""
    number = rank.number
    try:
        dumped, value = ray.get(reference)
    except RayTaskError as error:  # Ray's own: those of the rank come as a value
        given = isinstance(error.cause, RaySystemError)  # it could not even make the call
        part = "the call of rank {} cannot be unpickled" if given else "the result of rank {} cannot be pickled"
        return Failure(number, TypeError(f"{part.format(number)}: {error.cause}"), _plain(error))
    except RayActorError as error:
        reason = str(error).partition("\n")[0].rstrip(". ")
        return Failure(number, WorkerLost(f"rank {number} ({rank.name}) was lost: {reason}"))
    except RayError as error:
        return unreadable(number, _plain(error))
    return Success(number, value) if dumped is None else load(number, dumped)


def _plain(error: RayError) -> str:
    return _COLOURS.sub("", str(error)).rstrip()
