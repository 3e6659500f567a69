"""The collectives of a communicator: each has one body, which runs at once, in the background, or when started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from collectives import RondeError
from frontends.mpi import inter, intra, neighbors, objects
from frontends.mpi.comm_base import Predefined
from frontends.mpi.comm_messages import Messages
from frontends.mpi.constants import PATIENCE
from frontends.mpi.errors import failure
from frontends.mpi.info import Info
from frontends.mpi.ops import SUM, Op
from frontends.mpi.plans import Collective, Plan
from frontends.mpi.repeats import kinds_of, repeat_of
from frontends.mpi.requests import Prequest, Request

Form = Callable[..., Any]
_BUFFERS: Final = {"bcast": 1}
"""Number of buffers among the arguments of a collective, which come first: 2 for all others."""


def forms(name: str) -> tuple[Form, Form, Form]:
    """The blocking, the immediate and the persistent method of a collective with a body in `intra`, `inter` or
    `neighbors`, whose arguments they take."""

    def plan(self: Messages, *arguments: Any, **options: Any) -> Plan:
        peers = self.peers
        room = neighbors if name.startswith("neighbor") else inter if peers.is_inter else intra
        made: Plan = getattr(room, name)(peers, *arguments, **options)
        return made

    buffers = _BUFFERS.get(name, 2)

    def blocking(self: Messages, *arguments: Any, **options: Any) -> None:
        body = self._body
        peers = body.resolve() if body.__class__ is Predefined else self.peers
        repeats = peers.repeats
        latest = repeats.latest.get(name)
        if latest is not None:
            again, count, source, target, rest, named = latest
            if len(arguments) == count and arguments[buffers:] == rest and options == named:
                try:
                    if again(arguments[source], arguments[target]):
                        return
                except RondeError as cause:
                    raise failure(cause)  # noqa: B904 - its cause is the error
        kinds = kinds_of(name, buffers, arguments, options)
        repeat = repeats.known.get(kinds)
        if repeat is not None:
            repeat(arguments)
        else:
            made = plan(self, *arguments, **options)
            if kinds is None or not isinstance(made, Collective):
                made.run()
                return
            repeat = repeat_of(peers.collectives, made.make()[0], arguments)
            if repeat is None:
                return
            repeats.keep(kinds, repeat)
        latest = repeat.latest(arguments, options, buffers)
        if latest is not None:
            repeats.latest[name] = latest

    def immediate(self: Messages, *arguments: Any, **options: Any) -> Request:
        return Request.begun(plan(self, *arguments, **options).begin())

    def persistent(self: Messages, *arguments: Any, info: Info | None = None, **options: Any) -> Prequest:
        if arguments and isinstance(arguments[-1], Info):
            arguments = arguments[:-1]
        return Prequest.prepared(plan(self, *arguments, **options).begin)

    title = name.capitalize()
    for function, its_name in ((blocking, title), (immediate, f"I{name}"), (persistent, f"{title}_init")):
        function.__name__ = its_name
        function.__qualname__ = f"Comm.{its_name}"
    return blocking, immediate, persistent


class Collectives(Messages):
    """The collectives of a communicator."""

    _, Ibarrier, Barrier_init = forms("barrier")

    def Barrier(self) -> None:
        peers = self.peers
        if peers.is_inter:
            inter.barrier(peers).run()
        else:
            peers.call("barrier", timeout=PATIENCE)

    Bcast, Ibcast, Bcast_init = forms("bcast")
    Gather, Igather, Gather_init = forms("gather")
    Gatherv, Igatherv, Gatherv_init = forms("gatherv")
    Scatter, Iscatter, Scatter_init = forms("scatter")
    Scatterv, Iscatterv, Scatterv_init = forms("scatterv")
    Allgather, Iallgather, Allgather_init = forms("allgather")
    Allgatherv, Iallgatherv, Allgatherv_init = forms("allgatherv")
    Alltoall, Ialltoall, Alltoall_init = forms("alltoall")
    Alltoallv, Ialltoallv, Alltoallv_init = forms("alltoallv")
    Alltoallw, Ialltoallw, Alltoallw_init = forms("alltoallw")
    Reduce, Ireduce, Reduce_init = forms("reduce")
    Allreduce, Iallreduce, Allreduce_init = forms("allreduce")
    Reduce_scatter_block, Ireduce_scatter_block, Reduce_scatter_block_init = forms("reduce_scatter_block")
    Reduce_scatter, Ireduce_scatter, Reduce_scatter_init = forms("reduce_scatter")

    # ---- objects

    def barrier(self) -> None:
        self.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return objects.bcast(self.peers, obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        return objects.gather(self.peers, sendobj, root)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        return objects.scatter(self.peers, sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        return objects.allgather(self.peers, sendobj)

    def alltoall(self, sendobj: Sequence[Any] | None) -> list[Any]:
        return objects.alltoall(self.peers, sendobj)

    def reduce(self, sendobj: Any, op: Op | Callable[[Any, Any], Any] = SUM, root: int = 0) -> Any:
        return objects.reduce(self.peers, sendobj, op, root)

    def allreduce(self, sendobj: Any, op: Op | Callable[[Any, Any], Any] = SUM) -> Any:
        return objects.allreduce(self.peers, sendobj, op)


class PrefixCollectives(Collectives):
    """The collectives that a group alone has."""

    Scan, Iscan, Scan_init = forms("scan")
    Exscan, Iexscan, Exscan_init = forms("exscan")

    def scan(self, sendobj: Any, op: Op | Callable[[Any, Any], Any] = SUM) -> Any:
        return objects.scan(self.peers, sendobj, op)

    def exscan(self, sendobj: Any, op: Op | Callable[[Any, Any], Any] = SUM) -> Any:
        return objects.exscan(self.peers, sendobj, op)
