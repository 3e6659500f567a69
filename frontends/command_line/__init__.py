"""The `ronde` command. Each subcommand is a module here that is imported when it runs; see `cli.Command`.

`arguments` reads what several commands have, `measuring` provides the ranks of `ronde bench` and `ronde tune`. The room
`doctor` has the checks of a machine and of a cluster.
"""

from __future__ import annotations

from frontends.command_line.cli import main, parser

__all__ = ["main", "parser"]
