"""Environment variables of launchers: read with one error for what is missing and one for what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from transports.errors import ConfigError

Env: TypeAlias = Mapping[str, str]


def number_of(text: str) -> int | None:
    """The integer that a text is, 0 or more and of up to nine digits; None for another text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def integer(env: Env, name: str, low: int, high: int | None, needed: str) -> int:
    """The variable `name` as an integer from `low` to `high` (None: any). Raises ConfigError; `needed` says why a
    missing variable is needed."""
    text = env.get(name)
    if text is None:
        raise ConfigError(f"{name}: {needed}")
    value = number_of(text)
    if value is None or value < low or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise ConfigError(f"{name}={text!r}: must be an integer, {allowed}")
    return value


def shown(env: Env, names: tuple[str, ...]) -> str:
    """'A=1, B=2' for those of `names` that are set."""
    return ", ".join(f"{name}={env[name]}" for name in names if name in env)
