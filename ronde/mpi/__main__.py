"""Runs a script with ronde.mpi under the name mpi4py. The code is in frontends.mpi.run."""

from __future__ import annotations

from frontends.mpi.run import main

if __name__ == "__main__":
    main()
