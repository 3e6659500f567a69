"""Starting ranks: the `ronde` command and `run(fn)`.

`ronde run` starts a program as processes and supervises them; `run` calls a function on new processes or threads. This
room uses the communicator from outside; nothing but the package's face may import it.
"""

from __future__ import annotations

from collectives.launch.function import run

__all__ = ["run"]
