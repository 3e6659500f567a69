"""Messages over the lanes of a channel, as Numba compiles them. `transports.compiled` names the words of the lanes.

Waits for a frame in a ring are those of waits.py; those at a socket are like them, and sleep in poll(2). Numba is
needed to import this module.
"""

from __future__ import annotations

from collectives.jit import layout as at
from collectives.jit.atomics import (
    compiled,
    copy_bytes,
    field,
    load_acquire,
    now,
    poll,
    put,
    recv,
    recvmsg,
    restore_thread,
    send,
    sendmsg,
    store_ordered,
)
from collectives.jit.waits import LOCKED, rises, rouse, unlocked, yielded
from transports.compiled import (
    BELL,
    BUFFER,
    EARLY,
    END,
    HEAD_BYTES,
    IN,
    IN_DATA,
    MASK,
    OUT,
    OUT_DATA,
    OWN_BELL,
    READ,
    RING_HEAD_BYTES,
    WANTED,
    WRITTEN,
)

_NO_SIGNAL = 0x4000
"""Linux' MSG_NOSIGNAL: a broken connection is no signal."""
_READABLE = 1
"""Linux' POLLIN."""


@compiled
def sent(lanes: int, state: int, tag: int, check: int, payload: int, count: int) -> bool:
    """Send a message. False if there is something left to Python: the rest of it, or only to wake the peer. The word
    MOVED then has the number of bytes that the lane has taken, the head included."""
    if field(lanes, OUT_DATA) != 0:
        moved = write_frame(lanes, tag, check, payload, count)
        done = moved != 0 and rouse(field(lanes, BELL))
    else:
        moved = send_message(lanes, field(state, at.FRAME), tag, check, payload, count)
        done = moved == HEAD_BYTES + count
    put(state + 8 * at.MOVED, moved)
    return done


@compiled
def taken(lanes: int, state: int, tag: int, check: int, result: int, count: int, thread: int) -> bool:
    """Receive a message. False if there is something left to Python: the message, which does not come soon, or another
    one that comes; or only to wake the peer, which waits for room. The word MOVED then has 0, or the bytes of all.

    thread   LOCKED or UNLOCKED: see waits.py
    """
    if field(lanes, IN_DATA) != 0 and field(lanes, EARLY) == 0:
        good = read_frame(lanes, state, tag, check, result, count, thread)
        done = good and (field(field(lanes, IN), WANTED) == 0 or rouse(field(lanes, BELL)))
    else:
        good = done = take_message(lanes, state, tag, check, result, count, thread)
    put(state + 8 * at.MOVED, HEAD_BYTES + count if good else 0)
    return done


@compiled
def ring_frame(count: int) -> int:
    """The bytes of a frame in a ring."""
    return RING_HEAD_BYTES + (count + RING_HEAD_BYTES - 1) // RING_HEAD_BYTES * RING_HEAD_BYTES


@compiled
def write_frame(lanes: int, tag: int, check: int, payload: int, count: int) -> int:
    """Write a message into the ring to a peer. Returns its bytes as `send_message` does: 0 if there is no room."""
    control, data, mask = field(lanes, OUT), field(lanes, OUT_DATA), field(lanes, MASK)
    written = field(control, WRITTEN)
    if load_acquire(control + 8 * READ) + mask + 1 - written < ring_frame(count):
        return 0
    head = data + (written & mask)
    put(head, tag)
    put(head + 8, count)
    put(head + 16, check)
    put(head + 24, 0)
    start = written + RING_HEAD_BYTES & mask
    first = min(count, mask + 1 - start)
    copy_bytes(data + start, payload, first)
    copy_bytes(data, payload + first, count - first)
    store_ordered(control + 8 * WRITTEN, written + ring_frame(count))
    return HEAD_BYTES + count


@compiled
def read_frame(lanes: int, state: int, tag: int, check: int, result: int, count: int, thread: int) -> bool:
    """Take a message out of the ring from a peer. False if it does not come soon, or if another one or a part of it
    comes: it stays there."""
    control, data, mask = field(lanes, IN), field(lanes, IN_DATA), field(lanes, MASK)
    read = field(control, READ)
    rises(state, control + 8 * WRITTEN, read + 1, field(lanes, OWN_BELL), 0, thread)
    head = data + (read & mask)
    if load_acquire(control + 8 * WRITTEN) - read < ring_frame(count):  # nothing has come, or a part of another one
        return False
    if field(head, 0) != tag or field(head, 1) != count or field(head, 2) != check or field(head, 3) != 0:
        return False
    start = read + RING_HEAD_BYTES & mask
    first = min(count, mask + 1 - start)
    copy_bytes(result, data + start, first)
    copy_bytes(result + first, data, count - first)
    store_ordered(control + 8 * READ, read + ring_frame(count))
    return True


@compiled
def send_message(lanes: int, frame: int, tag: int, check: int, payload: int, count: int) -> int:
    """Send a message over a socket; the number of bytes that the system has taken, the head included. An error is left
    to Python, which meets it too."""
    put(frame, tag)
    put(frame + 8, check)
    put(frame + 16, count)
    lane = field(lanes, OUT)
    if count <= at.JOINED_BYTES:
        copy_bytes(frame + HEAD_BYTES, payload, count)
        return max(0, send(lane, frame, HEAD_BYTES + count, _NO_SIGNAL))
    return max(0, sendmsg(lane, gathered(frame, frame, 0, payload, count), _NO_SIGNAL))


@compiled
def take_message(lanes: int, state: int, tag: int, check: int, result: int, count: int, thread: int) -> bool:
    """Take a message out of the buffer, the one that came before the call, or else receive one from a socket. False if
    it does not come soon, or if another one or the end of the connection comes: the bytes that were read are in the
    buffer then."""
    buffer, early = field(lanes, BUFFER), field(lanes, EARLY)
    joined = early > 0 or count <= at.JOINED_BYTES
    end = early if early > 0 else receive(lanes, state, result, count, thread)
    good = end == HEAD_BYTES + count and field(buffer, 0) == tag and field(buffer, 1) == check
    good = good and field(buffer, 2) == count
    if joined and good:
        copy_bytes(result, buffer + HEAD_BYTES, count)
    elif not joined and not good:
        copy_bytes(buffer + HEAD_BYTES, result, max(0, end - HEAD_BYTES))
    if good:
        put(lanes + 8 * EARLY, 0)
    elif early == 0:
        put(lanes + 8 * END, end)
    return good


@compiled
def receive(lanes: int, state: int, result: int, count: int, thread: int) -> int:
    """Receive a frame into the buffer; a payload that is not small into the result instead. Returns the number of bytes
    received: fewer than the frame has if they do not come soon."""
    lane, buffer, frame = field(lanes, IN), field(lanes, BUFFER), field(state, at.FRAME)
    polls, yields, sleeps = field(state, at.POLLS), field(state, at.YIELDS), field(state, at.SLEEPS)
    end, whole, lock, since = 0, HEAD_BYTES + count, 0, 0
    while end < whole:  # no byte of the next message is read
        if count <= at.JOINED_BYTES:
            got = recv(lane, buffer + end, whole - end, 0)
        else:
            got = recvmsg(lane, gathered(frame, buffer, end, result, count), 0)
        if got > 0:
            end += got
            continue
        if got == 0 or polls + yields + sleeps == 0:
            break
        if polls > 0:
            polls -= 1
            continue
        since = now(state + 8 * at.CLOCK) if since == 0 else since
        if lock == 0 and thread == LOCKED:
            lock = unlocked(state, since, yields)
        if yields > 0:
            yields = yielded(state, since, yields)
        else:
            sleeps -= 1
            put(frame, _READABLE << 32 | lane)  # a struct pollfd
            poll(frame, 1, 1)
    if lock != 0:
        restore_thread(lock)
    return end


@compiled
def gathered(frame: int, head: int, done: int, payload: int, count: int) -> int:
    """The struct msghdr in the memory of a frame, for what comes after its first `done` bytes: the rest of the head, at
    the address `head`, and of the payload."""
    message, first, second = frame + at.GATHERED, frame + at.PARTS, frame + at.PARTS + 16
    head_left, payload_done = max(0, HEAD_BYTES - done), max(0, done - HEAD_BYTES)
    put(first, head + HEAD_BYTES - head_left)
    put(first + 8, head_left)
    put(second, payload + payload_done)
    put(second + 8, count - payload_done)
    for index in range(7):
        put(message + 8 * index, 0)
    put(message + 16, first)
    put(message + 24, 2)
    return message
