"""Futures that end with other futures."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from frontends.mpi.futures import collect, compose


def futures(count: int) -> list[Future[Any]]:
    return [Future() for _ in range(count)]


def test_a_collection_has_the_results_in_their_order() -> None:
    first, second = futures(2)
    whole = collect([first, second, first])
    second.set_result("b")
    assert not whole.done()
    first.set_result("a")
    assert whole.result() == ["a", "b", "a"]
    assert collect([]).result() == []


def test_a_collection_fails_with_the_first_that_fails_and_cancels_the_others() -> None:
    first, second = futures(2)
    whole = collect([first, second])
    second.set_exception(KeyError(2))
    assert isinstance(whole.exception(), KeyError)
    assert first.cancelled()


@pytest.mark.parametrize("cancelled", ["whole", "part"])
def test_a_collection_is_cancelled_with_its_parts(cancelled: str) -> None:
    parts = futures(2)
    whole = collect(parts)
    (whole if cancelled == "whole" else parts[1]).cancel()
    assert all(future.cancelled() for future in (whole, *parts))
    assert wait([whole], timeout=60).done == {whole}


def test_functions_change_the_result_or_the_exception() -> None:
    def refuse(_: Any) -> Any:
        raise ValueError("refused")

    found = []
    for result in (3, KeyError(3)):
        for hooks in ((), (str,), (str, repr), (refuse, refuse), (None, lambda error: OSError(str(error)))):
            future: Future[Any] = Future()
            after = compose(future, *hooks)
            if isinstance(result, int):
                future.set_result(result)
            else:
                future.set_exception(result)
            error = after.exception()
            found.append(after.result() if error is None else type(error))
    assert found == [3, "3", "3", ValueError, 3, KeyError, KeyError, "KeyError(3)", ValueError, OSError]


@pytest.mark.parametrize("cancelled", [0, 1])
def test_a_composed_future_is_cancelled_with_its_source(cancelled: int) -> None:
    future: Future[Any] = Future()
    both = future, compose(future, str, str)
    both[cancelled].cancel()
    assert all(one.cancelled() for one in both)
    assert wait([both[1]], timeout=60).done == {both[1]}
    with pytest.raises(CancelledError):
        both[1].result()
