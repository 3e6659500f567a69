"""The log: one tree of loggers, `ronde.*`, and the setting that shows it.

Ronde logs by Python's `logging`, on loggers named after the subject: `ronde.startup`, `ronde.planning`, `ronde.tcp` and
others. Without configuration Python prints warnings and errors. A program may configure the logger `ronde`; the setting
`log_level` (RONDE_LOG_LEVEL) does so without a change to the program.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

LEVELS: Final = ("", "debug", "info", "warning", "error")
"""The values of the setting `log_level`."""

_FORMAT: Final = "%(asctime)s.%(msecs)03d {name} %(levelname)s %(name)s: %(message)s"


@contextlib.contextmanager
def shown(level: str, name: str) -> Iterator[Callable[[str], None]]:
    """Print the messages of all loggers `ronde.*` from this level on to stderr, until the context ends.

    level   one of LEVELS; "" changes nothing
    name    stands in every line

    Gives a function that changes the name. Loggers that the program has configured keep their own handlers.
    """
    if not level:
        yield lambda name: None
        return
    logger, handler = logging.getLogger("ronde"), logging.StreamHandler()

    def rename(name: str) -> None:
        handler.setFormatter(logging.Formatter(_FORMAT.format(name=name), "%H:%M:%S"))

    rename(name)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    try:
        yield rename
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
