"""Futures that end with other futures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from frontends.mpi.futures import collect, compose
from ronde.mpi.futures.aplus import ThenableFuture, catch, then


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


def refuse(_: Any) -> Any:
    raise ValueError("refused")


def ends(kind: type[Future[Any]], chain: Callable[..., Future[Any]], each: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results, or the types of the exceptions, of chains with these functions behind a future of one kind: those of
    a future that has a result, then those of one that fails."""
    found = []
    for result in (3, KeyError(3)):
        for functions in each:
            future = kind()
            after = chain(future, *functions)
            assert type(after) is kind
            if isinstance(result, int):
                future.set_result(result)
            else:
                future.set_exception(result)
            error = after.exception()
            found.append(after.result() if error is None else type(error))
    return found


def test_functions_change_the_result_or_the_exception() -> None:
    found = ends(
        Future, compose, ((), (str,), (str, repr), (refuse, refuse), (None, lambda error: OSError(str(error))))
    )
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


def test_a_chain_changes_the_result_or_the_exception() -> None:
    each = ((), (str,), (str, repr), (refuse, str), (refuse,), (None, OSError))
    found = ends(ThenableFuture, ThenableFuture.then, each)
    assert found == [3, "3", "3", "refused", ValueError, 3, KeyError, KeyError, "KeyError(3)", "3", KeyError, OSError]


def test_a_chain_follows_the_future_that_a_function_gives() -> None:
    first, inner = futures(2)
    after = then(first, lambda _: inner)
    caught = catch(after, lambda _: inner)
    first.set_result(1)
    assert not after.done()
    inner.set_result(2)
    assert (after.result(), caught.result()) == (2, 2)


def test_a_failure_that_is_caught_is_a_result() -> None:
    failed: Future[Any] = Future()
    failed.set_exception(KeyError(3))
    assert (catch(failed).result(), catch(failed, repr).result()) == (None, "KeyError(3)")


@pytest.mark.parametrize("length", [0, 1, 2])
def test_futures_that_follow_each_other_in_a_ring_fail(length: int) -> None:
    ring: list[Future[Any]] = [Future() for _ in range(length)]
    first = ThenableFuture()
    after = first.then(lambda _: ring[0] if ring else after)
    for number, future in enumerate(ring):
        future.set_result(ring[(number + 1) % length])
    first.set_result(1)
    with pytest.raises(RuntimeError, match="cycle"):
        after.result(timeout=60)


@pytest.mark.parametrize("cancelled", [0, 1])
def test_cancelling_the_first_of_a_chain_cancels_the_rest(cancelled: int) -> None:
    first = ThenableFuture()
    after = first.then(str)
    (first, after)[cancelled].cancel()
    assert (first.cancelled(), after.cancelled()) == (cancelled == 0, True)
    if cancelled:
        first.set_result(1)
    assert wait([after], timeout=60).done == {after}
