"""Litmus tests: the words that ranks publish in shared memory, and the data that these words announce. Two processes
share a mapping and run the runtime's own functions against each other; every round compares what a side sees with what
must be seen.

    python -m tests.platforms.litmus --rounds 100000000

    ring       data, then WRITTEN: a frame is whole; the read data, then READ: the sender does not overwrite them
    window     data, then check and EPOCH: a rank that has awaited an epoch sees data and check
    board      identity, then STATE: a rank that sees a peer open reads its identity; cause, then ABORTED likewise
    sleepers   EPOCH, then ASKED against ASKED, then EPOCH: not both sides miss the other (store buffering)

`ring` and `window` are run in Python and in machine code, `board` in Python, `sleepers` in machine code. `unordered` is
`sleepers` without a barrier: it shows that this machine does reorder, and that a missing barrier would be seen. x86-64
reorders a store with a later load alone; the others can go wrong on aarch64. The jobs of the progress thread
(SUBMITTED, BELL and SLEEPS, ENDED and WAITERS) are stored and loaded by the same two instructions as EPOCH and ASKED.
Doorbells are not here: a ring that is missed delays a rank, and every sleep is bounded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from tests.transports.groups import group_of_processes
from transports import shm
from transports.compiled import BELL, IN, IN_DATA, LANE_WORDS, MASK, OUT, OUT_DATA
from transports.errors import AbortedError, DeadlineExceeded, MismatchError, PeerLost
from transports.liveness import Identity
from transports.onesided import OneSided
from transports.rendezvous.file import FileStore
from transports.shm.board import CLOSED, OPEN, Board
from transports.shm.doorbell import Doorbell
from transports.shm.ring import CONTROL_BYTES, Incoming, Outgoing, RingMemory

_MEMORY: Final = 1 << 20
_RING: Final = 1024
_FOUND: Final = 64
"""Bytes at the start of the memory for what a side has found."""
_PYTHON_ROUND: Final = 50
"""A round of Python takes as long as so many of machine code."""
_BOARD_ROUND: Final = 1000
_WINDOW_BYTES: Final = 4096
_UNORDERED_ROUNDS: Final = 1_000_000
_UNORDERED_SECONDS: Final = 30.0
"""Time for a machine that others use to show that it reorders: both sides must run at the same time."""
_LEAST_SECONDS: Final = 5.0
"""Time for a few rounds on a machine that others use; the default takes a tenth of it on one that is idle."""
_GRACE: Final = 20.0


@dataclass(frozen=True)
class Outcome:
    """The findings of a litmus test.

    rounds   that ended within the time
    in_step  those in which both sides ran at the same time
    wrong    those in which a side saw what it must not see
    """

    name: str
    rounds: int
    in_step: int
    wrong: int


Found = Any
"""Words of a side: rounds, wrong ones, those in step."""
Side = Callable[[int, "memoryview", Found, int, float], None]
"""side(0 or 1, memory, found, rounds, until): until is a time of time.monotonic()."""


def play(name: str, side: Side, rounds: int, seconds: float) -> Outcome:
    """Run both sides, each in a process of its own, for `rounds` or some seconds."""
    mapping = mmap.mmap(-1, _MEMORY)
    memory = memoryview(mapping)
    found = [memory[at : at + _FOUND].cast("q") for at in (0, _FOUND)]
    until = time.monotonic() + seconds
    child = os.fork()
    if not child:
        code = 1
        try:
            side(1, memory[2 * _FOUND :], found[1], rounds, until)
            code = 0
        finally:
            os._exit(code)
    try:
        side(0, memory[2 * _FOUND :], found[0], rounds, until)
    finally:
        code = _ended(child, until + _GRACE)
    if code:
        raise RuntimeError(f"{name}: the other side ended with code {code}")
    rounds, wrong = min(int(side[0]) for side in found), sum(int(side[1]) for side in found)
    return Outcome(name, rounds, max(int(side[2]) for side in found), wrong)


def _ended(child: int, deadline: float) -> int:
    """The exit code of a process of ours; it is killed at the deadline."""
    while not (status := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            status = os.waitpid(child, 0)
            break
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(status[1])


# ---- Python


class _Frame:
    """The destination of a frame."""

    def __init__(self, length: int) -> None:
        self.view = memoryview(bytearray(length))
        self.whole = False

    def finish(self) -> None:
        self.whole = True


def ring(side: int, memory: memoryview, found: Found, rounds: int, until: float) -> None:
    """Frames through a ring that holds a few of them."""
    bell = Doorbell(memory, 0)
    place = RingMemory(memory[256 : 256 + CONTROL_BYTES].cast("Q"), memory[1024 : 1024 + _RING])
    data = np.empty(13, np.int64)
    view = memoryview(data).cast("B")
    if side == 0:
        outgoing = Outgoing(place, bell)
        for number in range(1, rounds + 1):
            data[:] = number
            if not outgoing.send(0, 7, number & 0xFFFFFFFF, view):
                sending: Any = SimpleNamespace(done=False)
                outgoing.queue(0, 7, number & 0xFFFFFFFF, view, sending)
                while not sending.done:
                    if time.monotonic() > until:
                        return
                    outgoing.push()
                    os.sched_yield()
            found[0] = number
        return
    heads: list[tuple[int, int, _Frame]] = []

    def arrive(kind: int, tag: int, check: int, length: int) -> _Frame:
        frame = _Frame(min(length, len(view)))
        heads.append((tag, check, frame))
        return frame

    incoming = Incoming(0, place, bell, bell, arrive)
    number = 0
    while number < rounds and time.monotonic() < until:
        if not incoming.drain():
            os.sched_yield()
        while heads and heads[0][2].whole:
            tag, check, frame = heads.pop(0)
            number += 1
            data[:] = number
            found[1] += (tag, check) != (7, number & 0xFFFFFFFF) or frame.view != view
            found[0] = found[2] = number


def window(side: int, memory: memoryview, found: Found, rounds: int, until: float) -> None:
    """Both ranks publish data by an epoch, and look at those of the other one."""
    folder = bytes(memory[:256]).rstrip(b"\0").decode()
    store = FileStore(Path(folder) / "window")
    transport = shm.create(group_of_processes(side, 2, store), shm.Options())
    transport.open(until + _GRACE)
    made = transport.ability(OneSided).expose("litmus", (0, 1), _WINDOW_BYTES, until + _GRACE)
    own, theirs = (np.frombuffer(made.view(at), np.int64).reshape(4, -1) for at in (side, 1 - side))
    with contextlib.suppress(DeadlineExceeded, PeerLost):  # the time is over, here or there
        for number in range(1, rounds + 1):
            own[number % 4] = number
            made.publish(number, number & 0xFFFFFFFF)
            try:
                made.wait(1 - side, number, until, number & 0xFFFFFFFF)
            except MismatchError:
                found[1] += 1
            found[1] += bool((theirs[number % 4] != number).any())
            found[0] = found[2] = number
    del own, theirs
    made.close()
    transport.close(until + _GRACE)
    store.close()


def board(side: int, memory: memoryview, found: Found, rounds: int, until: float) -> None:
    """Ranks enter a board and leave it again; at the end one aborts."""
    folder = bytes(memory[:256]).rstrip(b"\0").decode()
    store = FileStore(Path(folder) / "board")
    group = group_of_processes(side, 2, store)
    made = Board.create_or_attach(group, (0, 1), _RING, "", until + _GRACE)
    other = 1 - side
    deadline = until + _GRACE / 2

    def awaited(state: int) -> bool:
        while made.state(other) != state:
            if time.monotonic() > deadline:
                return False
            os.sched_yield()
        return True

    for number in range(1, rounds + 1):
        if side == 0:
            made.enter(Identity(number, 3 * number, 5 * number))
        if not awaited(OPEN):
            break
        found[1] += made.process_of(other) != Identity(number, 3 * number, 5 * number)
        if side == 1:
            made.enter(Identity(number, 3 * number, 5 * number))
        over = time.monotonic() > until
        if side == 0:
            memory[512] = over
            made.leave()
        if not awaited(CLOSED):
            break
        if side == 1:
            over = bool(memory[512])
            made.leave()
        found[0] = found[2] = number
        if over:
            break
    if side == 0:
        made.segment.unlink()
        made.publish_cause(AbortedError("litmus", rank=0, peer=0))
    else:
        while not made.aborted and time.monotonic() < deadline:
            os.sched_yield()
        if made.aborted:
            cause = made.cause()
            found[1] += cause is None or cause.rank != 0
    made.release()
    store.close()


# ---- machine code


def _address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def machine_code() -> dict[str, Side]:
    """The sides in machine code, compiled now. Needs Numba."""
    from collectives.jit import layout
    from tests.platforms import litmus_code as code

    code.warm(np.zeros(4096, np.int64))

    def common(found: Found, until: float) -> tuple[int, int, Any]:
        clock = np.zeros(2, np.int64)
        return _address(memoryview(found).cast("B")), int(until * 1e9), clock

    def window_sides(side: int, memory: memoryview, found: Found, rounds: int, until: float) -> None:
        base, (at, end, clock) = _address(memory), common(found, until)
        state, data = np.zeros(layout.STATE_WORDS, np.int64), np.zeros(2, np.int64)
        note = np.zeros(2, np.int64)
        controls = [base + code.CONTROL * index for index in range(2)]
        parts = [base + 4096 * (1 + index) for index in range(2)]
        state[layout.OWN], state[layout.PUBLISHED] = controls[side], note.ctypes.data
        state[layout.SPINS], state[layout.YIELDS] = code.SPINS, code.YIELDS
        data[:] = parts[side], parts[1 - side]
        code.epochs(state.ctypes.data, controls[1 - side], data.ctypes.data, at, rounds, clock.ctypes.data, end)

    def ring_sides(side: int, memory: memoryview, found: Found, rounds: int, until: float) -> None:
        base, (at, end, clock) = _address(memory), common(found, until)
        lanes, payload = np.zeros(LANE_WORDS, np.int64), np.zeros(code.PAYLOAD_WORDS, np.int64)
        lanes[OUT] = lanes[IN] = base
        lanes[OUT_DATA] = lanes[IN_DATA] = base + 4096
        lanes[MASK], lanes[BELL] = _RING - 1, base + 2048
        state = np.zeros(layout.STATE_WORDS, np.int64)
        state[layout.SPINS], state[layout.YIELDS] = code.SPINS, code.YIELDS
        given = payload.ctypes.data, at, rounds, clock.ctypes.data, end
        if side:
            code.receives(lanes.ctypes.data, state.ctypes.data, *given)
        else:
            code.sends(lanes.ctypes.data, *given)

    def sleepers(ordered: bool) -> Side:
        def sides(side: int, memory: memoryview, found: Found, rounds: int, until: float) -> None:
            base, (at, end, clock) = _address(memory), common(found, until)
            state, note = np.zeros(layout.STATE_WORDS, np.int64), np.zeros(2, np.int64)
            state[layout.PUBLISHED] = note.ctypes.data
            code.sleepers(ordered, side, state.ctypes.data, base, at, rounds, clock.ctypes.data, end)

        return sides

    return {
        "ring, machine code": ring_sides,
        "window, machine code": window_sides,
        "sleepers, machine code": sleepers(True),
        UNORDERED: sleepers(False),
    }


UNORDERED: Final = "unordered, machine code"
"""The one that has no barrier and may go wrong."""
PYTHON: Final[dict[str, tuple[Side, int]]] = {
    "ring, Python": (ring, _PYTHON_ROUND),
    "window, Python": (window, _PYTHON_ROUND),
    "board, Python": (board, _BOARD_ROUND),
}


def run(rounds: int, *, compiled: bool) -> list[Outcome]:
    """All litmus tests of one kind."""
    seconds = _LEAST_SECONDS + rounds * 3e-6
    outcomes = []
    if compiled:
        for name, side in machine_code().items():
            outcomes.append(play(name, side, rounds, seconds))
            patience = time.monotonic() + _UNORDERED_SECONDS
            while name == UNORDERED and not outcomes[-1].wrong and time.monotonic() < patience:
                outcomes[-1] = play(name, side, _UNORDERED_ROUNDS, seconds)
        return outcomes
    for name, (side, weight) in PYTHON.items():
        with tempfile.TemporaryDirectory() as folder:

            def begun(number: int, memory: memoryview, *rest: Any, side: Side = side, folder: str = folder) -> None:
                if side is not ring:
                    memory[: len(folder)] = folder.encode()
                side(number, memory, *rest)

            outcomes.append(play(name, begun, max(1, rounds // weight), seconds))
    return outcomes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.platforms.litmus")
    parser.add_argument("--rounds", type=int, default=100_000, help="of machine code; Python makes fewer")
    parser.add_argument("--kind", choices=("both", "python", "compiled"), default="both")
    given = parser.parse_args(arguments)
    outcomes = []
    for kind in ("python", "compiled"):
        if given.kind in ("both", kind):
            outcomes += run(given.rounds, compiled=kind == "compiled")
    for outcome in outcomes:
        print(json.dumps(asdict(outcome)), flush=True)
    return int(any(outcome.wrong for outcome in outcomes if outcome.name != UNORDERED))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
