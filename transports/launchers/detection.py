"""Which launcher started this process."""

from __future__ import annotations

from typing import Any, Final

from transports.errors import ConfigError
from transports.launchers.families import FAMILIES, Family
from transports.launchers.launch import Launch
from transports.launchers.variables import Env

VARIABLE: Final = "RONDE_LAUNCHER"
"""The setting by which the user overrules the precedence."""


def find(env: Env) -> Launch | None:
    """The launch of the process with the environment `env`; None if no launcher started it as a rank.

    RONDE_LAUNCHER names the family to believe, or is 'none'. Else it is the first in the order of precedence, and the
    variables of all others are ignored: they are inherited from an outer launcher. Raises ConfigError naming the
    variable that is bad or missing.
    """
    family = family_of(env)
    return None if family is None else family.read(env, family)


def describe(env: Env) -> dict[str, Any]:
    """The result of `find` and the way in which the ranks would meet, in JSON's types; for people. Never a secret.

    problem  why `init` would fail; None if nothing says so
    """
    found: dict[str, Any] = {"launcher": None, "meeting": "no launcher: a world of one", "problem": None}
    try:
        launch = find(env)
        if launch is not None:
            found |= {
                "launcher": launch.family,
                "title": launch.title,
                "rank": launch.rank,
                "size": launch.size,
                "variables": launch.seen,
                "meeting": "a world of one",
            }
            if launch.size > 1:
                found["meeting"] = launch.way().describe() + (", as a newcomer" if launch.joins else "")
    except ConfigError as error:
        found |= {"meeting": "not possible", "problem": f"ConfigError: {error}"}
    return found


def family_of(env: Env) -> Family | None:
    """The family that started this process; None if there is none. Raises ConfigError for a bad RONDE_LAUNCHER."""
    wanted = env.get(VARIABLE, "auto")
    if wanted == "none":
        return None
    if wanted == "auto":
        return next((family for family in FAMILIES if family.says(env)), None)
    for family in FAMILIES:
        if family.name == wanted:
            if not family.says(env):
                raise ConfigError(f"{VARIABLE}={wanted!r}: its variables are not set here: {family.signs}")
            return family
    allowed = ", ".join(["auto", "none", *(family.name for family in FAMILIES)])
    raise ConfigError(f"{VARIABLE}={wanted!r}: must be one of {allowed}")
