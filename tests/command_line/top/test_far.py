"""The figures of another host, from a command in the place of ssh."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest

from collectives.launch.hosts import Ssh
from frontends.command_line.top.far import There
from transports.errors import ConfigError, RendezvousError

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform == "win32", reason="the command is one of a shell"),
]


@dataclass(frozen=True)
class Script(Ssh):
    """A text for the shell that runs instead of ssh."""

    text: str = ""

    def command(self, address: str) -> list[str]:
        return ["sh", "-c", self.text]


def there(text: str) -> There:
    return There("node2", Script(text=f"read header; {text}"), None, 1.0)


@pytest.mark.parametrize(("code", "error"), [(2, ConfigError), (1, RendezvousError)])
@pytest.mark.parametrize("ask", [There.figures, lambda far: far.stack(0), lambda far: far.save(None)])
def test_the_exit_code_there_counts_though_the_output_ends_before(ask: Any, code: int, error: type[Exception]) -> None:
    far = there(f"echo no such job >&2; exec 1>&-; sleep 0.5; exit {code}")
    with pytest.raises(error, match="no such job"):
        ask(far)
    far.close()


def test_the_newest_figures_are_told() -> None:
    far = there("""echo '{"size": 1}'; echo '{"size": 2}'; sleep 60""")
    far.begin()
    while (figures := far.figures()) == {"size": 1}:
        pass
    assert figures == {"size": 2}
    far.close()
