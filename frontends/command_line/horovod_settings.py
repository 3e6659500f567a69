"""The variables and options by which Horovod is set up, as settings of Ronde."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from collectives.config import PREFIX

SETTINGS: Final = {
    "HOROVOD_FUSION_THRESHOLD": "FUSION_BYTES",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "STALL",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "TIMEOUT",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "CONNECT_TIMEOUT",
    "HOROVOD_GLOO_IFACE": "TCP_INTERFACE",
}
"""Variables of Horovod, and the variables of Ronde (without the prefix) that take the same values."""

TIMELINE: Final = "HOROVOD_TIMELINE"
MARK_CYCLES: Final = "HOROVOD_TIMELINE_MARK_CYCLES"
NO_STALL_CHECK: Final = "HOROVOD_STALL_CHECK_DISABLE"
START_TIMEOUT: Final = "HOROVOD_START_TIMEOUT"
ELASTIC_TIMEOUT: Final = "HOROVOD_ELASTIC_TIMEOUT"
LOG_LEVEL: Final = "HOROVOD_LOG_LEVEL"
_LEVELS: Final = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
}
"""Horovod's levels, and those of the setting `log_level`."""

OF_A_LAUNCHER: Final = (
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"),
    *("HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_ELASTIC", "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_SECRET_KEY"),
)
"""Variables that Horovod's launcher sets for its ranks. They are no settings."""


def translated(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that Horovod's variables amount to, as variables of Ronde. A variable of Ronde that is set counts
    more than that of Horovod."""
    found = {PREFIX + ours: environment[name] for name, ours in SETTINGS.items() if environment.get(name)}
    if PREFIX + "TIMELINE" not in environment:
        found |= timeline(environment)
    if not found.get(PREFIX + "TIMEOUT", "none").strip("0."):  # 0, or 0.0: Horovod's word for never
        del found[PREFIX + "TIMEOUT"]
    if environment.get(NO_STALL_CHECK, "0") not in ("", "0"):
        found[PREFIX + "STALL"] = "0"
    level = _LEVELS.get(environment.get(LOG_LEVEL, "").lower())
    if level is not None:
        found[PREFIX + "LOG_LEVEL"] = level
    return {name: value for name, value in found.items() if name not in environment}


def origins(found: Mapping[str, str]) -> dict[str, str]:
    """The variables of Horovod from which `translated` has made those of Ronde, for messages."""
    return {PREFIX + ours: f"environment {name}" for name, ours in SETTINGS.items() if PREFIX + ours in found}


def timeline(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of the timeline that Horovod's variables name, {} if they name none."""
    path = environment.get(TIMELINE, "")
    if path in ("", "DYNAMIC"):  # Horovod's word for a timeline that the program starts
        return {}
    cycles = environment.get(MARK_CYCLES, "0") not in ("", "0")
    return {PREFIX + "TIMELINE": path, PREFIX + "TIMELINE_STYLE": "horovod-cycles" if cycles else "horovod"}


def ignored(environment: Mapping[str, str]) -> list[str]:
    """The variables of Horovod that mean nothing to Ronde, sorted."""
    known = {
        *SETTINGS,
        TIMELINE,
        MARK_CYCLES,
        NO_STALL_CHECK,
        START_TIMEOUT,
        ELASTIC_TIMEOUT,
        LOG_LEVEL,
        *OF_A_LAUNCHER,
    }
    return sorted(name for name in environment if name.startswith("HOROVOD_") and name not in known)
