"""Number of examples, and their strategies: arbitrary bytes, invalid values, messages with faults.

`make test` tries the same few cases each time. RONDE_FUZZ_EXAMPLES=5000 tries that many of each, other ones each time;
`make nightly` tries 300.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

_EXAMPLES: Final = int(os.environ.get("RONDE_FUZZ_EXAMPLES", "0"))
_SLOW: Final = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Decorates a property: so many examples, and a third of them where RONDE_FUZZ_EXAMPLES is not set."""
    return settings(
        max_examples=_EXAMPLES or -(-examples // 3),
        derandomize=not _EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=_SLOW,
        print_blob=True,
    )


numbers = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]),
)
words = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300), st.sampled_from([2**31, 2**32, 2**63, 2**64 - 1]))
"""Words of 64 bits."""
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
"""Whatever `transports.packed` can pack."""


@st.composite
def faulty(draw: st.DrawFn, messages: st.SearchStrategy[bytes]) -> bytes:
    """A message with some bytes changed, added or left out."""
    data = bytearray(draw(messages))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        fault = draw(st.sampled_from(["change", "insert", "cut", "end"]))
        if fault == "change" and at < len(data):
            data[at] ^= draw(st.integers(1, 255))
        elif fault == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        elif fault == "cut":
            del data[at : at + draw(st.integers(1, 12))]
        elif fault == "end":
            del data[at:]
    return bytes(data)


@st.composite
def cuts(draw: st.DrawFn, streams: st.SearchStrategy[bytes]) -> list[bytes]:
    """A stream, in pieces."""
    data = draw(streams)
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[start:stop] for start, stop in zip([0, *places], [*places, len(data)], strict=True)]
