"""The lists of conftest.py name tests that exist, and tests have the marks that they need and match no sentences."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.conftest import BUDGET, FIRST, MARKS, NIGHTLY, ONE_CASE, SLOW_MARKS, TESTS, THINNED


@cache
def functions() -> list[str]:
    """The names of all tests, as those of the lists begin: without `tests/`, and without parameters."""
    return [
        f"{path.relative_to(TESTS).as_posix()}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    ]


@pytest.mark.parametrize("beginning", [*NIGHTLY, *ONE_CASE, *THINNED])
def test_a_name_of_the_lists_is_that_of_a_test(beginning: str) -> None:
    whole, case, _ = beginning.partition("[")
    assert any(name == whole if case else name.startswith(whole) for name in functions())


@pytest.mark.parametrize("folder", [*MARKS, *FIRST, *BUDGET])
def test_a_folder_exists(folder: str) -> None:
    assert (TESTS / folder).exists()


@pytest.mark.long
def test_a_test_that_sleeps_is_marked() -> None:
    """More than 0.2 s, in a test of threads."""
    slow, found = set(SLOW_MARKS), []
    for path in TESTS.rglob("test_*.py"):
        if {MARKS.get(str(folder)) for folder in path.relative_to(TESTS).parents} & slow:
            continue
        text = path.read_text("utf-8")
        for function in ast.parse(text).body if "time.sleep(" in text else ():
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                marks = {ast.unparse(one).removeprefix("pytest.mark.") for one in function.decorator_list}
                marked = bool(marks & slow)
                found += [f"{path}: {function.name}" for call in ast.walk(function) if sleeps(call) and not marked]
    assert found == []


def sleeps(node: ast.AST) -> bool:
    """True for a call `time.sleep(seconds)` of more than 0.2 s."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"):
        return False
    (seconds,) = node.args
    return isinstance(seconds, ast.Constant) and isinstance(seconds.value, (int, float)) and seconds.value > 0.2


MATCHED = re.compile(r'match=\w{0,2}"([^"\n]*)"')
SENTENCE = re.compile(r"[A-Za-z][a-z']+(?:,? [a-z'-]+){4,}")


def test_errors_are_told_by_their_facts() -> None:
    """By names, values and ranks. Five words in a row are a sentence, unless the test itself gives them to an error."""
    found = []
    for path in TESTS.rglob("*.py"):
        text = path.read_text("utf-8")
        rest = MATCHED.sub("", text)
        sentences = (words for pattern in MATCHED.findall(text) for words in SENTENCE.findall(pattern))
        found += [f"{path}: {words}" for words in sentences if words not in rest]
    assert found == []


def test_the_budgets_fit_into_eight_minutes() -> None:
    """Three jobs run at a time, each for eight minutes."""
    assert sum(BUDGET.values()) <= 1500
