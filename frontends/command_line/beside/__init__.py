"""Ronde beside other libraries: the same calls on the same arrays, in turns, every result checked.

Every contender is a job of its own, started by its own launcher. It stays alive, and blocked between its turns. For
each collective and size the contenders take turns, in changing order. A turn is some batches of calls back to back; its
time is the median over the batches of the slowest rank's seconds per call.

`library` is the program of a rank, `jobs` starts the ranks, `comparison` takes the turns and prints the tables,
`contenders` finds the libraries of this environment.
"""

from __future__ import annotations

from frontends.command_line.beside.comparison import (
    COLLECTIVES,
    Line,
    measure,
    plot,
    size_text,
    steadiness,
    table,
    time_text,
)
from frontends.command_line.beside.contenders import LIBRARIES, contender_here
from frontends.command_line.beside.jobs import OURS, WORKER, Contender, Job, started

__all__ = [
    "COLLECTIVES",
    "LIBRARIES",
    "OURS",
    "WORKER",
    "Contender",
    "Job",
    "Line",
    "contender_here",
    "measure",
    "plot",
    "size_text",
    "started",
    "steadiness",
    "table",
    "time_text",
]
