"""Pools with the interface of multiprocessing, on ranks or threads. The code is in frontends.mpi.util.pool."""

from __future__ import annotations

from frontends.mpi.util.pool import ApplyResult, AsyncResult, MapResult, Pool, ThreadPool

__all__ = ["ApplyResult", "AsyncResult", "MapResult", "Pool", "ThreadPool"]
