"""The setting `compiled`: whether programs run as tables in the compiled interpreter."""

from __future__ import annotations

from collectives.jit import MachineCode, load
from transports.errors import ConfigError


def machine_code(setting: str) -> MachineCode | None:
    """The compiled interpreter, or None where programs run as functions of Python.

    setting  "auto", "on" or "off": see Config

    The first call in a process may take some seconds (collectives.jit.load). Raises ConfigError if the setting is "on"
    and there can be none.
    """
    if setting == "off":
        return None
    found = load()
    if isinstance(found, MachineCode):
        return found
    if setting == "on":
        raise ConfigError(f"compiled='on': {found}")
    return None
