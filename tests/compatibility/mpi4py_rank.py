"""One rank of a run of mpi4py's tests: `python -m tests.compatibility.mpi4py_rank FOLDER FILE RESULTS`.

FOLDER has mpi4py's tests, FILE is the name of one without `.py`, RESULTS a path to which `.RANK` is added. It gets a
line of JSON for each test when it has ended: name, outcome ("passed", "skipped", "failed") and reason.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import unittest
from types import ModuleType
from typing import Any, TextIO

from frontends.mpi import install


class Lines(unittest.TestResult):
    """Writes a line of JSON for each test."""

    def __init__(self, target: TextIO) -> None:
        super().__init__()
        self._target = target
        self._told: tuple[str, str] = ("passed", "")

    def startTest(self, test: unittest.TestCase) -> None:
        """Begin a test."""
        super().startTest(test)
        self._told = "passed", ""
        sys.stderr.write(f"=== {test.id()}\n")

    def stopTest(self, test: unittest.TestCase) -> None:
        """Write the line."""
        super().stopTest(test)
        outcome, reason = self._told
        json.dump({"name": test.id(), "outcome": outcome, "reason": reason}, self._target)
        self._target.write("\n")
        self._target.flush()

    def addError(self, test: Any, err: Any) -> None:
        """It failed."""
        super().addError(test, err)
        traceback.print_exception(*err)
        self._told = "failed", f"{err[0].__name__}: {err[1]}"[:300]

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """A part of it has ended."""
        super().addSubTest(test, subtest, err)
        if err is not None and self._told[0] != "failed":
            self.addError(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        """It was skipped."""
        super().addSkip(test, reason)
        self._told = "skipped", reason


def without_gpus(name: str) -> ModuleType:
    """Import a file of tests as mpi4py's own runner does by default: without the libraries of GPUs."""
    hidden = {name: sys.modules.get(name) for name in ("cupy", "numba")}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        return importlib.import_module(name)
    finally:
        for library, module in hidden.items():
            del sys.modules[library]
            if module is not None:
                sys.modules[library] = module


def main(folder: str, name: str, results: str) -> None:
    """Run the tests of a file."""
    install()
    sys.path.insert(0, folder)
    from frontends.mpi import MPI

    suite = unittest.defaultTestLoader.loadTestsFromModule(without_gpus(name))
    with open(f"{results}.{MPI.COMM_WORLD.rank}", "w", encoding="utf-8") as target:
        suite.run(Lines(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
