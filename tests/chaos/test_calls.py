"""The random collectives are right where the runtime is, and notice where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectives import Communicator, PeerLost
from tests.chaos.calls import KINDS, Wrong, perform, untouched
from tests.worlds import world_of


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_results_are_right(size: int) -> None:
    with world_of("local", size) as world:
        world.run(lambda comm: [perform(comm, 1, number) for number in range(8 * len(KINDS))])


def test_a_wrong_element_is_noticed() -> None:
    class Liar:
        """A communicator of one whose results are off by one."""

        rank, size = 0, 1

        def __init__(self, comm: Communicator) -> None:
            self._comm = comm

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._comm, name)

            def lie(*args: Any, **options: Any) -> Any:
                result = method(*args, **options)
                if isinstance(result, np.ndarray) and result.size:
                    result.flat[-1] = not result.flat[-1]
                return result

            return lie

    with world_of("local", 1) as world:
        liar = Liar(world.communicators[0])
        noticed = 0
        for number in range(50):
            try:
                perform(liar, 1, number)  # type: ignore[arg-type]
            except Wrong:
                noticed += 1
    assert noticed > 20  # barriers, objects and empty arrays have nothing to lie about


def test_an_input_that_changes_is_noticed_also_when_the_call_fails() -> None:
    x = np.zeros(3)

    def fail() -> None:
        with untouched(x):
            x[1] = 1
            raise PeerLost("as it happens")

    with pytest.raises(Wrong, match=r"input.*element 1 of 3"):
        fail()
