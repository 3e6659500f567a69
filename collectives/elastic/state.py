"""The state of an elastic program, and the loop that keeps it going."""

from __future__ import annotations

import functools
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, TypeVar

from collectives.arrays import type_name
from collectives.communicator import Communicator
from collectives.elastic.snapshot import NOTHING_FIXED, Arrays, Snapshot
from collectives.elastic.transfer import give
from collectives.world_communicator import is_initialized, world
from transports.base import runs
from transports.errors import MismatchError, TransportError, described

T = TypeVar("T")

_PICKLING: Final = (pickle.PicklingError, AttributeError, TypeError)
"""Errors of pickle for a value that it cannot copy."""


class ChangesPending(Exception):
    """Ranks are to come or to leave. `run` catches it, lets the ranks regroup and calls its function again."""


def check_changes() -> None:
    """Raise ChangesPending if ranks are to come or to leave, on all ranks in the same call. See
    Communicator.changes_pending."""
    if is_initialized() and world().changes_pending():
        raise ChangesPending


class State:
    """Values kept as attributes: `state = State(weights=[w, b], step=0)`, `state.step += 1`, `state.commit()`.

    Values are NumPy arrays, numbers, texts, containers of them, and anything that can be pickled. The last commit is
    kept in this process's memory. When ranks are lost, the others go on from it; newcomers get it from them.

    `restore`, and `sync` on a rank that gets the state of others, set the attributes to new objects. An object that
    several values have is one object again, and NumPy arrays that share memory share memory again. Objects outside the
    state keep the old ones: reach arrays through the state.

    library   takes arrays apart; that of a frontend for a framework's arrays
    strict    True to refuse a rank whose arrays differ from those of the others after the same commit. False gives it
              theirs. `sync` gives all ranks the other values of the lowest one
    """

    library: ClassVar[type[Arrays]] = Arrays
    strict: ClassVar[bool] = True

    def __init__(self, **values: Any) -> None:
        """Raises ValueError for a name that the state uses itself, such as `commit`."""
        self._names = list(values)
        self._callbacks: list[Callable[[], object]] = []
        self._commits = 0
        """Number of commits since the program began, the same on all ranks that have the same state."""
        for name, value in values.items():
            own = hasattr(State, name) or callable(getattr(type(self), name, None))  # a subclass may have defaults
            if own or name in vars(self) or name == "_saved":
                raise ValueError(f"{name}={value!r}: the state uses this name itself; choose another one")
            setattr(self, name, value)
        self._saved = self._snapshot()

    def __getattr__(self, name: str) -> Any:
        """Raises AttributeError, with the names of the values that there are. Type checkers take every value as Any."""
        there = ", ".join(own for own in vars(self) if not own.startswith("_"))
        text = (
            f"{type(self).__name__!r} object has no attribute {name!r}; the values of the state are {there or 'none'}"
        )
        raise AttributeError(text, name=name, obj=self)

    # ---- for subclasses

    def read(self) -> Any:
        """The values of the state, of which a copy is taken."""
        return {name: getattr(self, name) for name in self._names}

    def write(self, values: Any) -> None:
        """Set the state to values that `read` has returned, on this or another rank. It keeps those from then on."""
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)

    def fixed(self) -> Mapping[str, Any]:
        """Objects that stay the same, by names that are equal on all ranks: `write` changes their contents. A value
        that refers to one of them refers to the object of that name afterwards."""
        return NOTHING_FIXED

    def reset(self) -> None:
        """Adapt to the current ranks. Nothing to do for plain values."""

    # ----

    def register_reset_callbacks(self, callbacks: list[Callable[[], object]]) -> None:
        """Add functions to call after the ranks have changed, for example to adapt the learning rate."""
        given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
        for callback in given:
            if not callable(callback):
                raise TypeError(f"callbacks={callbacks!r:.60}: must be a list of functions, not {type_name(callback)}")
        self._callbacks.extend(given)

    def on_reset(self) -> None:
        """Called after the ranks have changed: `reset`, then the registered callbacks."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def save(self) -> None:
        """Copy the values. All ranks call it at the same point of the program. Raises TypeError, with its name, for a
        value that cannot be copied."""
        self._saved = self._snapshot()
        self._commits += 1

    def commit(self) -> None:
        """Copy the values, then let ranks come and leave. All ranks call it at the same point of the program. Raises
        ChangesPending, which `run` catches."""
        self.save()
        check_changes()

    def restore(self) -> None:
        """Return to the values of the last commit, or of the last `sync`."""
        self.write(self._saved.value(self.library(), self.fixed()))

    def sync(self) -> None:
        """Give all ranks the last commit. Collective.

        The ranks with the latest commit keep their arrays, and send them to the others in stripes, all at once; the
        digest is checked there. All get the other values of the lowest of them. Before the first commit all get the
        values of rank 0. If ranks with the latest commit have different arrays, most of them are right: the others
        raise MismatchError and close, and the right ones raise AbortedError that names them, after which they may
        regroup (see `strict`).

        Raises the errors of a communicator, and on every rank an error if the values of one cannot be copied. If all
        ranks that had a commit are lost, the newcomers begin anew.
        """
        comm = world()
        commits = self._copied(comm)
        newest = max(commits)
        holders = [rank for rank in range(comm.size) if commits[rank] == newest] if newest else [0]
        if len(holders) > 1:
            holders = self._agreed(comm, holders, newest)
        saved = give(comm, self._saved if comm.rank in holders else None, holders)
        if len(holders) < comm.size:
            digests = comm.allgather_object(saved.digest(outline=True))
            wrong = [rank for rank in range(comm.size) if rank not in holders and digests[rank] != digests[holders[0]]]
            if wrong:
                raise MismatchError(
                    f"ranks {runs(wrong)} received a state that differs from that of ranks {runs(holders)}"
                )
        replaced = saved is not self._saved
        self._saved, self._commits = saved, max(newest, 1)
        if replaced:
            self.write(saved.value(self.library(), self.fixed()))

    def _copied(self, comm: Communicator) -> list[int]:
        """Copy the values. Returns the numbers of commits of all ranks. Collective."""
        failure: Exception | None = None
        try:
            self._saved = self._snapshot()
        except Exception as error:  # noqa: BLE001 - raised below, when the others know
            failure = error
        found = comm.allgather_object((self._commits, None if failure is None else described(failure)))
        if failure is not None:
            raise failure
        for rank, (_, text) in enumerate(found):
            if text is not None:
                raise RuntimeError(f"the state of rank {rank} cannot be copied: {text}")
        return [commits for commits, _ in found]

    def _snapshot(self) -> Snapshot:
        values, fixed = self.read(), self.fixed()
        try:
            return Snapshot.of(values, self.library(), fixed)
        except _PICKLING:
            for name in self._names:
                value = getattr(self, name)
                try:
                    Snapshot.of(value, self.library(), fixed)
                except _PICKLING as error:
                    raise TypeError(f"{name}: a {type_name(value)} that cannot be pickled: {error}") from error
            raise

    def _agreed(self, comm: Communicator, holders: list[int], newest: int) -> list[int]:
        """Those of the holders that have the same arrays."""
        digests = comm.allgather_object(self._saved.digest(outline=False) if comm.rank in holders else b"")
        counts = Counter(digests[rank] for rank in holders)
        usual = max(holders, key=lambda rank: (counts[digests[rank]], -rank) if self.strict else (0, -rank))
        alike = [rank for rank in holders if digests[rank] == digests[usual]]
        if len(alike) == len(holders) or not self.strict:
            return alike
        if comm.rank in holders and comm.rank not in alike:
            text = f"its state differs from that of ranks {runs(alike)} after commit {newest}"
            comm.abort(text)
            comm.close()
            raise MismatchError(f"rank {comm.rank} is refused: {text}", rank=comm.rank)
        comm.barrier()  # raises the abort of the others: they never arrive
        return alike


def recovering(*failures: type[Exception]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Make a `run`, a decorator for functions `func(state, ...)`.

    failures   exceptions that are raised for a failed operation
    """

    def run(func: Callable[..., T]) -> Callable[..., T]:
        if not callable(func):
            raise TypeError(f"func={func!r:.60}: must be a function of a state, not {type_name(func)}")

        @functools.wraps(func)
        def call(state: State, *args: Any, **kwargs: Any) -> T:
            if not isinstance(state, State):
                raise TypeError(f"state={state!r:.60}: must be a State, not {type_name(state)}")
            changed = False
            while True:
                lost = False
                try:
                    if changed:
                        state.on_reset()
                    state.sync()
                    return func(state, *args, **kwargs)
                except ChangesPending:
                    state.save()  # all ranks are at the same point
                except failures:
                    if world().failure is None and world().departure is None:
                        raise
                    lost = True
                if world().regroup() is None:
                    raise SystemExit(0)
                if lost:
                    state.restore()
                changed = True

        return call

    return run


_recovering = recovering(TransportError)


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorate a function `func(state, ...)` that goes on while ranks come and go.

    The decorated function synchronises the state and calls `func`. When ranks are lost, the others regroup, return to
    the last commit, and call `func` again; when ranks come or leave, they do so without a lost step. Then the callbacks
    of the state are called. A rank that leaves ends its process by SystemExit(0). It raises the error of `func` if the
    world is intact, and the errors of Communicator.regroup.

    func   the first argument is a State. It begins where the state says, for example at `state.step`, and calls
           `state.commit()` between its steps, on all ranks at the same points
    """
    return _recovering(func)
