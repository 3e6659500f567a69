"""Turns, counters, locks, conditions and semaphores of all ranks. The code is in frontends.mpi.util.sync."""

from __future__ import annotations

from frontends.mpi.util.sync import Condition, Counter, Mutex, Semaphore, Sequential

__all__ = ["Condition", "Counter", "Mutex", "Semaphore", "Sequential"]
