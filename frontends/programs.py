"""A program of the user, run as Python runs it, within a process that has begun otherwise."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any


def prepared(words: Sequence[str], usage: str) -> Callable[..., dict[str, Any]]:
    """Set `sys.argv` and `sys.path` for a program: `script.py`, `-m module` or `-c command`, with its arguments.

    Returns a function that runs it once as the module `run_name`, and returns its names. If the words have no program,
    writes `usage` to stderr and raises SystemExit(2).
    """
    match list(words):
        case ["-m", first, *rest]:
            run = partial(runpy.run_module, first, alter_sys=True)
        case ["-c", text, *rest]:
            first, run = "-c", partial(_run_command, text)
        case [first, *rest] if not first.startswith("-"):
            if not sys.flags.safe_path:
                sys.path[0] = str(Path(first).resolve().parent)  # the script finds the modules beside it
            run = partial(runpy.run_path, str(Path(first).absolute()))  # as Python does: it may change the folder
        case _:
            sys.stderr.write(usage)
            raise SystemExit(2)
    sys.argv[:] = [first, *rest]
    return run


def _run_command(text: str, run_name: str) -> dict[str, Any]:
    """Run a text as a module, which pickles of its functions and classes find meanwhile; its names."""
    module, before = ModuleType(run_name), sys.modules[run_name]
    sys.modules[run_name] = module
    try:
        exec(compile(text, "<command>", "exec"), module.__dict__)
    finally:
        sys.modules[run_name] = before
    return module.__dict__
