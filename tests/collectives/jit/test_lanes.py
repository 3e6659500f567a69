"""Messages of the compiled interpreter that come late, over a ring and a socket of which a test has the other end."""

from __future__ import annotations

import ctypes
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collectives.jit import SOURCE, TARGET, Operand
from tests.collectives.jit.test_interpreter import CHECK, Rig
from transports.compiled import BUFFER, BY_FUTEX, EARLY, END, HEAD, HEAD_BYTES, IN, LANE_WORDS, READ, WANTED
from transports.shm.doorbell import CAN_SLEEP, Doorbell
from transports.shm.ring import CONTROL_BYTES, Incoming, Outgoing, RingMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not CAN_SLEEP, reason="machine code sleeps by futex(2)")

TAG = 5
RING_BYTES = 4096
BY_DESCRIPTOR = 2
PATIENT = 20_000
"""Sleeps of a millisecond: more than a loaded machine needs until another thread has sent."""
_FOR_AN_HOUR = 10**10
"""Yields that take that long."""
VALUES = np.arange(4, dtype=np.float32)


class Late(Rig):
    """A rig that receives four numbers from rank 1, or sends them.

    near   this rank's doorbell
    far    that of rank 1
    words  of the lanes to and from rank 1
    """

    def __init__(self, sleeps: int, yields: int = 0) -> None:
        super().__init__()
        self.state.use_messages(0, yields, sleeps)
        bells = memoryview(bytearray(16))
        self.near, self.far = Doorbell(bells, 0), Doorbell(bells, 8)
        self.words = (ctypes.c_int64 * LANE_WORDS)()

    def ring(self) -> RingMemory:
        """The memory of a new ring."""
        return RingMemory(memoryview(bytearray(CONTROL_BYTES)).cast("Q"), memoryview(bytearray(RING_BYTES)))

    def ring_from_peer(self) -> tuple[RingMemory, Outgoing]:
        """The memory of the ring from rank 1, and rank 1's end."""
        memory = self.ring()
        Incoming(1, memory, self.far, self.near, lambda *frame: None).tell(self.words)
        return memory, Outgoing(memory, self.near)

    def taking(self) -> Any:
        """The function of a call that receives."""
        self.writer.take(VALUES.nbytes, Operand(TARGET, 0), ctypes.addressof(self.words))
        return self.bind(tag=TAG, staged=False)

    def sending(self) -> Any:
        """The function of a call that sends its source."""
        self.writer.send(VALUES.nbytes, Operand(SOURCE, 0), ctypes.addressof(self.words))
        return self.bind(tag=TAG, staged=False)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield near, far


def test_a_rank_sleeps_at_its_doorbell_until_a_frame_is_in_a_ring() -> None:
    late, target = Late(PATIENT), np.zeros(4, np.float32)
    _, peer = late.ring_from_peer()
    run = late.taking()

    def send_once_it_sleeps() -> None:
        while late.near.word[0] != BY_FUTEX:
            time.sleep(0)
        peer.send(0, TAG, CHECK ^ 1, memoryview(VALUES).cast("B"))

    sender = threading.Thread(target=send_once_it_sleeps)
    sender.start()
    assert run(target, target) is None
    sender.join()
    assert target.tolist() == VALUES.tolist()
    assert late.near.word[0] == 0


def test_a_rank_sleeps_until_a_message_comes_by_a_socket(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    late, target = Late(PATIENT), np.zeros(4, np.float32)
    buffer = bytearray(1024)
    late.words[IN], late.words[BUFFER] = near.fileno(), ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    run, begun = late.taking(), threading.Event()

    def send_in_two_parts() -> None:
        begun.wait(20)
        frame = HEAD.pack(TAG, CHECK ^ 1, VALUES.nbytes) + VALUES.tobytes()
        for part in (frame[:7], frame[7:]):
            time.sleep(0.003)
            far.sendall(part)

    sender = threading.Thread(target=send_in_two_parts)
    sender.start()
    begun.set()
    assert run(target, target) is None
    sender.join()
    assert target.tolist() == VALUES.tolist()


def test_a_part_of_a_message_behind_one_that_came_before_the_call(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    late, target = Late(2), np.zeros(8, np.float32)
    frame = HEAD.pack(TAG, CHECK ^ 1, VALUES.nbytes) + VALUES.tobytes()
    buffer = bytearray(frame + bytes(1024))
    late.words[IN], late.words[BUFFER] = near.fileno(), ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    late.words[EARLY] = len(frame)
    far.sendall(frame[:7])
    late.writer.take(VALUES.nbytes, Operand(TARGET, 0), ctypes.addressof(late.words))
    late.writer.take(VALUES.nbytes, Operand(TARGET, VALUES.nbytes), ctypes.addressof(late.words))
    assert late.bind(tag=TAG, staged=False)(target, target) == 1
    assert target[:4].tolist() == VALUES.tolist()
    assert (late.words[EARLY], late.words[END]) == (0, 7)


def test_a_message_that_does_not_come_is_left_to_python(sockets: tuple[socket.socket, socket.socket]) -> None:
    """Yields of the core end in time, however many there are: each takes milliseconds where other programs run."""
    target = np.zeros(4, np.float32)
    in_ring, by_socket = Late(2, _FOR_AN_HOUR), Late(2, _FOR_AN_HOUR)
    in_ring.ring_from_peer()
    buffer = bytearray(1024)
    by_socket.words[IN] = sockets[0].fileno()
    by_socket.words[BUFFER] = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    for late in (in_ring, by_socket):
        assert late.taking()(target, target) == 0
        assert (late.state.moved, late.near.word[0]) == (0, 0)


@pytest.mark.parametrize("sleeps", [0, BY_FUTEX, BY_DESCRIPTOR])
def test_a_message_wakes_a_peer_unless_it_sleeps_on_a_descriptor(sleeps: int) -> None:
    late, memory = Late(0), Late(0).ring()
    Outgoing(memory, late.far).tell(late.words)
    late.far.word[0] = sleeps
    answer = late.sending()(VALUES, VALUES)
    assert memory.control[0] > 0
    if sleeps == BY_DESCRIPTOR:  # Python wakes it
        assert (answer, late.state.moved, late.far.word[0]) == (0, HEAD_BYTES + VALUES.nbytes, BY_DESCRIPTOR)
    else:
        assert (answer, late.far.word[0]) == (None, 0)


@pytest.mark.parametrize("sleeps", [BY_FUTEX, BY_DESCRIPTOR])
def test_a_peer_that_waits_for_room_is_woken_likewise(sleeps: int) -> None:
    late, target = Late(0), np.zeros(4, np.float32)
    memory, peer = late.ring_from_peer()
    peer.send(0, TAG, CHECK ^ 1, memoryview(VALUES).cast("B"))
    memory.control[WANTED], late.far.word[0] = 1, sleeps
    answer = late.taking()(target, target)
    assert memory.control[READ] > 0
    assert target.tolist() == VALUES.tolist()
    assert (answer, late.far.word[0]) == ((None, 0) if sleeps == BY_FUTEX else (0, BY_DESCRIPTOR))
