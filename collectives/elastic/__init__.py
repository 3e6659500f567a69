"""Elastic programs: state that is committed, restored and given to newcomers, and a loop that goes on while ranks come
and go.

    snapshot.py   a copy of the state: the bytes of its arrays, and the rest pickled
    transfer.py   the way of a snapshot to newcomers, in stripes from all ranks that have it
    state.py      the state of a program; `run`, the loop
    sampler.py    the order of samples among ranks whose number changes

A frontend makes a class of its own of `State`: it tells how values are read and written.
"""

from __future__ import annotations

from collectives.elastic.sampler import Sampler
from collectives.elastic.snapshot import Arrays
from collectives.elastic.state import ChangesPending, State, check_changes, recovering, run

__all__ = ["Arrays", "ChangesPending", "Sampler", "State", "check_changes", "recovering", "run"]
