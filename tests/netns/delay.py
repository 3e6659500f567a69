"""Cables that take time: frames arrive at hosts later than they were sent. Linux's netem does so where it is built.

    python tests/netns/delay.py SECONDS NEAR:FAR ...      until its stdin is closed

NEAR is an interface whose other end is a host's, FAR one whose other end is a port of the switch. Frames from FAR to
NEAR take SECONDS, frames from NEAR to FAR no time: so each way between two hosts takes SECONDS more.

    host's eth0 ---- NEAR   <-- SECONDS --   FAR ---- port of the switch
"""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

_ETH_P_ALL: Final = 0x0003
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_LARGEST: Final = 1 << 17
"""Bytes of the largest frame: 64 KiB of segments that the network card is given to cut, and headers."""
_BUFFER: Final = 1 << 25
"""Bytes of frames that may wait in a socket."""


def _frames(interface: str) -> socket.socket:
    """A socket that gets the frames that arrive at an interface, uncut, and sends frames from there."""
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    # A header before each frame carries what the kernel has left to the network card: checksums, and cutting.
    frames.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    frames.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    frames.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    frames.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER)
    frames.bind((interface, 0))
    frames.setblocking(False)
    return frames


def _pass_on(frames: socket.socket, frame: bytes) -> None:
    """Send a frame; it is lost where there is no room, as in a switch."""
    with contextlib.suppress(BlockingIOError):
        frames.send(frame)


def relay(seconds: float, pairs: Sequence[tuple[str, str]]) -> None:
    """Carry frames between the interfaces of each pair (near, far) until stdin is closed."""
    waiting: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
    with contextlib.ExitStack() as stack:
        ready = stack.enter_context(selectors.DefaultSelector())
        ready.register(sys.stdin, selectors.EVENT_READ)
        for pair in pairs:
            near, far = (stack.enter_context(_frames(interface)) for interface in pair)
            ready.register(near, selectors.EVENT_READ, (far, 0.0))
            ready.register(far, selectors.EVENT_READ, (near, seconds))
        print("ready", flush=True)
        while True:
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            for key, _ in ready.select(pause):
                if key.fileobj is sys.stdin:
                    return
                assert isinstance(key.fileobj, socket.socket)
                frame = key.fileobj.recv(_LARGEST)
                target, delay = key.data
                if delay:
                    waiting.append((time.monotonic() + delay, target, frame))
                else:
                    _pass_on(target, frame)
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, target, frame = waiting.popleft()
                _pass_on(target, frame)


if __name__ == "__main__":
    relay(float(sys.argv[1]), [tuple(pair.split(":")) for pair in sys.argv[2:]])  # type: ignore[misc]
