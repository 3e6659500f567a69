"""`Synchronizer`: the messages between workers and servers, and ranks that come and go."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar
from zipfile import BadZipFile

import numpy as np

from collectives.arrays import is_small_float
from collectives.communicator import Communicator
from collectives.numeric import NUMBERS, is_integer, master_dtype
from collectives.operations import Status, Work
from collectives.parameter_server.shard import Parameter, Rules, Shard
from collectives.parameter_server.shards import assigned, shard_of
from collectives.trees import Array, leaves, rebuilt
from collectives.world_communicator import world
from transports.errors import DeadlineExceeded, MismatchError, RondeError, TransportError

Role = Literal["worker", "server"]
T = TypeVar("T")

_REQUEST: Final = 0
"""Tag of requests: float64 of kind, number of the parameter, version, weight. A change follows with the next tag."""
_DELTA: Final = 1
_REPLY: Final = 2
"""Tag of replies about parameter 0: the version as a float64, then the value. The others have the tags after it."""
_PUSH, _PULL, _FINISH = 0.0, 1.0, 2.0


class _Row(NamedTuple):
    """A rank's part in `start`."""

    role: Role | None
    running: bool
    finished: bool
    held: list[int]
    terms: dict[str, str]


class _Pull(NamedTuple):
    """A pull that waits at a server for a newer version."""

    worker: int
    name: str
    newer_than: int


class Synchronizer:
    """Some ranks, the servers, hold the parameters; workers push changes and pull values, each at its own pace.

        sync = Synchronizer(params, servers=1)
        sync.start()                                    # all ranks; it decides who is a server
        if sync.role == "worker":
            for batch in batches:                       # workers need not make equally many steps
                params = sync.pull_all()
                sync.push_all(deltas(params, batch))    # for example -0.1 * gradient
        params = sync.finish()                          # servers serve in here until all workers have finished

    A server adds the changes of a *round* to a parameter: their mean, weighted by `weight`. By default each change is a
    round (asynchronous SGD). With a quorum a round is the changes of several workers.

    params      tree of arrays of floats in dicts, lists and tuples; the same on all ranks but for the numbers, of which
                those of rank 0 count. A parameter's name is its path in the tree, such as "layers/0/bias"
    comm        communicator of servers and workers, by default the world
    servers     number of shards, and of the ranks that become servers where `role` does not say so: the last ones. A
                parameter belongs to a shard by a hash of its name
    role        "server", "worker", or None: decided by `start`. A newcomer with None becomes a server if servers lack
    quorum      workers whose changes make a round; fewer if fewer workers are training
    grace       seconds that a round waits for further workers after its quorum
    staleness   a change is dropped if the parameter has had more than so many rounds since the worker pulled it; None:
                never
    snapshots   folder for snapshots of the servers, the same one on all hosts on which servers may run. A job that
                starts goes on from the snapshots in it. None: no snapshots, so the loss of a server ends the job
    every       updates of a shard's parameters from one snapshot to the next
    elastic     True: when ranks are lost, the calls regroup the others, with newcomers that wait, and go on. `comm` is
                the world then. A rank that is asked to leave ends its process by SystemExit(0)
    timeout     seconds that a worker waits for an answer, and that the first waits in `finish` for the last; by
                default the setting `timeout`

    versions    for each name the version that this worker pulled last; 0 before the first pull. A version is a number
                that grows with each round of the parameter, and each time that ranks are lost
    role        "worker" or "server" after `start`

    Servers keep float32 (float64 for float64 and long double). A worker that is lost costs its changes that have not
    been applied. With it, or with a server, are lost the unfinished rounds, and changes that the others pushed and that
    have not arrived: if each worker waits for a newer version after each push, one change of each with all workers as
    quorum, else two.
    A lost server costs at most `every` updates of each of its shards beside that: its shards go to a newcomer or to the
    servers that are left, from their snapshots.

    Calls of one instance come from one thread. Sources: Dean et al. 2012, "Large Scale Distributed Deep Networks",
    NeurIPS; Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI.
    """

    def __init__(
        self,
        params: Any,
        *,
        comm: Communicator | None = None,
        servers: int = 1,
        role: Role | None = None,
        quorum: int = 1,
        grace: float = 0.0,
        staleness: int | None = None,
        snapshots: str | os.PathLike[str] | None = None,
        every: int = 100,
        elastic: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Copies the parameters. Sends nothing.

        Raises TypeError for a leaf that is no array of floats, and TypeError or ValueError for a bad argument.
        """
        for argument, value, low in (
            ("servers", servers, 1),
            ("quorum", quorum, 1),
            ("every", every, 1),
            ("staleness", 0 if staleness is None else staleness, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{argument}={value!r}: must be an int")
            if value < low:
                raise ValueError(f"{argument}={value}: must be {low} or more")
        if not isinstance(grace, NUMBERS) or not 0 <= grace < math.inf:
            raise ValueError(f"grace={grace!r}: must be seconds, 0 or more")
        if role not in (None, "worker", "server"):
            raise ValueError(f"role={role!r}: must be 'worker', 'server' or None")
        self._tree = params
        self._initial: dict[str, Array] = {}
        self._types: dict[str, np.dtype[Any]] = {}
        for name, leaf in leaves(params, kinds=(np.ndarray, np.generic)):
            array = np.asarray(leaf)
            if array.dtype.kind != "f" and not is_small_float(array.dtype):
                raise TypeError(f"params[{name!r}]: is of {array.dtype}; only floats have changes: leave it out")
            self._initial[name], self._types[name] = np.array(array, master_dtype(array.dtype)), array.dtype
        if not self._initial:
            raise ValueError("params: has no arrays")
        self._names = list(self._initial)
        self._number = {name: number for number, name in enumerate(self._names)}
        self._given = comm
        self._servers, self._rules, self._every = servers, Rules(quorum, grace, staleness), every
        self._folder = None if snapshots is None else Path(snapshots)
        self._elastic, self._timeout = elastic, timeout
        self.role = role
        self.versions = dict.fromkeys(self._names, 0)

        self._running = False
        """True from the first `start` on."""
        self._finished = False
        self._channel: Communicator | None = None
        """A communicator of the same ranks, for messages that cannot be mistaken for those of the program."""
        self._server_of: list[int] = []
        """The rank of each shard's server."""
        self._shards: dict[int, Shard] = {}
        """The shards of this server."""
        self._active = frozenset[int]()
        """On servers: the workers that have not finished."""
        self._waiting: list[_Pull] = []
        self._outgoing: list[Work[Any]] = []
        self._pushes: dict[str, list[Work[Any]]] = {}
        self._dropped = 0

    @property
    def comm(self) -> Communicator:
        """The communicator of servers and workers. Raises NotInitializedError before `init` if none was given."""
        return (world() if self._given is None else self._given).current

    @property
    def dropped(self) -> int:
        """Changes that this server has dropped because of `staleness`."""
        return self._dropped

    def start(self, comm: Communicator | None = None) -> None:
        """Decide roles, divide the shards among the servers, and restore those that no server has. Collective.

        comm   the new communicator, after `regroup` or `shrink`; by default the same

        Call it after the constructor and, without `elastic`, after each regroup.

        Raises MismatchError if ranks have other arguments, ValueError if servers or workers lack or a snapshot is of
        other parameters, RuntimeError on all ranks if a server cannot read or write its snapshot; the errors of a
        communicator.
        """
        if comm is not None:
            self._given = comm
        try:
            self._start()
        except TransportError:
            if not self._recovers():
                raise
            self._regroup()

    def push(self, name: str, delta: Any, weight: float = 1.0) -> None:
        """Send a change of a parameter to its server, which adds it in a round. A worker's call; it does not wait for
        the server, but for the previous change of the same parameter to have left.

        name    path of the parameter in the tree
        delta   array of the parameter's shape; it is copied
        weight  weight in the mean of the round, more than 0; without effect in rounds of one change

        The change counts as computed on the version that was pulled last. It is lost if ranks are lost before it
        arrives.

        Raises KeyError for an unknown name, ValueError or TypeError for a bad shape, dtype or weight,
        FloatingPointError for a change that is not finite: nothing is sent then. RuntimeError on a server, or before
        `start`. The errors of a communicator.
        """
        self._check_worker("push")
        change = self._checked(name, delta, weight)
        try:
            self._send(name, change, weight)
        except TransportError:
            if not self._recovers():
                raise
            self._regroup()

    def push_all(self, deltas: Any, weight: float = 1.0) -> None:
        """`push` for each array of a tree, which may lack some parameters. Raises as `push`; what is bad is found
        before anything is sent."""
        self._check_worker("push_all")
        pairs = leaves(deltas, kinds=(np.ndarray, np.generic))
        changes = {name: self._checked(name, np.asarray(delta), weight) for name, delta in pairs}
        try:
            for name, change in changes.items():
                self._send(name, change, weight)
        except TransportError:
            if not self._recovers():
                raise
            self._regroup()

    def pull(self, name: str, *, newer_than: int | None = None) -> Array:
        """Return a parameter's value, of its shape and dtype, after all changes that this worker pushed before. A
        worker's call.

        newer_than   wait until the version is higher than this, such as `versions[name]`; or until ranks are lost:
                     versions grow then too

        Raises KeyError for an unknown name, TypeError for a version that is no int: nothing is sent then. RuntimeError
        on a server, or before `start`. DeadlineExceeded after `timeout`, with the communicator aborted; the errors of a
        communicator.
        """
        self._check_worker("pull")
        self._check_name(name)
        if newer_than is not None and not is_integer(newer_than):
            raise TypeError(f"newer_than={newer_than!r}: must be an int, such as versions[{name!r}]")
        return self._pull([name], newer_than)[name]

    def pull_all(self) -> Any:
        """`pull` for all parameters at once: a tree. Parameters of different names may be of different moments."""
        self._check_worker("pull_all")
        return self._as_tree(self._pull(self._names, None))

    def finish(self) -> Any:
        """End the training. Collective; returns the final parameters, a tree, the same on all ranks.

        A worker tells that it has no more changes, and waits for the others. A server serves until all workers have
        finished, adds the rounds that are left, and writes its snapshots.

        Raises OSError on a server that cannot write a snapshot, after aborting the communicator; RuntimeError before
        `start`; the errors of a communicator.
        """
        self._check_started("finish")
        return self._as_tree(self._recovering(self._finish))

    # ---- workers

    def _check_started(self, method: str) -> None:
        if not self._running:
            raise RuntimeError(f"{method}: call start first")

    def _check_worker(self, method: str) -> None:
        self._check_started(method)
        if self.role != "worker" or self._finished:
            state = "has finished" if self._finished else "is a server, whose only call is finish"
            raise RuntimeError(f"{method}: rank {self.comm.rank} {state}")

    def _check_name(self, name: str) -> None:
        if name not in self._number:
            raise KeyError(f"name={name!r}: must be one of {', '.join(self._names[:8])}")

    def _checked(self, name: str, delta: Any, weight: float) -> Array:
        """The change as the servers take it: an array of its own. Raises as `push`."""
        self._check_name(name)
        if not 0 < weight < math.inf:
            raise ValueError(f"weight={weight!r}: must be a finite number above 0")
        form, given = self._initial[name], np.asarray(delta)
        if given.dtype.kind not in "fiub" and not is_small_float(given.dtype):
            raise TypeError(f"delta: is of {given.dtype}, must be of real numbers")
        change = np.array(given, form.dtype)
        if change.shape != form.shape:
            raise ValueError(f"delta: is of shape {change.shape}, must be {form.shape}, that of {name!r}")
        if not np.isfinite(change).all():
            raise FloatingPointError(f"delta: the change of {name!r} is not finite")
        return change

    def _send(self, name: str, change: Array, weight: float) -> None:
        for work in self._pushes.pop(name, []):
            work.wait()
        channel, server = self._open(), self._server(name)
        request = np.array([_PUSH, self._number[name], self.versions[name], weight])
        self._pushes[name] = [
            channel.send_async(request, server, tag=_REQUEST, timeout=self._timeout),
            channel.send_async(change, server, tag=_DELTA, timeout=self._timeout),
        ]

    def _pull(self, names: Iterable[str], newer_than: int | None) -> dict[str, Array]:
        return self._recovering(lambda: self._exchange(names, -1 if newer_than is None else newer_than))

    def _exchange(self, names: Iterable[str], newer_than: int) -> dict[str, Array]:
        channel, found, works = self._open(), {}, []
        for name in names:
            number, server = self._number[name], self._server(name)
            version, value = np.empty(1), np.empty_like(self._initial[name])
            replies = [
                channel.recv_async(array, server, tag=_REPLY + number, timeout=self._timeout)
                for array in (version, value)
            ]
            request = np.array([_PULL, number, newer_than, 0.0])
            works.append([channel.send_async(request, server, tag=_REQUEST, timeout=self._timeout), *replies])
            found[name] = (version, value)
        for group in works:
            for work in group:
                work.wait()
        self.versions.update({name: int(version[0]) for name, (version, _) in found.items()})
        return {name: value.astype(self._types[name], copy=False) for name, (_, value) in found.items()}

    def _server(self, name: str) -> int:
        return self._server_of[shard_of(name, self._servers)]

    # ---- servers

    def _serve(self) -> None:
        """Answer the workers until all of them have finished."""
        channel = self._open()
        while self._active:
            parameters = [parameter for shard in self._shards.values() for parameter in shard.parameters.values()]
            due = min((parameter.due for parameter in parameters), default=math.inf)
            patience = None if due == math.inf else max(due - time.monotonic(), 1e-6)
            try:
                status = channel.probe(tag=_REQUEST, timeout=patience)
            except DeadlineExceeded:
                if channel.failure is not None:
                    raise
            else:
                self._take(channel, status)
            self._decide()
            self._answer(channel)

    def _take(self, channel: Communicator, status: Status) -> None:
        """Receive a request, and note what it asks for."""
        request, worker = np.empty(4), status.source
        channel.recv(request, worker, tag=_REQUEST, timeout=self._timeout)
        kind, version, weight = request[0], int(request[2]), float(request[3])
        if kind == _FINISH:
            self._active -= {worker}
            return
        name = self._names[int(request[1])]
        if kind == _PULL:
            self._waiting.append(_Pull(worker, name, version))
            return
        delta = np.empty_like(self._initial[name])
        channel.recv(delta, worker, tag=_DELTA, timeout=self._timeout)
        parameter = self._shards[shard_of(name, self._servers)].parameters[name]
        if not parameter.add(worker, delta, weight, version, self._rules.staleness):
            self._dropped += 1

    def _decide(self) -> None:
        """Apply the rounds that are complete."""
        now = time.monotonic()
        for shard in self._shards.values():
            for parameter in shard.parameters.values():
                if parameter.decide(self._active, self._rules, now):
                    shard.updated()

    def _answer(self, channel: Communicator) -> None:
        """Reply to the pulls that need not wait longer. Sends are not waited for: a slow worker holds up nobody."""
        self._outgoing = [work for work in self._outgoing if not work.test()]
        waiting, self._waiting = self._waiting, []
        for pull in waiting:
            parameter = self._shards[shard_of(pull.name, self._servers)].parameters[pull.name]
            if parameter.version <= pull.newer_than:
                self._waiting.append(pull)
                continue
            tag = _REPLY + self._number[pull.name]
            for array in (np.array([float(parameter.version)]), parameter.value):
                self._outgoing.append(channel.send_async(array, pull.worker, tag=tag, timeout=self._timeout))

    def _finish(self) -> dict[str, Array]:
        channel = self._open()
        if self.role == "server":
            try:
                self._serve()
                self._decide()
                for work in self._outgoing:
                    work.wait()
                for shard in self._shards.values():
                    shard.save()
            except OSError as error:
                if isinstance(error, RondeError):
                    raise
                self.comm.abort(f"a server cannot write its snapshot: {error}")
                raise
        elif not self._finished:
            for works in self._pushes.values():
                for work in works:
                    work.wait()
            self._pushes.clear()
            self._tell_finished(channel)
        self._finished = True
        values = {}
        for name in self._names:
            mine = self._shards.get(shard_of(name, self._servers))
            held = self._initial[name] if mine is None else mine.parameters[name].value
            value = channel.broadcast(held, self._server(name), timeout=self._timeout)
            values[name] = np.asarray(value).astype(self._types[name], copy=False)
        # A rank that is past the barrier need not come back: all others have the final values.
        channel.barrier(timeout=self._timeout)
        return values

    def _tell_finished(self, channel: Communicator) -> None:
        for server in sorted(set(self._server_of)):
            channel.send(np.array([_FINISH, 0.0, 0.0, 0.0]), server, tag=_REQUEST, timeout=self._timeout)

    # ---- ranks that come and go

    def _open(self) -> Communicator:
        failure = self.comm.failure
        if failure is not None:
            raise copy.copy(failure)
        assert self._channel is not None
        return self._channel

    def _recovers(self) -> bool:
        """True if an error that was raised is to be answered by a regroup."""
        return self._elastic and self.comm.failure is not None

    def _recovering(self, call: Callable[[], T]) -> T:
        """The result of a call, which is made again after each regroup."""
        while True:
            try:
                return call()
            except TransportError:
                if not self._recovers():
                    raise
            self._regroup()

    def _regroup(self) -> None:
        """Go on with the ranks that are left and those that have come."""
        while True:
            comm = self.comm.regroup(timeout=self._timeout)
            if comm is None:
                raise SystemExit(0)
            try:
                return self._start()
            except TransportError:
                if comm.failure is None:
                    raise

    def _start(self) -> None:
        comm = self.comm
        self._outgoing.clear()
        self._pushes.clear()
        self._waiting.clear()
        mine = _Row(self.role, self._running, self._finished, sorted(self._shards), self._terms())
        rows = comm.allgather_object(mine, timeout=self._timeout)
        for rank, row in enumerate(rows):
            for key, value in row.terms.items():
                if value != rows[0].terms[key]:
                    raise MismatchError(f"{key}: rank {rank} has {value}, rank 0 has {rows[0].terms[key]}", rank=rank)
        roles = _roles(rows, self._servers)
        self.role = roles[comm.rank]
        held = {rank: rows[rank].held for rank, role in enumerate(roles) if role == "server"}
        running = any(row.running for row in rows)
        self._server_of = assigned(self._servers, held)
        self._active = frozenset(r for r, role in enumerate(roles) if role == "worker" and not rows[r].finished)
        if not running:
            for name in self._names:
                self._initial[name] = np.asarray(comm.broadcast(self._initial[name], 0, timeout=self._timeout))
        self._restore(comm, running)
        if self._channel is not None:
            self._channel.close()
        self._channel = comm.split(0, timeout=self._timeout)
        self._running = True

    def _restore(self, comm: Communicator, running: bool) -> None:
        """Give up the rounds of this server's shards, and get those that fell to it. Raises RuntimeError on all ranks
        if one of them cannot."""
        trouble = ""
        for number, server in enumerate(self._server_of):
            if server != comm.rank:
                continue
            try:
                if number in self._shards:
                    self._shards[number].interrupt()
                else:
                    self._shards[number] = self._shard(number, running)
            except (OSError, ValueError, BadZipFile) as error:
                trouble = f"rank {comm.rank} cannot restore or save shard {number}: {error}"
        troubles = [text for text in comm.allgather_object(trouble, timeout=self._timeout) if text]
        if troubles:
            raise RuntimeError("; ".join(troubles))

    def _shard(self, number: int, running: bool) -> Shard:
        """A shard from its snapshot; from the initial values in a job without one that starts. Raises OSError,
        ValueError."""
        path = None if self._folder is None else self._folder / f"shard-{number}-of-{self._servers}.npz"
        forms = {name: value for name, value in self._initial.items() if shard_of(name, self._servers) == number}
        if path is None and running:
            raise ValueError("its server was lost, and there are no snapshots (snapshots=)")
        if path is not None and (running or path.exists()):
            return Shard.restored(forms, path, self._every)
        shard = Shard({name: Parameter(value) for name, value in forms.items()}, path, self._every)
        shard.save()
        return shard

    def _terms(self) -> dict[str, str]:
        """The arguments that are the same on all ranks."""
        return {
            "servers": str(self._servers),
            "quorum, grace, staleness": str(self._rules),
            "snapshots, every": f"{self._folder is not None}, {self._every}",
            "params": ", ".join(f"{n} {self._types[n]} {value.shape}" for n, value in self._initial.items()),
        }

    def _as_tree(self, values: dict[str, Array]) -> Any:
        return rebuilt(self._tree, (values[name] for name in self._names))


def _roles(rows: list[_Row], servers: int) -> list[Role]:
    """The role of each rank: that which it has, or else server if servers lack, the last ranks first."""
    lacking = servers - sum(row.role == "server" for row in rows)
    roles: list[Role] = []
    for row in reversed(rows):
        if row.role is not None:
            roles.append(row.role)
        else:
            roles.append("server" if lacking > 0 else "worker")
            lacking -= 1
    roles.reverse()
    for role in ("server", "worker"):
        if role not in roles:
            raise ValueError(f"role: none of {len(rows)} ranks is a {role}")
    return roles
