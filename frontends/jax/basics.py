"""How a process with JAX finds the other ranks, and leaves them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import jax

import collectives
from collectives.process_sets import ProcessSet
from frontends.horovod.basics import start
from frontends.jax.primitive import settle


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Find the other ranks: those of `ronde run`, or none. Does nothing if that has been done.

    comm          None; Horovod's lists of MPI ranks have no meaning here: use process sets
    process_sets  sets to make at once, the same on all ranks. "dynamic" is taken for None: sets can always be added

    Raises HorovodInternalError if the ranks do not come together, ValueError for a bad argument. It has nothing to do
    with jax.distributed, whose processes share one program over several hosts: every rank is a JAX of its own.
    """
    start(comm, process_sets, lambda _: {})


def shutdown() -> None:
    """Wait for what was called, and leave the other ranks. `init` may follow; then call jax.clear_caches() if there are
    compiled functions of a world of another size. What has failed is raised where its result is waited for, not here.
    """
    if collectives.is_initialized():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            settle()
    collectives.shutdown()
