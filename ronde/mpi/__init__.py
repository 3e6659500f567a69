"""MPI for Python without MPI: `from ronde.mpi import MPI`. The code is in frontends.mpi."""

from __future__ import annotations

from frontends.mpi import __version__, get_config, get_include, install, profile, rc

__all__ = ["__version__", "get_config", "get_include", "install", "profile", "rc"]
