"""Signals of the launcher and the agents."""

from __future__ import annotations

import selectors
import signal
import threading

from collectives.launch.processes import signals_as_bytes


def test_signals_that_the_parent_has_blocked() -> None:
    heard: list[bytes] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        with selectors.DefaultSelector() as selector, signals_as_bytes(selector, heard.append):
            signal.pthread_kill(threading.get_ident(), signal.SIGCHLD)
            for key, _ in selector.select(timeout=0):
                key.data()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert heard == [bytes([signal.SIGCHLD])]
    assert signal.SIGCHLD in blocked
