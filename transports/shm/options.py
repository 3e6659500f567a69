"""Settings of the shared-memory transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from transports.errors import ConfigError

AUTOMATIC_SPIN: Final = -1
MAX_RING_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the shared-memory transport. Raises ConfigError for a value out of range.

    ring_bytes        1 KiB to 256 MiB: buffer from each rank to each other one, rounded up to a power of two; it is
                      made smaller where the host's ranks together would need more than 64 MiB. Rank 0's value counts
    max_parked_bytes  at least 0: payload that came before its receive was posted. A frame that would exceed it stays
                      in its ring, and those after it too, until its receive is posted or there is room. A rank's
                      messages to itself count, and never wait
    spin_us           microseconds that a wait polls before it yields and then sleeps; -1 chooses: 40 if there is a
                      core for each rank and each rank is a process of its own, else 0
    directory         an existing directory for the memory files; "" chooses: /dev/shm, or where the system has none
                      the one for temporary files
    affinity          True: a waiting thread may bind itself to this rank's part of the host's cores while it waits;
                      False: the affinity of threads is never changed
    """

    ring_bytes: int = 1 << 19
    max_parked_bytes: int = 1 << 30
    spin_us: int = AUTOMATIC_SPIN
    directory: str = ""
    affinity: bool = True

    def __post_init__(self) -> None:
        _require(1024 <= self.ring_bytes <= MAX_RING_BYTES, "ring_bytes", self.ring_bytes, "1024 to 2**28 bytes")
        _require(self.max_parked_bytes >= 0, "max_parked_bytes", self.max_parked_bytes, "0 bytes or more")
        _require(AUTOMATIC_SPIN <= self.spin_us <= 1_000_000, "spin_us", self.spin_us, "-1 to 1000000 microseconds")
        absolute = self.directory.startswith("/") and "\0" not in self.directory
        _require(not self.directory or absolute, "directory", self.directory, "an absolute path, or empty")


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"{name}={value!r}: must be {allowed}")
