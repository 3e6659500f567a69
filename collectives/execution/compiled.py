"""The setting `compiled`: whether programs run as tables in the compiled interpreter."""

from __future__ import annotations

import logging
import time
from typing import Final

from collectives.jit import MachineCode, NotYet, load
from transports.errors import ConfigError

log = logging.getLogger("ronde.compiled")

COMPILE_SECONDS: Final = 600.0
"""Seconds for which compiled='on' waits for the compiler."""
WAIT_SECONDS: Final = 30.0
"""Seconds for which ranks wait for the compiler before they go on without machine code."""


def machine_code(setting: str, until: float = 0.0) -> MachineCode | None:
    """The compiled interpreter, or None where programs run as functions of Python.

    setting  "auto", "on" or "off": see Config
    until    the time of time.monotonic() until which "auto" waits if it is still being compiled; "on" waits for up to
             COMPILE_SECONDS

    The first call has it compiled if that has not been done on this machine. Raises ConfigError if the setting is "on"
    and there is none.
    """
    if setting == "off":
        return None
    found = load(time.monotonic() + COMPILE_SECONDS if setting == "on" else until)
    if isinstance(found, MachineCode):
        return found
    if setting == "on":
        raise ConfigError(f"compiled='on': {found}")
    if isinstance(found, NotYet):
        log.debug("no machine code: %s", found)
    return None
