"""Making a window: its first rank makes the segment and offers it to the other ranks through the rings.

A rank that waits for a window drives the transport and notices aborts and dead processes, as in any other wait. Once
all ranks have attached, the name of the segment is removed; the receivers of the offer also remove it if its maker may
be dead.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, Final

from transports import exposing
from transports.descriptors import explained
from transports.driver import Awaited
from transports.engine import Engine
from transports.errors import DeadlineExceeded, MismatchError, RendezvousError, TransportError
from transports.onesided import NoRoom
from transports.packed import pack, unpack
from transports.shm.doorbell import Doorbell
from transports.shm.segments import Segment, is_segment, unlink
from transports.shm.window import ShmWindow

MAX_OFFER_BYTES: Final = 1 << 16
MAX_OFFERS: Final = 1 << 12


class Offer:
    """An offer that is arriving."""

    def __init__(self, nbytes: int, deliver: Callable[[bytearray], None]) -> None:
        self._payload = bytearray(nbytes)
        self._deliver = deliver
        self.view = memoryview(self._payload)

    def finish(self) -> None:
        """The offer is complete."""
        self._deliver(self._payload)


class Exposures(exposing.Exposures[ShmWindow]):
    """The windows of a link, and those that are being made. All is guarded by the engine's lock."""

    def __init__(
        self,
        engine: Engine,
        ranks: tuple[int, ...],
        directory: str,
        *,
        send: Callable[[int, bytes], None],
        bells_of: Callable[[Sequence[int]], list[Doorbell]],
        ends_of: Callable[[Sequence[int]], list[memoryview]],
        spins: bool,
    ) -> None:
        """`ranks`: those that the link joins. `send` sends an offer to a peer. `bells_of`: the doorbells of ranks.
        `ends_of`, `spins`: see ShmWindow."""
        super().__init__(engine, ranks)
        self._send = send
        self._bells_of = bells_of
        self._ends_of = ends_of
        self._directory = directory
        self._spins = spins
        self._offers: dict[str, dict[str, Any]] = {}

    def stop(self) -> None:
        """Tell compiled code that no epoch of any window is to be published any more."""
        for window in self._windows:
            window.stop()

    def arriving(self, nbytes: int) -> Offer:
        """The receiver of an arriving offer of `nbytes`. Raises TransportError if the size or the number of offers is
        impossible."""
        if nbytes > MAX_OFFER_BYTES or len(self._offers) >= MAX_OFFERS:
            raise TransportError(f"received an offer of {nbytes} bytes, with {len(self._offers)} offers unanswered")
        return Offer(nbytes, self._deliver)

    def close(self) -> None:
        """Remove the segments of offers that this rank never attached to."""
        for offer in self._offers.values():
            if "path" in offer:
                unlink(offer["path"])
        self._offers.clear()

    def offered(self, key: str) -> bool:
        """True if another rank has offered a window of that name."""
        return key in self._offers

    def _make(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> ShmWindow:
        """Make the window, or attach to it, and wait until all ranks have attached. Called without the lock."""
        if ranks[0] == self._engine.rank:
            made = self._create(key, ranks, nbytes)
        else:
            made = self._attach(key, ranks, nbytes, deadline)
        try:
            made.attach()
            meeting = _AllAttached(self, self._engine, key, made)
            came = self._engine.wait(meeting, deadline)
            if self.offered(key):
                raise self._mismatch(key, ranks, nbytes)
            if not came:
                missing = made.missing()
                absent = ", ".join(map(self._engine.group.describe, missing))
                text = f"{absent} did not come to window {key!r} in time"
                raise DeadlineExceeded(text, rank=self._engine.rank, peer=missing[0] if len(missing) == 1 else None)
            made.segment.unlink()
        except BaseException:
            if ranks[0] == self._engine.rank or self._engine.failure is not None:
                made.segment.unlink()
            made.close()
            raise
        return made

    def _create(self, key: str, ranks: tuple[int, ...], nbytes: int) -> ShmWindow:
        offer = {"key": key, "ranks": ranks, "nbytes": nbytes}
        size = ShmWindow.segment_bytes(len(ranks), nbytes)
        try:
            segment = Segment.create(size, self._directory)
        except OSError as error:
            text, rank = explained(error), self._engine.rank
            room = error.errno not in (errno.ENOSPC, errno.ENOMEM)
            self._send_all({**offer, "error": text, "room": room}, ranks)
            failure = RendezvousError if room else NoRoom
            raise failure(f"rank {rank} cannot make window {key!r}: {text}", rank=rank) from error
        try:
            self._send_all({**offer, "path": segment.path}, ranks)
            return self._registered(segment, ranks, nbytes)
        except BaseException:
            segment.unlink()
            segment.close()
            raise

    def _attach(self, key: str, ranks: tuple[int, ...], nbytes: int, deadline: float) -> ShmWindow:
        rank, maker = self._engine.rank, self._engine.group.describe(ranks[0])
        if not self._engine.wait(_OfferArrived(self, self._engine, key, ranks[0]), deadline):
            raise DeadlineExceeded(f"{maker} did not come to window {key!r} in time", rank=rank, peer=ranks[0])
        with self._engine.lock:
            offer = self._offers[key]
            if (tuple(offer["ranks"]), offer["nbytes"]) != (ranks, nbytes):
                raise self._mismatch(key, ranks, nbytes)
            del self._offers[key]
        if "error" in offer:
            failure = RendezvousError if offer["room"] else NoRoom
            raise failure(f"{maker} could not make window {key!r}: {offer['error']}", rank=rank, peer=ranks[0])
        try:
            segment = Segment.attach(offer["path"], ShmWindow.segment_bytes(len(ranks), nbytes))
        except OSError as error:
            with self._engine.lock:
                self._engine.check_sound()  # its maker may have removed it because of a failure
            raise TransportError(
                f"rank {rank} cannot attach to window {key!r} of {maker}: {explained(error)}", rank=rank, peer=ranks[0]
            ) from error
        return self._registered(segment, ranks, nbytes)

    def _registered(self, segment: Segment, ranks: tuple[int, ...], nbytes: int) -> ShmWindow:
        with self._engine.lock:
            try:
                self._engine.check_sound()
                made = ShmWindow(
                    self._engine,
                    segment,
                    ranks,
                    nbytes,
                    self._bells_of(ranks),
                    self._ends_of(ranks),
                    spins=self._spins,
                    forget=self._windows.discard,
                )
            except BaseException:
                segment.close()
                raise
            self._windows.add(made)
            return made

    def _send_all(self, offer: dict[str, Any], ranks: tuple[int, ...]) -> None:
        payload = pack(offer)
        for rank in ranks[1:]:
            self._send(rank, payload)

    def _deliver(self, payload: bytearray) -> None:
        offer = _decoded(payload)
        if offer is None:
            raise TransportError(f"received {len(payload)} bytes that are not a valid offer of a window")
        self._offers[offer["key"]] = offer

    def _mismatch(self, key: str, ranks: tuple[int, ...], nbytes: int) -> MismatchError:
        offer = self._offers[key]
        return MismatchError(
            f"window {key!r}: rank {self._engine.rank} asks for {nbytes} bytes among ranks {ranks}, "
            f"another rank for {offer['nbytes']} among {tuple(offer['ranks'])}",
            rank=self._engine.rank,
        )


def _decoded(payload: bytearray) -> dict[str, Any] | None:
    """The offer that another rank has packed; None if it is not valid."""
    offer: Any
    try:
        offer = unpack(payload)
    except ValueError:
        return None
    match offer:
        case {"key": str(), "ranks": [*ranks], "nbytes": int(), "path": str(path)} if is_segment(path):
            sound = "error" not in offer
        case {"key": str(), "ranks": [*ranks], "nbytes": int(), "error": str(), "room": bool()}:
            sound = "path" not in offer
        case _:
            return None
    return offer if sound and all(isinstance(rank, int) for rank in ranks) else None


class _OfferArrived(Awaited):
    """Waits for an offer. A rank that sends one rings."""

    def __init__(self, exposures: Exposures, engine: Engine, key: str, maker: int) -> None:
        self._exposures = exposures
        self._engine = engine
        self._key = key
        self._maker = maker

    @property
    def done(self) -> bool:
        return self._exposures.offered(self._key)

    def check_possible(self) -> None:
        self._engine.check_peer(self._maker, self, receiving=True)


class _AllAttached(Awaited):
    """Waits until all ranks have attached, or another rank offers a different window of that name. The last rank that
    attaches rings."""

    def __init__(self, exposures: Exposures, engine: Engine, key: str, made: ShmWindow) -> None:
        self._exposures = exposures
        self._engine = engine
        self._key = key
        self._made = made

    @property
    def done(self) -> bool:
        return self._exposures.offered(self._key) or not self._made.missing()

    def check_possible(self) -> None:
        self._engine.check_sound()
        for rank in self._made.missing():
            self._engine.check_peer(rank, self, receiving=True)
