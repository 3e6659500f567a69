"""Futures in chains. The code is in frontends.mpi.futures.aplus."""

from __future__ import annotations

from frontends.mpi.futures.aplus import ThenableFuture, catch, then

__all__ = ["ThenableFuture", "catch", "then"]
