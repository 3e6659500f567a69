"""The transport whose ranks are all threads of one process."""

from __future__ import annotations

from transports.base import Group
from transports.engine import Engine, Link
from transports.errors import RondeError
from transports.local.link import LocalLink
from transports.local.options import Options


class LocalTransport(Engine):
    """Bytes between threads."""

    name = "local"

    def __init__(self, group: Group, options: Options | None = None) -> None:
        self._options = options or Options()
        super().__init__(group, "local transport", affinity=False)

    @property
    def failure(self) -> RondeError | None:
        """The failure of any rank: all of them can see it at once."""
        if self.life.failure is None:
            with self.lock:
                self.learn()
        return self.life.failure

    def _choose(self, deadline: float) -> tuple[Link, ...]:
        return (LocalLink(self, range(self.size), self._options),)
