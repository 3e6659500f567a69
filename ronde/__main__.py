"""`python -m ronde` is the command `ronde`, for environments whose folder of commands is not on the path."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("collectives.launch.cli", run_name="__main__")
