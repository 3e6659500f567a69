"""The processes of ranks, without starting any."""

from __future__ import annotations

import os
import signal

import pytest

from collectives.launch.processes import Guardian, RankProcesses, rank_processes


class Nobody(Guardian):
    """No process that guards others."""

    def add(self, group: int) -> None:
        """Nothing."""


def test_a_rank_that_this_user_may_not_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program has become another user, as sudo does: the launcher, which got SIGUSR1, goes on."""
    asked = []

    def refuse(pid: int, number: int) -> None:
        asked.append((pid, number))
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(os, "killpg", refuse)
    monkeypatch.setattr(rank_processes, "spawn", lambda command, environment, *descriptors: int(command[0]))
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    processes = RankProcesses(Nobody())
    assert [processes.start(rank, [str(pid)], {}, (0, 1, 2)) for rank, pid in enumerate((7, 8))] == [7, 8]
    processes.signal_ranks(signal.SIGUSR1)
    processes.signal_groups(signal.SIGTERM)
    assert asked == [(7, signal.SIGUSR1), (8, signal.SIGUSR1), (7, signal.SIGTERM), (8, signal.SIGTERM)]
