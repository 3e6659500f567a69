"""Small programs for a first look at a cluster. The code is in frontends.mpi.bench."""

from __future__ import annotations

from frontends.mpi.bench import futures, helloworld, main, pingpong, ringtest

__all__ = ["futures", "helloworld", "main", "pingpong", "ringtest"]

if __name__ == "__main__":
    main()
