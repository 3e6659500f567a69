"""The walks in docs/architecture.md are those of the code."""

from __future__ import annotations

import sys

import pytest

from benchmarks.walks import BEGIN, CALLS, END, PAGE, ROOT, SETTINGS, Setting, page_of, walk
from transports import shm


def shown() -> str:
    """The part of the page that the command writes."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0]


@pytest.mark.processes
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other Pythons call other functions of their own")
@pytest.mark.skipif(shm.usable() is not None, reason="the walks are of shared memory, too")
@pytest.mark.parametrize("setting", SETTINGS[:4], ids=lambda setting: f"{setting.transport}-{setting.compiled}")
def test_the_page_shows_the_functions_of_a_call(setting: Setting) -> None:
    """On a busy machine no call may be without a wait: then more calls are tried."""
    if setting.compiled == "on":
        pytest.importorskip("numba", reason="needs the compiled interpreter")
    for calls in (CALLS, 4 * CALLS, 16 * CALLS):
        text = page_of([(setting, walk(ROOT, setting, calls))])
        if text in shown():
            return
    pytest.fail(f"python -m benchmarks.walks --write has not been run since this became the way:\n{text}")


def test_every_function_of_the_page_exists() -> None:
    lines = [line.split() for line in shown().splitlines() if line.startswith("    ")]
    assert len(lines) > 50
    for name, path in lines:
        assert f"def {name.rpartition('.')[2]}(" in (ROOT / path).read_text(), (name, path)
