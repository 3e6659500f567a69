"""Starts programs that import Ronde, in an environment where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAM = str(HERE / "program.py")
SECONDS = 300.0
"""Bound of a program; normal ones take a few seconds."""


def python(
    *arguments: str, site: Path | None = None, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end. Every process first runs the sitecustomize.py in `site`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RONDE_")}
    path = os.pathsep.join(map(str, filter(None, (site, ROOT))))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "PYTHONPATH": path, **(extra or {})},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
