"""Run the tests that torch ships for its own backends (`torch.testing._internal.distributed.distributed_test`).

    python -m tests.compatibility.torch_suite BACKEND WORLD_SIZE RESULTS [NAME...]

A test is a process for each rank, forked from this one. RESULTS gets a line of JSON for each test when it has ended:
name, outcome ("passed", "skipped", "failed"), seconds, and the reason. RONDE_TRANSPORT names the transport.

The tests are used as they are. They skip much for backends that they do not know, so they are imported as for gloo;
for another backend, its name then takes the place of gloo's.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

_MODULE = "torch.testing._internal.distributed.distributed_test"
_LISTS = ("PROFILING_SUPPORTED_BACKENDS", "CUDA_PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS")
_KILL_AFTER = 5.0
"""Seconds that a rank has to end after SIGTERM."""


class Name(str):
    """The name of a backend, also equal to "gloo", with which tests compare it to find what they are to do."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)  # type: ignore[arg-type]


def load(backend: str, size: int) -> ModuleType:
    """Import torch's tests for a backend."""
    os.environ.update(
        BACKEND="gloo", WORLD_SIZE=str(size), TEMP_DIR="/nowhere", INIT_METHOD="file:///nowhere", MASTER_PORT="0"
    )
    suite = importlib.import_module(_MODULE)
    importlib.import_module("frontends.torch.distributed")  # before the ranks are forked
    if backend != "gloo":
        os.environ["BACKEND"] = backend
        suite.BACKEND = Name(backend)  # type: ignore[attr-defined]
        for name in _LISTS:
            getattr(suite, name).append(backend)
    return suite


def forking(suite: ModuleType) -> type[unittest.TestCase]:
    """The class of all tests, whose ranks are forked."""
    import torch

    class Forked(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            suite.INIT_METHOD = os.environ["INIT_METHOD"]  # type: ignore[attr-defined]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)
            self.started = self.processes

        def tearDown(self) -> None:
            super().tearDown()
            for process in self.started:
                process.join(_KILL_AFTER)
                if process.exitcode is None:
                    process.kill()
                    process.join()
            Path(self.file_name).unlink(missing_ok=True)

    return Forked


class Lines(unittest.TestResult):
    """Writes a line of JSON for each test."""

    def __init__(self, target: TextIO) -> None:
        super().__init__()
        self._target = target
        self._began = 0.0
        self._told: tuple[str, str] | None = None

    def startTest(self, test: unittest.TestCase) -> None:
        """Begin to count the seconds."""
        super().startTest(test)
        self._began, self._told = time.monotonic(), None
        sys.stderr.write(f"=== {test.id()}\n")

    def stopTest(self, test: unittest.TestCase) -> None:
        """Write the line."""
        super().stopTest(test)
        outcome, reason = self._told or ("passed", "")
        name = test.id().rpartition(".")[2]
        seconds = round(time.monotonic() - self._began, 2)
        json.dump({"name": name, "outcome": outcome, "seconds": seconds, "reason": reason}, self._target)
        self._target.write("\n")
        self._target.flush()

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        """It failed."""
        super().addError(test, err)
        self._told = "failed", f"{err[0].__name__}: {err[1]}"

    addFailure = addError

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """It was skipped, here or in a rank."""
        super().addSkip(test, reason)
        self._told = self._told or ("skipped", reason)


def main(backend: str, size: str, results: str, *names: str) -> None:
    """Run the tests with these names; all without a name."""
    suite = load(backend, int(size))
    kind = forking(suite)
    loader = unittest.TestLoader()
    chosen = names or loader.getTestCaseNames(kind)
    with open(results, "a", encoding="utf-8") as target:
        unittest.TestSuite(kind(name) for name in chosen).run(Lines(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
