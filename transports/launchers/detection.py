"""The launcher that started this process."""

from __future__ import annotations

import re
from typing import Any, Final

from transports.errors import ConfigError
from transports.launchers import nesting
from transports.launchers.families import FAMILIES, Family
from transports.launchers.launch import Launch
from transports.launchers.ronde import OF_A_RANK
from transports.launchers.variables import Env, number_of

VARIABLE: Final = "RONDE_LAUNCHER"
"""The setting by which the user says which launcher it is."""


def find(env: Env) -> Launch | None:
    """The launch of the process with the environment `env`; None if no launcher started it as a rank.

    RONDE_LAUNCHER names the family to believe, or is 'none'. Else it is the innermost one, see `nesting`, and the
    variables of all others are ignored: they are inherited from an outer launcher. Raises ConfigError naming the
    variable that is bad or missing, or an outer launcher that has started several copies of the innermost: each would
    make a world of its own.
    """
    family = family_of(env)
    if family is None:
        return None
    launch = family.read(env, family)
    outer = nesting.started_several(env) if _wanted(env) == "auto" else None
    if outer is not None:
        raise ConfigError(
            f"{launch}, but {outer} has started several copies of that launcher, and the ranks of each would be a "
            f"world of their own: start the inner launcher once, or the program itself by the outer one, or each copy "
            f"by `env {VARIABLE}={family.name} ...` if a world for each is meant"
        )
    return launch


def without_launchers(env: Env) -> dict[str, str]:
    """`env` without the variables by which launchers of all families, and ours, describe one process: for a process
    that another launcher starts."""
    pattern = re.compile("|".join(family.sets for family in FAMILIES if family.sets))
    return {name: value for name, value in env.items() if not pattern.fullmatch(name) and name not in OF_A_RANK}


def check_rank_is_told(env: Env) -> None:
    """Raise ConfigError if a variable says that there are several ranks, and none says which one this is: each would
    be a world of its own. To be called where `find` finds no launch."""
    if _wanted(env) == "none":
        return
    for rank, size, *_ in (family.marks for family in FAMILIES if len(family.marks) > 1):
        if rank not in env and (number_of(env.get(size, "")) or 0) > 1:
            raise ConfigError(
                f"{size}={env[size]}: says that there are several ranks, and {rank} is not set: set both, or "
                f"{VARIABLE}=none for a world of one"
            )


def check_started_once(env: Env, name: str) -> None:
    """Raise ConfigError if a launcher has started this process, the launcher `name`, several times."""
    outer = nesting.started_copies(env) if _wanted(env) == "auto" else None
    if outer is not None:
        raise ConfigError(
            f"{outer} has started several copies of this launcher, `{name}`, and the ranks of each would be a world of "
            f"their own: start it once, or start the program itself by the outer launcher, or start each copy by `env "
            f"{VARIABLE}=none {name} ...` if a world for each is meant"
        )


def check_torch_is_told(env: Env) -> None:
    """Raise ConfigError if RANK and WORLD_SIZE are those of an outer launcher, and an inner one that does not set them
    has started more ranks: each would be a world of its own. For programs that believe these variables, as torch
    does."""
    found = nesting.layers(env)
    inner = nesting.innermost(found)
    theirs = next((layer for layer in found if layer.family.name in ("torchrun", "env")), None)
    if inner is None or theirs is None or _wanted(env) != "auto":
        return
    if theirs.above == inner.above or found.index(theirs) < found.index(inner):  # they were set for this process
        return
    place = theirs.family.place(theirs.env)
    if place is not None and inner.copies > place[1]:
        raise ConfigError(
            f"RANK={env['RANK']}, WORLD_SIZE={env['WORLD_SIZE']}: are those of an outer launcher, but {inner} has "
            f"started {inner.copies} ranks, and each would be a world of its own: give init_process_group rank, "
            f"world_size and init_method, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each rank, or "
            f"{VARIABLE}=none if such worlds are meant"
        )


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
        else:
            check_rank_is_told(env)
    except ConfigError as error:
        found |= {"meeting": "not possible", "problem": str(error)}
    return found


def _wanted(env: Env) -> str:
    return env.get(VARIABLE) or "auto"  # an empty variable is not set, as that of any setting


def family_of(env: Env) -> Family | None:
    """The family that started this process; None if there is none. Raises ConfigError for a bad RONDE_LAUNCHER."""
    wanted = _wanted(env)
    if wanted == "none":
        return None
    if wanted == "auto":
        layer = nesting.innermost(nesting.layers(env))
        return None if layer is None else layer.family
    for family in FAMILIES:
        if family.name == wanted:
            if not family.says(env):
                raise ConfigError(f"{VARIABLE}={wanted!r}: its variables are not set here: {family.signs}")
            return family
    allowed = ", ".join(["auto", "none", *(family.name for family in FAMILIES)])
    raise ConfigError(f"{VARIABLE}={wanted!r}: must be one of {allowed}")
