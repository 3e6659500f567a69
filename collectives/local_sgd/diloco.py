"""DiLoCo and local SGD: the schedule of outer rounds, and workers that come and go."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collectives.communicator import Communicator
from collectives.compression import Compressor, State, Uncompressed
from collectives.local_sgd.fragments import Fragments
from collectives.local_sgd.library import Library
from collectives.local_sgd.nesterov import Nesterov
from collectives.numeric import master_dtype
from collectives.operations import Work
from collectives.trees import Array
from collectives.world_communicator import world
from transports.errors import MismatchError, RondeError, TransportError


class _Flight(NamedTuple):
    """The allreduce of a fragment: the step at which its result is used, and the Work, whose result are the means."""

    due: int
    work: Work[list[Any]]


class _Row(NamedTuple):
    """A worker's part in `start`: see the attributes of DiLoCo of these names."""

    running: bool
    steps: int
    versions: list[int]
    final: list[int] | None
    terms: dict[str, str]


class DiLoCo:
    """Workers train by themselves, and combine their parameters every so many steps.

        outer = DiLoCo(params, every=100, fragments=4, delay=5, compression=Int8())
        params = outer.start(params)                # all workers begin alike, or where the others are
        while outer.steps < 10_000:
            ...                                     # one step of any optimizer, on this worker's data
            params = outer.step(params)
        params = outer.sync(params)                 # all workers have the same parameters

    Beside the local parameters there are global ones, the same on all workers. In an outer round, the mean of (global -
    local) over the workers is the gradient with which the outer optimizer changes the global parameters; then the local
    ones are set to them. The parameters are cut into fragments of equal size, whose rounds begin at different steps,
    and are combined in the background while training goes on.

    params       tree of arrays of floats, the same on all workers but for the numbers. NumPy arrays in dicts, lists and
                 tuples are changed in place; the classes of the frontends know the arrays of their frameworks
    comm         communicator of the workers, by default the world. A worker of several ranks has a communicator of its
                 own for its steps; then each of its ranks has a communicator here with one rank of each worker, by
                 `split`
    every        steps between two rounds of a fragment
    fragments    number of fragments, at most `every`. Every every / fragments steps one of them is sent
    delay        steps from the beginning of a fragment's round to the use of its result, less than `every`
    outer        the outer optimizer
    keep         share of the local parameters that stays when the global ones arrive, from 0 to less than 1. By default
                 0 without delay, and 0.5 with it: the steps since the beginning of the round are not lost
    compression  compressor for what is sent, with error feedback
    elastic      True: when workers are lost, `step` and `sync` regroup the others and go on with their local
                 parameters; newcomers are admitted, and workers leave, when a fragment is to be sent. `comm` is the
                 world then. A worker that leaves ends its process by SystemExit(0)
    timeout      seconds that a worker may be later than the others; by default the setting `timeout`
    name         prefix of the operations' names; instances on one communicator at the same time need different ones

    steps        calls of `step` since the beginning, the same on all workers; a newcomer has that of the others
    rounds       completed outer rounds of each fragment

    The global parameters, and the velocity of the outer optimizer, are float32 in the host's memory (float64 for
    float64 and long double). A worker that is lost costs the rounds that were under way: their steps are part of the
    next rounds.

    Sources: Douillard et al. 2023, "DiLoCo", arXiv 2311.08105; Douillard et al. 2025, "Streaming DiLoCo with
    overlapping communication", arXiv 2501.18512 (fragments, delay, `keep`, quantised gradients).
    """

    library: ClassVar[Library] = Library()

    def __init__(
        self,
        params: Any,
        *,
        comm: Communicator | None = None,
        every: int = 100,
        fragments: int = 1,
        delay: int = 0,
        outer: Nesterov | None = None,
        keep: float | None = None,
        compression: Compressor | None = None,
        elastic: bool = False,
        timeout: float | None = None,
        name: str = "diloco",
    ) -> None:
        """Copies the parameters. Sends nothing.

        Raises TypeError for a leaf that is no array of floats, and ValueError for a bad argument.
        """
        for argument, value, low, high in (
            ("every", every, 1, None),
            ("fragments", fragments, 1, every),
            ("delay", delay, 0, every - 1 if isinstance(every, int) else None),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{argument}={value!r}: must be an int")
            if value < low or (high is not None and value > high):
                allowed = f"{low} or more" if high is None else f"from {low} to {high}, as every={every}"
                raise ValueError(f"{argument}={value}: must be {allowed}")
        given: tuple[tuple[str, object, type], ...] = (
            ("keep", keep, Real),
            ("outer", outer, Nesterov),
            ("compression", compression, Compressor),
        )
        for argument, found, kind in given:
            if found is not None and not isinstance(found, kind):
                raise TypeError(f"{argument}={found!r}: must be a {kind.__name__}, or None")
        self._keep = (0.5 if delay else 0.0) if keep is None else keep
        if not 0 <= self._keep < 1:
            raise ValueError(f"keep={keep!r}: must be 0 or more and less than 1")
        self._given = comm
        self._every, self._delay = every, delay
        self._optimizer = Nesterov() if outer is None else outer
        self._compression = Uncompressed() if compression is None else compression
        self._elastic, self._timeout, self._name = elastic, timeout, name
        self._fragments = Fragments(self.library, params, fragments)
        self._global = [_wide(self.library.read(leaf)) for leaf in self._fragments.leaves(params)]
        self._velocity = [np.zeros_like(array) for array in self._global] if self._optimizer.momentum else None

        self.steps = 0
        self._running = False
        """True from the first `start` on."""
        self._versions = [0] * fragments
        """For each fragment 1 + its completed rounds; 0 before the first `start`. Workers with the same version have
        the same global parameters."""
        self._final: list[int] | None = None
        """The versions after a `sync` that is under way."""
        self._outdated = set[int]()
        """Fragments whose local parameters are yet to be replaced by the global ones."""
        self._flights: dict[int, _Flight] = {}
        self._errors = State()

    @property
    def comm(self) -> Communicator:
        """The communicator of the workers. Raises NotInitializedError before `init` if none was given."""
        return (world() if self._given is None else self._given).current

    @property
    def rounds(self) -> list[int]:
        return [max(0, version - 1) for version in self._versions]

    def start(self, params: Any, comm: Communicator | None = None) -> Any:
        """Give all workers the same global parameters, outer optimizer and step number. Collective. Returns the local
        parameters: unchanged where the global ones have not changed, otherwise the global ones.

        comm   the workers' new communicator, after `regroup` or `shrink` and `split`; by default the same

        At first all get the values of rank 0; a newcomer gets those of the others. After a loss, each fragment comes
        from a worker that has completed most rounds of it; rounds under way are given up. Call it after the
        constructor, before the first step.

        Raises MismatchError if the workers have different arguments or trees, and the errors of a communicator.
        """
        if comm is not None:
            self._given = comm
        try:
            return self._start(params)
        except TransportError:
            if not self._recovers():
                raise
        return self._regroup(params)

    def step(self, params: Any) -> Any:
        """Count a step of training, and do what is due: begin the round of a fragment, or end it. Returns the local
        parameters, which are changed when a round ends. All workers call it after each of their steps.

        It waits for the other workers only for a round that is to end. The first call is `start` too.

        Raises ValueError for a tree that is not the one of the constructor; FloatingPointError on all workers if the
        mean of a fragment is not finite, with its round given up; MismatchError; the errors of a communicator, at the
        latest one step after it has failed.
        """
        if not self._running:
            params = self.start(params)
            if self.steps:  # the others were running: the step was one on other parameters
                return params
        self.steps += 1
        try:
            self._raise_failure()
            due = [number for number, flight in self._flights.items() if flight.due <= self.steps]
            params = self._end(due, params, self._keep)
            number = self._next()
            if number is None:
                return params
            if not (self._elastic and self.comm.changes_pending()):
                self._begin(number, params)
                return params if self._delay else self._end([number], params, self._keep)
            params = self._end(list(self._flights), params, self._keep)
        except TransportError:
            if not self._recovers():
                raise
        return self._regroup(params)

    def sync(self, params: Any) -> Any:
        """End the rounds under way, then do a round of all fragments at once. Collective. Returns the global
        parameters, the same on all workers. Training may go on from them.

        Raises as `step`.
        """
        if not self._running:
            params = self.start(params)
        while True:
            try:
                self._raise_failure()
                params = self._end(list(self._flights), params, self._keep)
                if self._final is None:
                    self._final = [version + 1 for version in self._versions]
                behind = [n for n, version in enumerate(self._versions) if version < self._final[n]]
                for number in behind:
                    self._begin(number, params)
                params = self._end(behind, params, 0.0)
                # A worker that is past the barrier need not come back: all others have completed the same rounds.
                self.comm.barrier(timeout=self._timeout)
            except TransportError:
                if not self._recovers():
                    raise
                params = self._regroup(params)
            except FloatingPointError:
                self._final = None
                raise
            else:
                self._final = None
                return params

    def state_dict(self) -> dict[str, Any]:
        """The global parameters, the outer optimizer and the counts, for a checkpoint: a dict of copies, the same on
        all workers after `sync`."""
        names = [name for name, _, _ in self._fragments.forms]
        return {
            "steps": self.steps,
            "versions": list(self._versions),
            "global": {name: array.copy() for name, array in zip(names, self._global, strict=True)},
            "velocity": {name: array.copy() for name, array in zip(names, self._velocity or (), strict=False)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`. The next `start` gives it to the workers that have none or an older one, and
        returns the global parameters.

        Raises ValueError, with nothing changed, for a state of other parameters, fragments or momentum.
        """
        names = [name for name, _, _ in self._fragments.forms]
        wanted = {"global": self._global, "velocity": self._velocity or []}
        for key, arrays in wanted.items():
            expected = {name: array.shape for name, array in zip(names, arrays, strict=False)}
            found = {name: array.shape for name, array in state[key].items()}
            if found != expected:
                raise ValueError(f"state[{key!r}]: has {found or 'nothing'}, must have {expected or 'nothing'}")
        if len(state["versions"]) != len(self._versions):
            raise ValueError(f"state: has {len(state['versions'])} fragments, must have {len(self._versions)}")
        for key, arrays in wanted.items():
            for name, array in zip(names, arrays, strict=False):
                np.copyto(array, state[key][name])
        self.steps, self._versions = state["steps"], list(state["versions"])
        self._outdated = set(range(len(self._versions)))
        self._running = False

    # ---- a round of a fragment

    def _next(self) -> int | None:
        """The fragment whose round begins at this step; None if there is none."""
        count = len(self._versions)
        for number in range(count):
            if (self.steps - self._every * (number + 1) // count) % self._every == 0:
                return number
        return None

    def _begin(self, number: int, params: Any) -> None:
        """Begin to average the fragment's outer gradients."""
        leaves = self._fragments.leaves(params)
        pieces = self._fragments.fragments[number]
        gradients = [
            self._global[piece.leaf][piece.part] - self.library.read(leaves[piece.leaf]).reshape(-1)[piece.part]
            for piece in pieces
        ]
        work = self._compression.grouped_allreduce_async(
            self.comm,
            gradients,
            "average",
            out=gradients,
            state=self._errors,
            names=[piece.name for piece in pieces],
            name=f"{self._name}.{number}",  # ranks find operations by name, so their order may differ
            timeout=self._timeout,
        )
        self._flights[number] = _Flight(self.steps + self._delay, work)

    def _end(self, numbers: Sequence[int], params: Any, keep: float) -> Any:
        """Wait for the means of some fragments. Only when all have come, change the global parameters, then the local
        ones, which are returned."""
        flights = [self._flights.pop(number) for number in numbers]
        means = [flight.work.wait() for flight in flights]
        for number, arrays in zip(numbers, means, strict=True):
            if not all(np.isfinite(array).all() for array in arrays):
                raise FloatingPointError(
                    f"fragment {number}: the mean of the workers' changes at step {self.steps} is not finite: a worker "
                    "has diverged. The round is given up, and the global parameters are unchanged"
                )
        for number, arrays in zip(numbers, means, strict=True):
            for piece, mean in zip(self._fragments.fragments[number], arrays, strict=True):
                velocity = None if self._velocity is None else self._velocity[piece.leaf][piece.part]
                self._optimizer.step(self._global[piece.leaf][piece.part], mean, velocity)
            self._versions[number] += 1
        return self._replaced(numbers, params, keep)

    def _replaced(self, numbers: Sequence[int], params: Any, keep: float) -> Any:
        """The local parameters with the global ones in some fragments."""
        if not numbers:
            return params
        leaves = self._fragments.leaves(params)
        values: dict[int, Array] = {}
        for piece in (piece for number in numbers for piece in self._fragments.fragments[number]):
            if piece.leaf not in values:
                values[piece.leaf] = _wide(self.library.read(leaves[piece.leaf]))
            local, new = values[piece.leaf][piece.part], self._global[piece.leaf][piece.part]
            if keep:
                local *= keep
                local += (1 - keep) * new
            else:
                local[:] = new
        forms = self._fragments.forms
        return self.library.write(params, {leaf: value.reshape(forms[leaf][1]) for leaf, value in values.items()})

    # ---- workers that come and go

    def _recovers(self) -> bool:
        """True if an error that was raised is to be answered by a regroup."""
        return self._elastic and self.comm.failure is not None

    def _raise_failure(self) -> None:
        failure: RondeError | None = self.comm.failure
        if failure is not None:
            raise copy.copy(failure)

    def _regroup(self, params: Any) -> Any:
        """Go on with the workers that are left and those that have come."""
        while True:
            comm = self.comm.regroup()
            if comm is None:
                raise SystemExit(0)
            try:
                return self._start(params)
            except TransportError:
                if comm.failure is None:
                    raise

    def _start(self, params: Any) -> Any:
        comm = self.comm
        self._flights.clear()
        self._errors.forget()  # the memory of a compressor is for one number of ranks
        mine = _Row(self._running, self.steps, self._versions, self._final, self._terms())
        rows = comm.allgather_object(mine, timeout=self._timeout)
        for rank, row in enumerate(rows):
            for key, value in row.terms.items():
                if value != rows[0].terms[key]:
                    raise MismatchError(f"{key}: rank {rank} has {value}, rank 0 has {rows[0].terms[key]}", rank=rank)
        for number in range(len(self._versions)):
            versions = [row.versions[number] for row in rows]
            newest = max(versions)
            if newest == 0 or min(versions) < newest:
                self._give(comm, number, versions.index(newest))
            self._versions[number] = max(newest, 1)
        self.steps = max(row.steps for row in rows)
        self._final = next((row.final for row in rows if row.final is not None), None)
        params = self._replaced(sorted(self._outdated), params, 0.0)
        self._outdated.clear()
        self._running = True
        return params

    def _give(self, comm: Communicator, number: int, root: int) -> None:
        """Take the fragment's global parameters and velocity from a rank. On an error they are unchanged."""
        pieces = self._fragments.fragments[number]
        held = [self._global[piece.leaf][piece.part] for piece in pieces]
        if self._velocity is not None:
            held += [self._velocity[piece.leaf][piece.part] for piece in pieces]
        before = np.concatenate(held)
        after = comm.broadcast(before, root, timeout=self._timeout)
        parts = np.split(after, np.cumsum([array.size for array in held])[:-1])
        if any(not np.array_equal(old, new) for old, new in zip(held[: len(pieces)], parts, strict=False)):
            self._outdated.add(number)
        for array, part in zip(held, parts, strict=True):
            array[:] = part

    def _terms(self) -> dict[str, str]:
        """The arguments that are the same on all workers."""
        return {
            "every": str(self._every),
            "delay": str(self._delay),
            "fragments": str(len(self._versions)),
            "keep": str(self._keep),
            "outer": str(self._optimizer),
            "compression": str(self._compression),
            "params": ", ".join(f"{name} {dtype} {shape}" for name, shape, dtype in self._fragments.forms),
        }


class LocalSGD(DiLoCo):
    """Workers train by themselves, and every so many steps their parameters become the average.

    DiLoCo whose outer optimizer takes the average, without fragments or delay; arguments as there.

    Source: Stich 2019, "Local SGD Converges Fast and Communicates Little", ICLR.
    """

    def __init__(
        self,
        params: Any,
        *,
        comm: Communicator | None = None,
        every: int = 10,
        compression: Compressor | None = None,
        elastic: bool = False,
        timeout: float | None = None,
        name: str = "local_sgd",
    ) -> None:
        """Raises as DiLoCo."""
        super().__init__(
            params,
            comm=comm,
            every=every,
            outer=Nesterov(lr=1.0, momentum=0.0),
            compression=compression,
            elastic=elastic,
            timeout=timeout,
            name=name,
        )


def _wide(array: Array) -> Array:
    """A flat copy, in float32 at least."""
    return np.array(array, master_dtype(array.dtype)).reshape(-1)
