"""The final parameters of an elastic job equal those of one process that trains with the same history of members."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import collectives as ronde
from collectives import Communicator, RendezvousError
from collectives.elastic import State, run
from collectives.membership import ask_to_leave
from tests.collectives.elastic.oracle import BATCH, MODULUS, Oracle, first_sampler, first_weights, gradient
from tests.collectives.membership.changes import SECONDS, job

EPOCHS = 6


class Dies(Exception):
    pass


@pytest.mark.long
@pytest.mark.parametrize(("transport", "seed"), [("local", 1), ("local", 2), ("local", 3), ("tcp", 4), ("auto", 5)])
def test_the_parameters_are_those_of_one_process(transport: str, seed: int) -> None:
    chance = random.Random(seed)
    dying, leaving = set[int](), set[int]()
    planned = {at: chance.choice(["come", "come", "leave", "die"]) for at in range(2, 60, 4)}
    numbers = iter(range(10, 100))
    changed = threading.Condition()
    inside: set[Communicator] = set()
    newcomers = []

    def happen(at: int) -> None:
        """The changes planned for a step, on rank 0, once."""
        event = planned.pop(at, None)
        there = sorted(set(ronde.world().transport.group.numbers) - dying - leaving)
        if event == "come":
            newcomers.append(here.come(body, next(numbers)))
        elif event == "leave" and len(there) > 2:
            leaving.add(chance.choice(there))
            ask_to_leave(here.store, list(leaving), "the plan")
        elif event == "die" and len(there) > 2:
            dying.add(chance.choice(there))

    @run
    def train(state: Any) -> None:
        while state.sampler.epoch < EPOCHS:
            comm = ronde.world()
            number = comm.transport.group.numbers[comm.rank]
            if comm.rank == 0:
                happen(len(state.sizes))
            while len(samples := state.sampler.take(BATCH)):
                state.weights -= comm.allreduce(gradient(state.weights, [samples])) % MODULUS
                state.sizes.append(comm.size)
                if number in dying:
                    raise Dies
                if comm.rank == 0:
                    happen(len(state.sizes))
                state.commit()
            state.sampler.next_epoch()

    def body(comm: Communicator) -> tuple[list[int], list[int]] | None:
        state = State(weights=first_weights(), sampler=first_sampler(), sizes=[])
        with changed:
            inside.add(comm)
        try:
            train(state)
        except (SystemExit, Dies) as end:
            if isinstance(end, Dies):
                ronde.world().abort("it dies")
            return None
        finally:
            with changed:
                inside.remove(comm)
                changed.notify_all()
        return state.weights.tolist(), state.sizes

    with job(transport, join_timeout=SECONDS) as here:
        first = here.start(3, body)
        results = [future.result(2 * SECONDS) for future in first]
        with changed:
            assert changed.wait_for(lambda: not inside, 2 * SECONDS)
        here.store.close()  # ends newcomers that came too late
        for future in newcomers:
            if not isinstance(future.exception(SECONDS), RendezvousError):
                results.append(future.result())
    ended = [result for result in results if result is not None]
    weights, sizes = ended[0]
    assert all(result == (weights, sizes) for result in ended)
    assert len(set(sizes)) > 1
    alone = Oracle().train(sizes)
    assert (alone.epoch, alone.done) == (EPOCHS, 0)
    assert alone.weights.tolist() == weights
