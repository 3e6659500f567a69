"""Lowering: offsets, and the waits that follow from overlapping memory."""

from __future__ import annotations

import pytest

from collectives.schedule.contracts import SPECS
from collectives.schedule.program import Instruction, Kind, Layout, Program, Span, lay_out, lower, split_evenly
from collectives.schedule.steps import (
    Buf,
    Geometry,
    Step,
    copy,
    inp,
    out,
    recv,
    reduce,
    scratch,
    send,
    settle,
    signal,
    stage,
    wait,
)


def layout(*blocks: int, segments: int = 1, alias: int | None = None, collective: str = "allreduce") -> Layout:
    return lay_out(SPECS[collective], Geometry(0, len(blocks), segments=segments), blocks, alias=alias)


def program(*steps: Step, blocks: tuple[int, ...] = (2, 2, 2), alias: int | None = None) -> Program:
    return lower(steps, layout(*blocks, alias=alias))


def kinds(lowered: Program) -> list[Kind]:
    return [step.kind for step in lowered.instructions]


def test_split_evenly_gives_the_larger_parts_first() -> None:
    assert split_evenly(7, 3) == [3, 2, 2]
    assert split_evenly(2, 4) == [1, 1, 0, 0]
    assert split_evenly(0, 2) == [0, 0]


def test_layouts_know_where_chunks_stand() -> None:
    table = layout(3, 0, 5, segments=2)
    assert table.sizes == (2, 1, 0, 0, 3, 2)
    assert table.largest == 3
    assert table.inputs == {0: 0, 1: 2, 2: 3, 3: 3, 4: 3, 5: 6}
    own = lay_out(SPECS["allgather"], Geometry(1, 3), (3, 4, 5))
    assert (own.inputs, own.outputs) == ({1: 0}, {0: 0, 1: 3, 2: 7})
    unknown = lay_out(SPECS["scatter"], Geometry(1, 3, segments=2), (-1, 4, -1), largest=9)
    assert (unknown.sizes, unknown.largest, unknown.inputs) == ((-1, -1, 2, 2, -1, -1), 5, {})


def test_steps_become_offsets() -> None:
    lowered = program(reduce(inp(1), scratch(2, 1), out(1), "x"), copy(out(1, 2), stage(1, 1, 2), "y"))
    first, second = lowered.instructions
    assert first == Instruction(
        Kind.REDUCE, "x", a=Span(Buf.IN, 2, 4), b=Span(Buf.SCRATCH, 4, 6), dst=Span(Buf.OUT, 2, 4)
    )
    assert second.a == Span(Buf.OUT, 2, 6)
    assert second.dst == Span(Buf.STAGE, 2, 6)
    assert (lowered.scratch, lowered.stage) == (6, 6)


def test_a_piece_of_a_slot_stands_behind_the_chunks_before_it() -> None:
    lowered = program(copy(inp(2), scratch(1, 2, base=1), "x"), blocks=(1, 3, 2))
    assert lowered.instructions[0].dst == Span(Buf.SCRATCH, 3 + 3, 3 + 3 + 2)


def test_in_place_calls_read_the_aliased_buffer() -> None:
    lowered = program(copy(inp(1), out(1), "dropped"), copy(inp(1), out(2), "kept"), alias=0)
    assert [step.label for step in lowered.instructions] == ["kept"]
    assert lowered.instructions[0].a == Span(Buf.OUT, 2, 4)


def test_empty_pieces_are_dropped_and_tokens_are_not() -> None:
    steps = send(1, inp(0), "empty"), copy(inp(0), out(0), "empty"), send(1, None, "token"), recv(1, None, "token")
    lowered = program(*steps, blocks=(0, 2))
    assert kinds(lowered) == [Kind.SEND, Kind.RECV, Kind.AWAIT, Kind.AWAIT]
    assert {step.label for step in lowered.instructions} == {"token"}


def test_memory_in_use_is_waited_for() -> None:
    lowered = program(
        recv(1, scratch(0, 0), "in"),
        send(1, out(0), "away"),
        copy(inp(1), out(1), "elsewhere"),
        reduce(scratch(0, 0), inp(0), out(0), "both"),
        send(2, out(0), "again"),
        copy(out(0), scratch(0, 0), "reading is no conflict"),
    )
    assert [(step.kind, step.label) for step in lowered.instructions] == [
        (Kind.RECV, "in"),
        (Kind.SEND, "away"),
        (Kind.COPY, "elsewhere"),
        (Kind.AWAIT, "in"),
        (Kind.AWAIT, "away"),
        (Kind.REDUCE, "both"),
        (Kind.SEND, "again"),
        (Kind.COPY, "reading is no conflict"),
        (Kind.AWAIT, "again"),
    ]
    assert lowered.requests == 3


def test_a_receive_waits_for_everything_in_its_place_and_a_send_for_receives_only() -> None:
    lowered = program(send(1, out(0), "a"), send(2, out(0), "b"), recv(1, out(0), "c"), send(1, out(0), "d"))
    assert kinds(lowered) == [
        Kind.SEND,
        Kind.SEND,
        Kind.AWAIT,
        Kind.AWAIT,
        Kind.RECV,
        Kind.AWAIT,
        Kind.SEND,
        Kind.AWAIT,
    ]
    awaited = [step.request for step in lowered.instructions if step.kind is Kind.AWAIT]
    assert awaited == [0, 1, 2, 3]


def test_a_signal_waits_for_receives_into_stage_but_not_for_a_peers() -> None:
    lowered = program(recv(1, stage(0, 0), "in"), send(1, stage(0, 1, rank=2), "out"), signal(1, "x"), wait(1, 1, "y"))
    assert kinds(lowered) == [Kind.RECV, Kind.SEND, Kind.AWAIT, Kind.SIGNAL, Kind.WAIT, Kind.AWAIT]
    assert lowered.phases == 1


def test_settle_waits_for_everything_in_order() -> None:
    lowered = program(send(1, inp(0), "a"), recv(1, out(0), "b"), settle("x"), settle("nothing left"))
    assert kinds(lowered) == [Kind.SEND, Kind.RECV, Kind.AWAIT, Kind.AWAIT]
    assert [step.request for step in lowered.instructions] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (copy(inp(0), out(7), "x"), "chunks 7:8: .*how large"),
        (copy(inp(1, 2), out(0, 3), "x"), "operands differ in size"),
        (Step(copy(inp(0), out(0), "x").opcode, "x", a=inp(0)), "operands are missing"),
        (reduce(inp(0), inp(0), out(1), "x")._replace(b=None), "operands are missing"),
        (copy(scratch(0, 2, base=-1), scratch(0, 9), "x"), "chunks .*how large"),
    ],
)
def test_impossible_steps_are_refused(step: Step, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        program(step)


def test_memory_that_a_rank_does_not_have_is_refused() -> None:
    table = lay_out(SPECS["allgather"], Geometry(0, 2), (2, 2))
    with pytest.raises(ValueError, match=r"\bIN\b.*chunk=1\b"):
        lower([copy(inp(1), out(1), "x")], table)
    column = lay_out(SPECS["alltoall"], Geometry(0, 2), (2, 2, 2, -1))
    with pytest.raises(ValueError, match="adjacent in OUT"):
        lower([recv(1, out(0, 3), "x")], lay_out(SPECS["alltoall"], Geometry(0, 2), (2, 2, 2, 2)))
    with pytest.raises(ValueError, match=r"chunks 3:4: .*how large"):
        lower([recv(1, scratch(0, 3), "x")], column)
    with pytest.raises(ValueError, match=r"chunks 3:2: .*how large"):
        lower([recv(1, scratch(0, 2, base=3), "x")], lay_out(SPECS["alltoall"], Geometry(0, 2), (2, -1, 2, 2)))
