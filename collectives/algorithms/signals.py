"""Signals of one-sided algorithms to all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.schedule import Geometry, Step, around, signal, wait


def wait_for_all(g: Geometry, phase: int, label: str) -> Iterator[Step]:
    """Wait until every other rank has signalled `phase`."""
    for peer in around(g.rank, g.size):
        yield wait(peer, phase, label)


def meet(g: Geometry, phase: int, label: str) -> Iterator[Step]:
    """Signal `phase` and wait until every other rank has signalled it."""
    yield signal(phase, label)
    yield from wait_for_all(g, phase, f"others {label}")
