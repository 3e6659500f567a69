"""Settings of the transport between threads."""

from __future__ import annotations

from dataclasses import dataclass

from transports.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the transport `local`. Raises ConfigError for a bad value.

    eager_bytes  frames of up to this many bytes are buffered, so that their sends complete at once; 0 buffers none
    """

    eager_bytes: int = 0

    def __post_init__(self) -> None:
        if self.eager_bytes < 0:
            raise ConfigError(f"eager_bytes={self.eager_bytes!r}: must be 0 or more bytes")
