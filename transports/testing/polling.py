"""Checks of sleeping on a transport's descriptor. A transport without the ability passes them unchecked."""

from __future__ import annotations

import select
import threading
import time
from typing import Final

from transports.errors import AbortedError
from transports.onesided import OneSided
from transports.pollable import LONGEST_SLEEP, Pollable
from transports.testing.bench import SOON, Bench, error_of, require
from transports.testing.kit import Check


def a_frame_ends_a_sleep_on_the_descriptor(bench: Bench) -> None:
    """The descriptor becomes readable when a frame arrives, at every sleep; `prepare` then receives it."""
    pollable = bench.transport.ability(Pollable)
    for number, nbytes in enumerate((4, 300_000, 4)):
        incoming = bench.take(bench.left, 1, number, nbytes)
        bench.sync()
        if bench.rank:
            time.sleep(SOON)
        elif pollable is not None:
            while not incoming.request.test():
                require(_sleep(pollable, bench.deadline), f"a frame of {nbytes} bytes did not end the sleep")
        sending = bench.give(bench.right, 1, number, nbytes)
        incoming.check()
        sending.wait(bench.deadline)


def nothing_keeps_the_descriptor_readable(bench: Bench) -> None:
    """Without anything to do a thread sleeps on the descriptor for the whole time."""
    pollable = bench.transport.ability(Pollable)
    bench.swap(1)
    bench.sync()
    if pollable is None:
        return
    end = time.monotonic() + SOON
    sleeps = 0
    while time.monotonic() < end:
        _sleep(pollable, min(end, time.monotonic() + LONGEST_SLEEP))
        sleeps += 1
    require(sleeps <= 20, f"{sleeps} sleeps on the descriptor ended within {SOON} s in which nothing happened")


def an_epoch_ends_a_sleep_on_the_descriptor(bench: Bench) -> None:
    """`reached` with `wakeup` lets the next epoch of a position make the descriptor readable."""
    pollable, onesided = bench.transport.ability(Pollable), bench.transport.ability(OneSided)
    ranks = tuple(range(bench.size))
    if pollable is None or onesided is None or not onesided.reaches(ranks):
        return
    window = onesided.expose(bench.name, ranks, 8, bench.deadline)
    for epoch in (1, 2, 3):
        if bench.rank:
            time.sleep(SOON)
            window.publish(epoch)
            bench.sync()
            continue
        while not window.reached(1, epoch):
            pollable.prepare()
            try:
                if not window.reached(1, epoch, wakeup=True):
                    require(_readable(pollable, bench.deadline), f"epoch {epoch} did not make the descriptor readable")
            finally:
                pollable.finish()
        bench.sync()
    window.close()


def an_abort_ends_a_sleep_on_the_descriptor(bench: Bench) -> None:
    """An abort by another thread makes the descriptor readable; `prepare` then raises the cause."""
    pollable = bench.transport.ability(Pollable)
    if pollable is None:
        return
    timer = threading.Timer(SOON, bench.transport.abort, [AbortedError("by another thread", rank=bench.rank)])
    timer.start()
    while bench.transport.failure is None:
        try:
            require(_sleep(pollable, bench.deadline), "an abort did not make the descriptor readable")
        except AbortedError:
            break
    timer.join()
    error = error_of(pollable.prepare, AbortedError)
    pollable.finish()
    require("by another thread" in str(error), f"the cause of the abort became: {error}")


def another_thread_may_wait_meanwhile(bench: Bench) -> None:
    """A thread may wait by itself while another one sleeps on the descriptor: neither misses its frame."""
    pollable = bench.transport.ability(Pollable)
    own, others = bench.take(bench.left, 1, 0, 8), bench.take(bench.left, 2, 0, 8)
    bench.sync()
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            others.check()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    timer = threading.Timer(SOON, lambda: [bench.give(bench.right, tag, 0, 8) for tag in (2, 1)])
    timer.start()
    while pollable is not None and not own.request.test():
        _sleep(pollable, bench.deadline)
    own.check()
    timer.join()
    waiting.join()
    for error in failures:
        raise error


def _sleep(pollable: Pollable, deadline: float) -> bool:
    """Sleep once. False if the deadline has passed without an event."""
    try:
        until = pollable.prepare()
        return not until or _readable(pollable, min(deadline, until)) or until < deadline
    finally:
        pollable.finish()


def _readable(pollable: Pollable, deadline: float) -> bool:
    return bool(select.select([pollable.descriptor], [], [], max(0.0, deadline - time.monotonic()))[0])


CHECKS: Final = (
    Check(a_frame_ends_a_sleep_on_the_descriptor, least=2, every_size=False),
    Check(nothing_keeps_the_descriptor_readable),
    Check(an_epoch_ends_a_sleep_on_the_descriptor, least=2, every_size=False),
    Check(an_abort_ends_a_sleep_on_the_descriptor, every_size=False, ends=True),
    Check(another_thread_may_wait_meanwhile, least=2, every_size=False),
)
