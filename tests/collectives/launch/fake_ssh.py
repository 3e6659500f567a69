"""A program named ssh that runs the command on this machine, as a login on another one would."""

from __future__ import annotations

import os
from pathlib import Path

SCRIPT = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
host=$2 command=$3
echo $$ > {folder}/$host.ssh
echo "an rc file that talks" && printf '\\000\\001 and more'
{before}
env -i HOME=/ PATH=/usr/bin:/bin SHELL=/bin/sh OF_LOGIN=$host SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" \\
    setsid -w sh -c "echo \\$\\$ > {folder}/$host.agent; $command"
"""


def install(folder: Path, before: str = "") -> dict[str, str]:
    """Write the program into a folder; the variables by which a launcher finds it, and of ranks that start sooner,
    since they load no machine code. For each host it writes its process id to NAME.ssh, and that of the agent to
    NAME.agent. `before`: shell commands to run first, which see $host."""
    script = folder / "ssh"
    script.write_text(SCRIPT.format(folder=folder, before=before))
    script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "RONDE_COMPILED": "off"}
