"""The order of messages on devices: every algorithm's messages, in groups one after the other, come to an end."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from typing import Any

import pytest

from collectives.algorithms import Algorithm, algorithms
from collectives.proof.all_ranks import Lowered, ProofError, lower_ranks
from collectives.proof.exchange_order import exchange_rounds
from collectives.schedule.contracts import SPECS
from collectives.schedule.program import Instruction, Kind, Program

ALL = [found for collective in SPECS for found in algorithms(collective).values() if not found.onesided]
IN_PLACE = ("allreduce", "reduce", "broadcast")


def play(programs: list[Program], orders: list[tuple[int, ...]]) -> None:
    """Exchange groups as a device does: a rank begins a group when it must have one of its messages, and goes on when
    the whole of it is done."""
    for program, order in zip(programs, orders, strict=True):
        begun: set[int] = set()
        for step in program.instructions:
            if step.kind in (Kind.SEND, Kind.RECV):
                begun.add(step.request)
            elif step.kind is Kind.AWAIT:
                needed = {request for request, number in enumerate(order) if number <= order[step.request]}
                assert needed <= begun, f"{step.label}: a group is to begin before its messages have"
    groups: list[dict[int, list[Instruction]]] = []
    for program, order in zip(programs, orders, strict=True):
        mine: dict[int, list[Instruction]] = defaultdict(list)
        for step in program.instructions:
            if step.kind in (Kind.SEND, Kind.RECV):
                mine[order[step.request]].append(step)
        groups.append(mine)
    for number in range(1 + max((max(mine, default=-1) for mine in groups), default=-1)):
        sent: dict[tuple[int, int], list[int]] = defaultdict(list)
        received: dict[tuple[int, int], list[int]] = defaultdict(list)
        for rank, mine in enumerate(groups):
            for step in mine.get(number, ()):
                span = step.a if step.kind is Kind.SEND else step.dst
                length = 0 if span is None else span.stop - span.start
                if step.kind is Kind.SEND:
                    sent[rank, step.peer].append(length)
                else:
                    received[step.peer, rank].append(length)
        assert sent == received, f"group {number}"


def orders_of(lowered: Lowered, size: int) -> list[tuple[int, ...]]:
    return [exchange_rounds(lowered.programs, rank) for rank in range(size)]


@pytest.mark.parametrize("tested", ALL, ids=lambda tested: f"{tested.collective}-{tested.name}")
def test_every_algorithm(tested: Algorithm) -> None:
    rooted = SPECS[tested.collective].rooted
    for size, segments in product((1, 2, 3, 4, 5, 8, 11, 16), (1, 3)):
        if segments > 1 and not tested.segmented:
            continue
        options: dict[str, Any] = {
            "root": size // 2 if rooted else 0,
            "segments": segments,
            "hosts": [rank // 3 for rank in range(size)] if tested.multihost else (),
        }
        strict = lower_ranks(tested, size, in_place=tested.collective in IN_PLACE, **options)
        orders = orders_of(strict, size)
        play(list(strict.programs), orders)
        loose = lower_ranks(tested, size, **options)
        mixed = [(strict, loose)[rank % 2].programs[rank] for rank in range(size)]
        play(mixed, orders)  # calls of some ranks are not in place


def test_ranks_that_wait_for_each_other_are_found() -> None:
    def waits(peer: int) -> Program:
        steps = (
            Instruction(Kind.RECV, "r", peer, request=0),
            Instruction(Kind.AWAIT, "r", peer, request=0),
            Instruction(Kind.SEND, "s", peer, request=1),
        )
        return Program(steps, 2, 0, 0, 0)

    with pytest.raises(ProofError, match="wait for each other"):
        exchange_rounds([waits(1), waits(0)], 0)
