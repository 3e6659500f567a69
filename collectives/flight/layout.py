"""The bytes of a flight record: those of one rank, which other processes of the user read while it runs, or after it.

    head     MAGIC, words, facts of the rank (msgpack), its failure (msgpack)            HEAD_BYTES
    texts    TEXTS slots: a number, a length, msgpack; text n lies in slot n % TEXTS     TEXT_BYTES each
    log 0    name of the communicator, words, entries of the last KEPT calls             LOG_BYTES
    log 1    ...                                                                         up to MOST_LOGS

All words have 64 bits in the processor's order. A text is written before its number, an entry before the number of
its call: a reader sees no half of either, but that of the newest call.
"""

from __future__ import annotations

from typing import Final

MAGIC: Final = b"RONDEFR1"
SUFFIX: Final = ".flight"

# Words of the head, from its first byte on.
STATE: Final = 1
"""OPEN, CLOSED, FAILED or SAVED."""
OPEN: Final = 0
CLOSED: Final = 1
FAILED: Final = 2
SAVED: Final = 3
"""The state of a copy that was made while the rank was OPEN."""
ENDED_AT: Final = 2
"""Clock at which the rank closed or failed, or the copy was made."""
LOGS: Final = 3
"""Number of logs in the file."""
FACTS_AT: Final = 512
FAILURE_AT: Final = 2048
"""Bytes from the beginning of the head: a word with the length, then msgpack."""
HEAD_BYTES: Final = 4096

TEXTS: Final = 512
LASTING: Final = 448
"""Slots of the texts of plans; those behind them are of texts that stay for a while only."""
TEXT_BYTES: Final = 320
"""A slot of a text: its number, its length, then msgpack."""
TEXT_HEAD: Final = 16

# Words of a log.
CALLS: Final = 0
"""Number of the newest call."""
KEPT_MASK: Final = 1
"""Call n has entry n & KEPT_MASK."""
TIMED: Final = 2
"""1 if calls get times, else 0."""
FIRST_CYCLES: Final = 3
FIRST_TIME: Final = 4
LAST_CYCLES: Final = 5
LAST_TIME: Final = 6
"""Two readings of the processor's counter with those of the clock at the same moment: machine code notes cycles."""
IN_USE: Final = 7
"""USED while a communicator writes into the log, LEFT once it is closed, else 0."""
USED: Final = 1
LEFT: Final = 2
MESSAGES: Final = "-messages"
"""The end of the name of a log for the waits for messages, which begins with the name of their communicator."""
BATCHES: Final = "-batches"
"""The same of a log for batches of named operations."""
OVERTAKEN: Final = 8
"""In a copy, the calls that were begun while it was made: as many of the oldest entries may be theirs."""
NAME: Final = 9
"""Words of the name: a length in bytes, then msgpack."""
NAME_WORDS: Final = 31
ENTRIES: Final = NAME + NAME_WORDS
"""The first entry."""

# Words of an entry.
TEXT: Final = 0
"""Number of the text that describes the call."""
BEGAN: Final = 1
ENDED: Final = 2
"""Times: nanoseconds of the clock, or, negative, cycles of the processor's counter. A call has ended once its end is
not the one that the entry had before it began: see reader.py."""
ENTRY_WORDS: Final = 3

KEPT: Final = 2048
"""Calls of a communicator whose entries are kept."""
FEWEST_KEPT: Final = 8
"""The same where nothing is recorded: as many as a comparison of calls needs."""
MOST_LOGS: Final = 32
LOG_BYTES: Final = 8 * (ENTRIES + KEPT * ENTRY_WORDS)
LOGS_AT: Final = HEAD_BYTES + TEXTS * TEXT_BYTES


def log_words(kept: int) -> int:
    """Words of a log with this many entries."""
    return ENTRIES + kept * ENTRY_WORDS
