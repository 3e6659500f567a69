"""The lists of conftest.py name tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.conftest import BUDGET, FIRST, MARKS, NIGHTLY, TESTS


@pytest.mark.parametrize("name", NIGHTLY)
def test_a_nightly_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert re.search(rf"^def {function.partition('[')[0]}\(", (TESTS / file).read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("folder", [*MARKS, *FIRST, *BUDGET])
def test_a_folder_exists(folder: str) -> None:
    assert (TESTS / folder).exists()
