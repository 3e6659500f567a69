"""Runs a script with this room under the name mpi4py."""

from __future__ import annotations

from frontends.mpi.run import main

if __name__ == "__main__":
    main()
