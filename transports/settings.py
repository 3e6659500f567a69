"""Texts and values from the environment, files and callers -> frozen dataclasses of typed settings."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from transports.errors import ConfigError

T = TypeVar("T")
Values = Mapping[str, tuple[object, str]]
"""Setting -> (value, source). The source is a text such as 'environment RONDE_TIMEOUT'."""


def build(cls: type[T], subject: str, values: Values) -> T:
    """An instance of the dataclass `cls`: its defaults, and `values`. `subject` names it in errors.

    A value has the setting's type, or is a text from an environment variable or file: numbers in Python's notation;
    yes/no, true/false, on/off, 1/0; several strings separated by commas.

    Raises ConfigError naming the setting, the value, its source and the allowed values.
    """
    kinds = typing.get_type_hints(cls)
    known = tuple(field.name for field in dataclasses.fields(cls) if field.init)  # type: ignore[arg-type]
    typed: dict[str, Any] = {}
    for setting, (value, source) in values.items():
        if setting not in known:
            raise ConfigError(
                f"{subject} has no setting {setting!r} (from {source}){did_you_mean(setting, known)}; "
                f"its settings are: {', '.join(known) or 'none'}"
            )
        try:
            typed[setting] = _coerce(kinds[setting], value)
        except ValueError as error:
            raise ConfigError(f"{subject}: {setting}={value!r} (from {source}): {error}") from error
    try:
        return cls(**typed)
    except ConfigError as error:
        sources = ", ".join(f"{setting} from {source}" for setting, (_, source) in values.items())
        raise error.within(f"{subject}; {sources or 'defaults'}") from error


def pairs(texts: Iterable[str], source: str) -> dict[str, tuple[object, str]]:
    """Values from texts such as 'port=7000'. Raises ConfigError for one without '='."""
    values: dict[str, tuple[object, str]] = {}
    for text in texts:
        setting, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{text!r} (from {source}): must be setting=value")
        values[setting.strip()] = (value.strip(), source)
    return values


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' or nothing."""
    from difflib import get_close_matches  # here, since it is for mistakes

    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return value if isinstance(value, int) else int(value.strip(), 0)


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    try:
        return float(value)
    except OverflowError:
        raise ValueError from None


def _truth(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    truth = value if isinstance(value, bool) else words.get(value.strip().lower()) if isinstance(value, str) else None
    if truth is None:
        raise ValueError
    return truth


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part for part in map(str.strip, value.split(",")) if part)
    if not isinstance(value, list | tuple):
        raise ValueError
    return tuple(map(_text, value))


_KINDS: Final[Mapping[object, tuple[Callable[[object], object], str]]] = {
    int: (_integer, "an integer"),
    float: (_real, "a number"),
    bool: (_truth, "yes or no (also true/false, on/off, 1/0)"),
    str: (_text, "text"),
    tuple[str, ...]: (_texts, "texts, separated by commas"),
}


def _coerce(kind: object, value: object) -> object:
    """`value` as a setting of type `kind`. Raises ValueError with the allowed values."""
    if kind not in _KINDS:
        raise TypeError(f"a setting has type {kind!r}: must be int, float, bool, str or tuple[str, ...]")
    read, allowed = _KINDS[kind]
    try:
        return read(value)
    except ValueError:
        raise ValueError(f"must be {allowed}") from None
