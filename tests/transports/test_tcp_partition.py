"""The TCP transport: hosts that fall silent, and hosts that are only busy. Hosts are threads in network namespaces."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from tests.transports.groups import groups, recv, send, soon
from tests.transports.tcp_ranks import SECONDS, in_threads, ranks
from transports.errors import PeerLost
from transports.tcp import Options, TcpTransport

CLONE_NEWNET = 0x40000000


def test_a_peer_that_does_not_read_for_long_is_not_lost() -> None:
    """Its window is closed for longer than peer_timeout: it computes."""
    length = 16 << 20
    with ranks(2, Options(peer_timeout=1)) as (a, b):
        in_threads(lambda: send(a, 1, 0, b"hi"), lambda: recv(b, 0, 0, 2))

        def busy() -> None:
            time.sleep(2.3)
            assert recv(b, 0, 1, length) == bytes(length)

        in_threads(lambda: send(a, 1, 1, bytes(length)), busy)


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


def new_host() -> None:
    """Move the calling thread to a network of its own. Skips the test where that is not possible."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux, root and ip(8)")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        pytest.skip(f"no network namespaces here: {os.strerror(ctypes.get_errno())}")


def test_a_silent_partition_is_noticed_on_both_sides() -> None:
    """Rank 0 is sending when the network begins to drop everything, rank 1 is waiting."""
    transports = [TcpTransport(group, Options(f"10.99.0.{group.rank + 1}", peer_timeout=1)) for group in groups(2)]
    meeting = threading.Barrier(2, timeout=SECONDS)
    thread_ids = [0, 0]

    def host(rank: int) -> None:
        me, peer = f"lane{rank}", f"lane{1 - rank}"
        new_host()
        thread_ids[rank] = threading.get_native_id()
        meeting.wait()
        if rank == 0:
            ip(f"link add {me} type veth peer name {peer} netns {thread_ids[1]}")
        meeting.wait()
        ip(f"addr add 10.99.0.{rank + 1}/24 dev {me}")
        ip(f"link set {me} up")
        meeting.wait()
        transport = transports[rank]
        try:
            transport.open(soon())
            if rank == 0:
                send(transport, 1, 0, b"hi")
            else:
                assert recv(transport, 0, 0, 2) == b"hi"
            meeting.wait()
            # Frames to an address of the link layer that nobody has are lost without a word.
            ip(f"neigh replace 10.99.0.{2 - rank} lladdr 02:00:00:00:00:99 dev {me} nud permanent")
            meeting.wait()
            move, buffer = (transport.irecv if rank else transport.isend), memoryview(bytearray(16 << 20))
            with pytest.raises(PeerLost, match=f"rank {rank} lost rank {1 - rank}"):
                move(1 - rank, 1, buffer).wait(soon())
        finally:
            transport.close(soon())

    in_threads(lambda: host(0), lambda: host(1))
