"""The hosts and their ranks themselves: that they are apart, that faults are real, and that nothing can be left."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.collectives.launch.launcher import BOUND, environment
from tests.netns.__main__ import Row, attempt, table
from tests.netns.cases import FAR, NEAR, Case, Seen
from tests.netns.crew import Crew, RankFailed
from tests.netns.network import Network
from tests.netns.site import Site
from tests.netns.worker import Link
from transports.rendezvous.bootstrap import this_member


def name_host(link: Link, rank: int) -> tuple[str, str]:
    return this_member().host, socket.gethostname()


def fail(link: Link, rank: int) -> None:
    link.mark("here")
    raise KeyError(f"what rank {rank} did wrong")


def sleep(link: Link, rank: int) -> None:
    link.mark("here")
    time.sleep(BOUND)


def leak(link: Link, rank: int) -> None:
    os.open(os.devnull, os.O_RDONLY)


def test_ranks_of_a_host_share_it_and_others_do_not(pair: Site) -> None:
    with pair.crew.begin(name_host) as run:
        found = run.results()
    assert [name for _, name in found] == list(pair.names)
    identities = [identity for identity, _ in found]
    assert identities[0] == identities[1] != identities[2] == identities[3]
    assert this_member().host not in identities


def test_frames_are_delayed() -> None:
    with Network((NEAR, FAR), delay=0.05) as network:
        near, far = network.hosts[NEAR], network.hosts[FAR]
        with near.within(lambda: socket.create_server((near.address, 0))) as listener:
            began = time.monotonic()
            with far.within(lambda: socket.create_connection(listener.getsockname(), BOUND)) as calling:
                assert time.monotonic() - began >= 0.1
                answering, _ = listener.accept()
                with answering:
                    answering.settimeout(BOUND)
                    sent = os.urandom(1 << 18)
                    sending = threading.Thread(target=calling.sendall, args=(sent,))
                    sending.start()
                    with answering.makefile("rb") as stream:
                        assert stream.read(len(sent)) == sent
                    sending.join(BOUND)


def test_frames_are_dropped_and_pass_again(pair: Site) -> None:
    near, far = pair.network.hosts[NEAR], pair.network.hosts[FAR]
    with near.within(lambda: socket.create_server((near.address, 0))) as listener:

        def call(seconds: float) -> None:
            far.within(lambda: socket.create_connection(listener.getsockname(), seconds)).close()

        call(BOUND)
        pair.network.drop(FAR, "from")
        with pytest.raises(TimeoutError):
            call(0.1)
        pair.network.heal()
        call(BOUND)


def test_an_error_of_a_rank_comes_home() -> None:
    with Network([NEAR]) as network, Crew([network.hosts[NEAR]]) as crew:
        with crew.begin(fail) as run, pytest.raises(RankFailed, match="what rank 0 did wrong") as caught:
            run.results()
        assert caught.value.kind == "KeyError"
        assert "in fail" in str(caught.value)
        with crew.begin(leak) as run, pytest.raises(RankFailed, match="left behind: descriptor"):
            run.results()
        with crew.begin(sleep) as run:
            run.await_mark("here")
            with pytest.raises(TimeoutError, match=r"ranks \[0\] (.|\n)*in sleep"):
                run.results(timeout=0.1)
        with crew.begin(name_host) as run:
            assert run.results()[0][1] == NEAR


def test_a_killed_test_run_leaves_no_process() -> None:
    """So no namespace either."""
    code = "from tests.netns.site import Site; site = Site(['a', 'b']).__enter__(); print('up', flush=True); input()"
    command = [sys.executable, "-c", code]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment({"PYTHONPATH": root})
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 5  # a switch, two hosts, two ranks
        pidfds = [os.pidfd_open(int(child)) for child in children]
        process.send_signal(signal.SIGKILL)
        try:
            for pidfd in pidfds:
                assert select.select([pidfd], [], [], BOUND)[0], "a process lives on"
        finally:
            for pidfd in pidfds:
                os.close(pidfd)


def test_outcomes_of_cases_are_counted(pair: Site) -> None:
    troubles = iter([None, TimeoutError("late"), AssertionError("nobody"), RankFailed("LeakError", "a thread")])

    def run(site: Site, transport: str) -> Seen:
        trouble = next(troubles)
        if trouble is not None:
            raise trouble
        return Seen([1.0, 3.0], [0.5])

    row, case = Row("cut off", "tcp"), Case("cut", "cut off", run)
    assert [attempt(row, case, pair) for _ in range(4)] == [None, "late", "nobody", "a thread"]
    assert row.failed == 3
    text = table([row]).splitlines()
    assert re.split(r" *\| *", text[2])[1:-1] == [
        *("cut off", "tcp", "4", "1", "1", "1"),
        *("2.00", "3.00", "0.50", "0.50"),
    ]
    assert text[3:] == ["", "0 in every row: wrong"]
