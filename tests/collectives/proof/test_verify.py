"""The prover refuses what is wrong: schedules made wrong by hand, and every algorithm with one step changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

from collectives.algorithms import Algorithm, Cost, algorithms
from collectives.proof.all_ranks import Lowered, count_blocks, lower_ranks
from collectives.proof.verify import ProofError, check, prove
from collectives.schedule.contracts import SPECS
from collectives.schedule.program import Kind, Span
from collectives.schedule.steps import (
    Buf,
    Geometry,
    Marks,
    Opcode,
    Ref,
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

ALL = [found for collective in SPECS for found in algorithms(collective).values()]
REDUCING = [found for found in ALL if SPECS[found.collective].reduces]

every_algorithm = pytest.mark.parametrize("tested", ALL, ids=lambda tested: f"{tested.collective}-{tested.name}")

Edit = Callable[[list[Step]], list[Step]]


def mutant(tested: Algorithm, rank: int, edit: Edit) -> Algorithm:
    """The algorithm with the steps of one rank edited."""

    def generate(g: Geometry) -> Iterator[Step]:
        steps = list(tested.generate(g))
        return iter(edit(steps) if g.rank == rank else steps)

    return replace(tested, generate=generate)


def swap(at: int, *new: Step) -> Edit:
    """Put other steps in the place of one."""
    return lambda steps: [*steps[:at], *new, *steps[at + 1 :]]


def survivors(
    tested: Algorithm, size: int, segments: int, changes: Callable[[Step, int], Iterator[tuple[Step, ...]]]
) -> list[str]:
    """Prove the algorithm with each change of each step of each rank; which changes the prover lets pass."""
    segments = segments if tested.segmented else 1
    passed = []
    for rank in range(size):
        for at, step in enumerate(tested.generate(Geometry(rank, size, 0, segments))):
            for new in changes(step, rank):
                try:
                    prove(mutant(tested, rank, swap(at, *new)), size, segments=segments)
                except ProofError:
                    continue
                passed.append(f"rank {rank}, step {at} {step} -> {new}")
    return passed


# Every algorithm, changed


@every_algorithm
def test_no_step_can_be_left_out_or_have_another_peer_slot_or_chunk(tested: Algorithm) -> None:
    def changes(step: Step, rank: int) -> Iterator[tuple[Step, ...]]:
        if step.opcode is not Opcode.AWAIT:  # it only holds back
            yield ()
        for peer in range(3) if step.peer >= 0 else ():
            if peer != step.peer:
                yield (step._replace(peer=peer),)
        for field in ("a", "b", "dst"):
            ref: Ref | None = getattr(step, field)
            if ref is not None:
                wrong = ref._replace(slot=ref.slot ^ 1) if ref.slot >= 0 else ref._replace(chunk=ref.chunk ^ 1)
                yield (step._replace(**{field: wrong}),)  # type: ignore[arg-type]
            if ref is not None and ref.rank >= 0:
                elsewhere = ref._replace(rank=(ref.rank + 1) % 3)
                yield (step._replace(**{field: elsewhere}),)  # type: ignore[arg-type]

    assert survivors(tested, 3, 2, changes) == []


def test_no_step_of_four_ranks_can_be_left_out() -> None:
    def changes(step: Step, rank: int) -> Iterator[tuple[Step, ...]]:
        if step.opcode is not Opcode.AWAIT:
            yield ()

    for tested in ALL:
        assert survivors(tested, 4, 1, changes) == []


@pytest.mark.long
def test_no_wait_can_be_for_an_earlier_phase_and_no_signal_for_a_later() -> None:
    def changes(step: Step, rank: int) -> Iterator[tuple[Step, ...]]:
        if step.opcode is Opcode.WAIT:
            yield (step._replace(phase=step.phase - 1),)
        if step.opcode is Opcode.SIGNAL:
            yield (step._replace(phase=step.phase + 1),)

    for tested in ALL:
        if tested.onesided:
            assert survivors(tested, 3, 4, changes) == []


@pytest.mark.long
def test_nothing_is_combined_twice() -> None:
    def changes(step: Step, rank: int) -> Iterator[tuple[Step, ...]]:
        if step.opcode is Opcode.REDUCE:
            again = step._replace(a=step.dst)
            yield step, again
            yield (step._replace(a=step.b),)

    for tested in REDUCING:
        assert survivors(tested, 4, 1, changes) == []


@pytest.mark.long
def test_no_mark_of_a_combination_can_be_wrong() -> None:
    def changes(step: Step, rank: int) -> Iterator[tuple[Step, ...]]:
        if step.opcode is Opcode.REDUCE:
            for mark in (Marks.LAST, Marks.A_ALONE, Marks.B_ALONE):
                yield (step._replace(phase=step.phase ^ mark),)

    finishing = [tested for tested in REDUCING if tested.finishes]
    assert len(finishing) >= 6
    for tested in finishing:
        assert survivors(tested, 4, 2, changes) == []


def test_operands_in_tree_order_cannot_be_exchanged() -> None:
    def changes(step: Step, rank: int) -> Iterator[tuple[Step, ...]]:
        if step.opcode is Opcode.REDUCE:
            yield (step._replace(a=step.b, b=step.a),)

    for tested in REDUCING:
        if tested.tree_order:
            assert survivors(tested, 5, 1, changes) == []


def test_tree_order_cannot_be_claimed_wrongly() -> None:
    for tested in REDUCING:
        if not tested.tree_order:
            with pytest.raises(ProofError, match=r"not combined .*(canonical tree|left to right)"):
                prove(replace(tested, tree_order=True), 5, hosts=(0, 1, 0, 1, 0) if tested.multihost else ())


def test_promises_are_held() -> None:
    for tested in ALL:
        traffic, stage_chunks = tested.traffic, tested.stage_chunks
        more = replace(tested, traffic=partial(lambda promised, g: promised(g) + 1, traffic))
        with pytest.raises(ProofError, match="elements are sent"):
            prove(more, 4, sizes=[4] * count_blocks(tested, 4))
        if tested.stage_chunks(4):
            smaller = replace(tested, stage_chunks=partial(lambda promised, size: promised(size) // 2, stage_chunks))
            with pytest.raises(ProofError, match="out of bounds"):
                prove(smaller, 4, segments=1 + tested.segmented)


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather", "alltoall"])
def test_awaits_cannot_come_later(collective: str) -> None:
    """Lowering is proved too: an AWAIT that it puts before a conflicting access must be there."""
    tried = 0
    for tested in algorithms(collective).values():
        lowered = lower_ranks(tested, 4, segments=2 if tested.segmented else 1)
        if any(step.opcode is Opcode.AWAIT for step in tested.generate(lowered.geometry)):
            continue
        steps = lowered.programs[1].instructions
        used = {step.request for step in steps if step.kind is Kind.AWAIT}
        tail = len(steps)
        while tail and steps[tail - 1].kind is Kind.AWAIT:
            tail -= 1
        for at in range(tail):
            if steps[at].kind is not Kind.AWAIT:
                continue
            assert steps[at].request in used
            later = (*steps[:at], *steps[at + 1 :], steps[at])
            programs = list(lowered.programs)
            programs[1] = replace(programs[1], instructions=later)
            with pytest.raises(ProofError, match="pending"):
                check(replace(lowered, programs=tuple(programs)))
            tried += 1
    assert tried or collective == "alltoall"


# Schedules made wrong by hand


def made(
    collective: str, *ranks: list[Step], slots: int = 0, onesided: bool = False, traffic: Fraction | int = 0
) -> Algorithm:
    """An algorithm that does these steps on ranks 0, 1, ..."""
    return Algorithm(
        lambda g: iter(ranks[g.rank]),
        collective,
        "wrong",
        cost=lambda g: Cost(0, 0),
        traffic=lambda g: Fraction(traffic),
        blocks=lambda size: 1,
        segmented=True,
        onesided=onesided,
        stage_chunks=lambda size: slots,
    )


def refuse(wrong: Algorithm, reason: str, size: int = 2, **more: int) -> ProofError:
    with pytest.raises(ProofError, match=reason) as caught:
        prove(wrong, size, **more)  # type: ignore[arg-type]
    assert f"{wrong.collective} 'wrong'" in str(caught.value)
    return caught.value


def test_sends_are_not_buffered() -> None:
    sends = [[send(1 - rank, inp(0), "away"), settle("hold"), recv(1 - rank, out(0), "in")] for rank in range(2)]
    error = refuse(made("allreduce", *sends), "deadlock: rank 0 in 'away' for rank 1, rank 1 in 'away' for rank 0")
    assert (error.rank, error.at) == (0, 1)


def test_messages_must_meet() -> None:
    refuse(made("barrier", [send(1, None, "x")], []), "deadlock: rank 0 in 'x' for rank 1")
    refuse(made("barrier", [], [recv(0, None, "x")]), "deadlock: rank 1 in 'x' for rank 0")
    sized = made("broadcast", [copy(inp(0), out(0), "x"), send(1, inp(0), "x")], [recv(0, None, "y")])
    refuse(sized, r"sends 1 elements \('x'\), rank 1 expects 0 \('y'\)")
    refuse(made("broadcast", [send(2, inp(0), "x")], []), "there is no rank 2")


def test_every_request_is_awaited() -> None:
    lowered = lower_ranks(made("barrier", [send(1, None, "left")], [recv(0, None, "left")]), 2)
    programs = [replace(program, instructions=program.instructions[:1]) for program in lowered.programs]
    with pytest.raises(ProofError, match=r"rank 0 of 2, instruction 0, SEND 'left': .*awaited"):
        check(replace(lowered, programs=tuple(programs)))


def test_results_must_be_whole_and_right() -> None:
    both = [copy(inp(0), out(0), "x")]
    refuse(made("allreduce", both, both), "rank [01] of 2, end: OUT 0 lacks .*rank [01]")
    refuse(made("allreduce", [], []), "OUT 0 is not written")
    wrong_block = [copy(inp(0), out(0), "x"), recv(1, out(1), "x"), send(1, inp(0), "x")]
    wrong_source = [
        copy(inp(1), out(0), "x"),
        recv(0, scratch(0, 0), "x"),
        send(0, inp(1), "x"),
        copy(inp(1), out(1), "x"),
    ]
    refuse(made("allgather", wrong_block, wrong_source), "OUT 0 .*element 0 of rank 0")


def exchange(rank: int, ordered: bool) -> list[Step]:
    got, own = scratch(0, 0), inp(0)
    left, right = (own, got) if rank == 0 or not ordered else (got, own)
    return [recv(1 - rank, got, "x"), send(1 - rank, own, "x"), reduce(left, right, out(0), "combine")]


def test_all_ranks_must_get_the_same_bits() -> None:
    prove(made("allreduce", exchange(0, True), exchange(1, True), traffic=2), 2)
    mine_first = made("allreduce", exchange(0, False), exchange(1, False), traffic=2)
    refuse(mine_first, "OUT 0 is not combined")


def test_only_matching_elements_are_combined() -> None:
    steps = [reduce(inp(0), inp(1), out(0), "x")]
    refuse(replace(made("allreduce", steps, steps), blocks=lambda size: 2), "combines elements 0 and 1")
    refuse(made("broadcast", [reduce(inp(0), inp(0), out(0), "x")], []), "combine 1 with 1 elements")


def test_in_is_not_written_and_nothing_unwritten_is_read() -> None:
    refuse(made("allreduce", [recv(1, inp(0), "x")], [send(0, inp(0), "x")]), "RECV 'x': writes IN")
    refuse(
        made("allreduce", [copy(scratch(0, 0), out(0), "x")], []),
        "reads SCRATCH 0:1 of rank 0, which no step has written",
    )
    refuse(made("broadcast", [], [copy(inp(0), out(0), "x")]), "rank 1 of 2: .*IN .*does not hold it")


def retold(wrong: Algorithm, kind: Kind) -> Lowered:
    """Lowered without the first AWAIT before the instruction of this kind, which comes at the end instead."""
    lowered = lower_ranks(wrong, 2)
    steps = list(lowered.programs[0].instructions)
    at = next(at for at, step in enumerate(steps) if step.kind is Kind.AWAIT)
    assert steps[at + 1].kind is kind
    steps.append(steps.pop(at))
    first = replace(lowered.programs[0], instructions=tuple(steps))
    return replace(lowered, programs=(first, *lowered.programs[1:]))


def test_pending_requests_keep_their_memory() -> None:
    peer = [recv(0, scratch(0, 0), "x"), send(0, inp(0), "x")]
    reads = [recv(1, scratch(0, 0), "x"), send(1, inp(0), "x"), copy(scratch(0, 0), out(0), "early")]
    with pytest.raises(ProofError, match=r"COPY 'early': reads SCRATCH 0:1 .*pending RECV"):
        check(retold(made("allreduce", reads, peer), Kind.COPY))
    writes = [recv(1, scratch(0, 0), "x"), send(1, inp(0), "x"), copy(inp(0), scratch(0, 0), "early")]
    with pytest.raises(ProofError, match=r"COPY 'early': writes SCRATCH 0:1, .*pending RECV"):
        check(retold(made("allreduce", writes, peer), Kind.COPY))
    overwrites = [copy(inp(0), out(0), "x"), send(1, out(0), "x"), copy(inp(0), out(0), "early"), recv(1, out(0), "x")]
    with pytest.raises(ProofError, match=r"COPY 'early': writes OUT 0:1, .*pending SEND"):
        check(retold(made("allreduce", overwrites, peer), Kind.COPY))


def one_sided(collective: str, *ranks: list[Step], slots: int = 1) -> Algorithm:
    return made(collective, *ranks, slots=slots, onesided=True)


def test_windows_must_be_asked_for() -> None:
    steps = [signal(1, "x")]
    refuse(made("barrier", steps, steps), "SIGNAL 'x': .*not registered as one-sided")


def test_stage_is_read_only_when_it_is_ready_and_by_peers_only() -> None:
    root = [copy(inp(0), out(0), "keep"), copy(inp(0), stage(0, 0), "stage"), signal(1, "ready"), wait(1, 1, "done")]
    late = [wait(0, 1, "ready"), copy(stage(0, 0, rank=0), out(0), "fetch"), signal(1, "done")]
    early = [signal(1, "here"), copy(stage(0, 0, rank=0), out(0), "fetch"), wait(0, 1, "ready")]
    prove(one_sided("broadcast", root, late), 2)
    refuse(one_sided("broadcast", root, early), "STAGE 0:1 of rank 0, which no step has written|without knowing")
    pushes = [copy(inp(0), out(0), "x"), copy(inp(0), stage(0, 0, rank=1), "push"), signal(1, "x"), wait(1, 1, "x")]
    refuse(one_sided("broadcast", pushes, late), "COPY 'push': writes the STAGE of rank 1")


def test_stage_is_not_reused_while_it_is_read() -> None:
    """Two segments through one slot: the second may only be staged when the first has been read."""
    root = [copy(inp(0, 2), out(0, 2), "x"), copy(inp(0), stage(0, 0), "x"), signal(1, "x")]
    again = [copy(inp(1), stage(0, 1), "again"), signal(2, "x")]
    reader = [wait(0, 1, "x"), copy(stage(0, 0, rank=0), out(0), "x"), signal(1, "x"), wait(0, 2, "x")]
    fetch = [copy(stage(0, 1, rank=0), out(1), "x"), signal(2, "x")]
    prove(one_sided("broadcast", [*root, wait(1, 1, "x"), *again], [*reader, *fetch]), 2, segments=2)
    refuse(one_sided("broadcast", [*root, *again, wait(1, 1, "x")], [*reader, *fetch]), "STAGE 0", segments=2)


def test_a_send_from_a_peers_stage_reads_it_until_it_is_complete() -> None:
    """Rank 1 forwards what rank 0 has staged, and says that it has read it when the SEND begins, or when it is over."""

    def ranks(*order: Step) -> list[list[Step]]:
        first = [copy(inp(0, 2), out(0, 2), "x"), copy(inp(0), stage(0, 0), "x"), signal(1, "x"), wait(1, 1, "read")]
        reuse = [copy(inp(1), stage(0, 1), "again"), signal(2, "x"), wait(2, 1, "x")]
        forward = [wait(0, 1, "x"), send(2, stage(0, 0, rank=0), "forward"), *order, wait(0, 2, "x"), wait(2, 1, "x")]
        fetch = [copy(stage(0, 1, rank=0), out(1), "x"), recv(2, out(0), "back"), signal(2, "x")]
        last = [recv(1, out(0), "x"), signal(1, "x"), wait(0, 2, "x"), wait(1, 1, "x")]
        rest = [copy(stage(0, 1, rank=0), out(1), "x"), send(1, out(0), "back"), signal(2, "x")]
        return [[*first, *reuse], [*forward, *fetch], [*last, *rest]]

    good = one_sided("broadcast", *ranks(settle("x"), signal(1, "read")))
    prove(replace(good, traffic=lambda g: Fraction(1)), 3, segments=2)
    refuse(
        one_sided("broadcast", *ranks(signal(1, "read"), settle("x"))), "'again': writes STAGE 0", size=3, segments=2
    )


def test_every_rank_waits_for_every_other() -> None:
    silent = [signal(1, "x"), wait(1, 1, "x")], [signal(1, "x")]
    refuse(one_sided("barrier", *silent), r"rank 1 of 2, end: never waits for ranks \[0\]")


def test_signals_and_waits_make_sense() -> None:
    refuse(one_sided("barrier", [signal(2, "x"), wait(1, 1, "x")], [signal(1, "x")]), "signals phase 2 after phase 0")
    refuse(one_sided("barrier", [wait(0, 1, "x")], []), "waits for phase 1 of rank 0")
    refuse(one_sided("barrier", [wait(1, 0, "x")], []), "waits for phase 0 of rank 1")
    refuse(one_sided("barrier", [signal(1, "x"), wait(1, 2, "x")], [signal(1, "x"), wait(0, 1, "x")]), "deadlock")
    twice = [signal(1, "x"), signal(2, "x"), wait(1, 1, "x")]
    refuse(one_sided("barrier", twice, [signal(1, "x"), wait(0, 1, "x")]), "rank 1 of 2.* signals 1 phases, rank 0 2")


def test_a_wait_must_find_the_epoch_that_it_compares() -> None:
    """Rank 0 may signal nine times before rank 1 compares the first: the window has forgotten it by then."""
    ahead = [*(signal(phase, "x") for phase in range(1, 10)), wait(1, 9, "x")]
    behind = [*(signal(phase, "x") for phase in range(1, 9)), wait(0, 1, "late"), signal(9, "x")]
    refuse(one_sided("barrier", ahead, behind), "WAIT 'late': rank 0 .*8 epochs")
    prompt = [[signal(1, "x"), wait(1 - rank, 1, "x"), signal(2, "x"), wait(1 - rank, 2, "x")] for rank in range(2)]
    prove(one_sided("barrier", *([*steps, *ahead[2:9]] for steps in prompt)), 2)


def test_a_barrier_must_hold() -> None:
    refuse(
        made("barrier", [send(1, None, "x")], [recv(0, None, "x")]),
        "rank 0 of 2, end: ends without having heard of rank 1",
    )


def test_instructions_that_lowering_would_not_write_are_refused() -> None:
    good = lower_ranks(algorithms("allreduce")["ring"], 2)
    first = good.programs[0]

    def tell(at: int, **fields: object) -> str:
        steps = list(first.instructions)
        steps[at] = steps[at]._replace(**fields)  # type: ignore[arg-type]
        with pytest.raises(ProofError) as caught:
            check(replace(good, programs=(replace(first, instructions=tuple(steps)), good.programs[1])))
        return str(caught.value)

    reduces = next(at for at, step in enumerate(first.instructions) if step.kind is Kind.REDUCE)
    awaits = next(at for at, step in enumerate(first.instructions) if step.kind is Kind.AWAIT)
    assert "an operand is missing" in tell(reduces, a=None)
    assert "SCRATCH 0:9 is out of bounds" in tell(reduces, a=Span(Buf.SCRATCH, 0, 9))
    assert "cannot combine 1 with 2 elements" in tell(reduces, b=Span(Buf.IN, 0, 2))
    assert "puts 1 elements where 2 have room" in tell(reduces, dst=Span(Buf.OUT, 0, 2))
    assert "request 77 is not pending" in tell(awaits, request=77)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"size": 0}, "size=0: .*at least 1"),
        ({"size": 2, "root": 2}, "root=2: .*rank, 0 to 1"),
        ({"size": 2, "segments": 2}, "segments=2: .*1 for 'pairwise'"),
        ({"size": 2, "hosts": (0,)}, r"hosts=\(0,\): .*host .*2 ranks"),
        ({"size": 2, "in_place": True}, "in_place=True: .*False for alltoall"),
        ({"size": 2, "sizes": (1, 2)}, r"sizes=\(1, 2\): .*4 sizes, 0 or more"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        prove(algorithms("alltoall")["pairwise"], **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sizes=\(1, 1, 1, 2\): .*equal"):
        prove(algorithms("alltoall")["bruck"], 2, sizes=(1, 1, 1, 2))
