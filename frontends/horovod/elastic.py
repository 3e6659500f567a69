"""Elastic training: state that is committed, restored and given to newcomers, and a loop that continues while ranks
come and go. The state and the loop are those of collectives.elastic, with Horovod's names.

A rank that is lost ends the job unless that is elastic: `ronde run --min-np N`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

import collectives
from collectives import elastic, is_initialized
from frontends.horovod.errors import HorovodInternalError, as_horovod

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "VariablesState", "recovering"]

T = TypeVar("T")


class HostsUpdatedInterrupt(elastic.ChangesPending, RuntimeError):
    """Ranks are to come or to leave. `run` catches it.

    skip_sync   for scripts that pass or read it, as with Horovod. `run` ignores it: it always synchronises the state,
                as newcomers may need it
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class ObjectState(elastic.State):
    """Values kept as attributes: `state = ObjectState(epoch=0)`, `state.epoch += 1`, `state.commit()`.

    A rank whose values differ from those of the others after a commit gets theirs, as in Horovod: averages of batch
    normalisation, for example, differ.
    """

    strict = False

    def commit(self) -> None:
        """Save, then let ranks come and leave. All ranks call it at the same point of the program.

        When a rank is lost, the survivors continue from the last commit. Raises HostsUpdatedInterrupt, which `run`
        catches.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Let ranks come and leave. All ranks call it at the same point of the program.

        Raises HostsUpdatedInterrupt, which `run` catches, HorovodInternalError if a rank is lost.
        """
        with as_horovod():
            if is_initialized() and collectives.changes_pending():
                raise HostsUpdatedInterrupt

    def sync(self) -> None:
        """Give all ranks the values of the lowest rank with the latest commit, and save them. Collective. Raises
        HorovodInternalError if a rank is lost."""
        with as_horovod():
            super().sync()


class VariablesState(ObjectState, ABC):
    """ObjectState with a framework's variables, which keep their identity: other values may refer to them. A variable
    created after the last commit keeps its value on `restore`."""

    @abstractmethod
    def variables(self) -> list[Any]:
        """Return the current variables, in the same order on all ranks."""

    def values_of(self, variables: Sequence[Any]) -> list[Any]:
        """Return copies of the variables' values."""
        return [np.array(variable) for variable in variables]

    def assign(self, variable: Any, value: Any) -> None:
        """Set a variable to a value."""
        variable.assign(value)

    def fixed(self) -> Mapping[str, Any]:
        """The variables."""
        return {f"variable {index}": variable for index, variable in enumerate(self.variables())}

    def read(self) -> Any:
        """The attributes, and the values of the variables."""
        return super().read(), self.values_of(self.variables())

    def write(self, values: Any) -> None:
        """Set the attributes and the variables. Raises ValueError, with nothing changed, if this rank has too few."""
        attributes, found = values
        own = self.variables()
        if len(own) < len(found):
            raise ValueError(
                f"state: has {len(found)} variables on the ranks that committed it, and {len(own)} here; build the "
                "model before, for example by a first call of it"
            )
        super().write(attributes)
        for variable, value in zip(own, found, strict=False):  # variables may have been created since
            self.assign(variable, value)


def recovering(*failures: type[Exception]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Make a framework's `run`, a decorator for `func(state, ...)`; collectives.elastic has the loop.

    failures   exceptions that the framework raises for a failed operation, beside HorovodInternalError
    """
    return elastic.recovering(HorovodInternalError, *failures)
