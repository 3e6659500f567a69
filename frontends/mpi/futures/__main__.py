"""Runs a script on rank 0, whose executors use the other ranks."""

from __future__ import annotations

from frontends.mpi.futures.serving import main

if __name__ == "__main__":
    main()
