"""Calls that graphs and compiled programs make: their description, as an object and as text, and their start.

The text is part of the graph or of the program, so these can be saved, and used in another world.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from collectives import Communicator, OpName, ProcessSet, Work
from frontends.horovod.agreement import Fact
from frontends.horovod.arguments import check_name, check_number, check_process_set
from frontends.horovod.feedback import numbered
from frontends.horovod.names import root_in
from frontends.horovod.ops import Average, scale_options

__all__ = ["Call", "set_ranks"]


@dataclass(frozen=True)
class Call:
    """A collective on tensors: everything that is known before it is executed. A frontend adds fields of its own.

    kind    allreduce, compressed (an allreduce with a lossy compression), broadcast, reducescatter, or one of the
            frontend's own
    name    the name by which ranks match the call; None: numbered at each execution
    ranks   members of the process set; None for the world
    root    of a broadcast, a rank of the world
    number  of the lossy compression
    memory  names of the tensors in the memory of that
    facts   this rank's facts, on which the ranks agree
    """

    kind: str
    name: str | None = None
    ranks: tuple[int, ...] | None = None
    op: OpName = Average
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    number: int = 0
    memory: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        for argument in ("prescale", "postscale"):  # NumPy's numbers have no text
            object.__setattr__(self, argument, check_number(getattr(self, argument), f"{argument}_factor"))

    @property
    def process_set(self) -> ProcessSet:
        """The process set of `ranks`."""
        return ProcessSet(self.ranks)

    @property
    def communicator(self) -> Communicator:
        """The communicator of the process set. Raises ValueError for a set that was not added, or without this rank."""
        return self.process_set.communicator

    def text(self) -> str:
        """Return the description as text; `read` is the inverse."""
        given = {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}
        return json.dumps(given)

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Return the call of a description."""
        given = {name: _frozen(value) for name, value in json.loads(text).items()}
        return cls(**given | {"facts": tuple(Fact(*fact) for fact in given.get("facts", ()))})

    def begin(self, name: str, sources: Sequence[Any], targets: Sequence[Any]) -> Iterator[Work[Any]]:
        """Begin the operations, from arrays into others; in place where these are the same arrays.

        The memory is lent out until all operations have ended, also if one of them cannot begin.
        """
        comm, scales = self.communicator, scale_options(self.prescale, self.postscale)
        if self.kind == "compressed":
            if sources:
                yield numbered(self.number).begin(comm, sources, targets, self.op, name, self.memory)
        elif self.kind == "allreduce" and len(sources) > 1:
            yield comm.grouped_allreduce_async(sources, self.op, out=targets, name=name, **scales)
        else:
            for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
                label = f"{name}.{index}" if index else name
                match self.kind:
                    case "allreduce":
                        yield comm.allreduce_async(source, self.op, out=target, name=label, **scales)
                    case "broadcast":
                        yield comm.broadcast_async(source, root_in(self.process_set, self.root), out=target, name=label)
                    case "reducescatter":
                        yield comm.reduce_scatter_async(source, self.op, out=target, name=label, **scales)
                    case _:
                        raise ValueError(
                            f"kind={self.kind!r}: must be allreduce, compressed, broadcast or reducescatter"
                        )


def set_ranks(process_set: ProcessSet) -> tuple[int, ...] | None:
    """Return the `ranks` of a Call for a process set. Raises TypeError for another object."""
    check_process_set(process_set)
    return None if process_set == ProcessSet() else tuple(process_set.ranks or ())


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
