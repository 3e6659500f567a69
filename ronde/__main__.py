"""The command `ronde`. `python -m ronde` is the same, for environments whose folder of commands is not on the path."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command and return its exit code. Ctrl-C ends it without a traceback while modules are imported, too."""
    _open_closed_streams()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # it may be ignored (nohup, `&`)
        signal.signal(signal.SIGINT, _end)
    command = importlib.import_module("frontends.command_line.cli")
    try:
        signal.signal(signal.SIGINT, handler)
        return int(command.main())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _open_closed_streams() -> None:
    """Let standard streams that are closed (`>&-`, some daemons) lead to /dev/null: Python has None for them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number, which is that of the closed one
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(opened, mode, closefd=False))


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
