"""The memory that calls in flight write to, against a map of its bytes."""

from __future__ import annotations

import random

import numpy as np

from collectives.written import WrittenMemory, span


def test_owners_are_those_of_a_map_of_bytes() -> None:
    for seed in range(200):
        chance, memory, owners = random.Random(seed), WrittenMemory(), dict[int, str]()
        for number in range(60):
            begins = [chance.randrange(100) for _ in range(chance.randrange(4))]
            spans = [(begin, begin + chance.randrange(9)) for begin in begins]
            touched = {byte for begin, end in spans for byte in range(begin, end)}
            owner = memory.owner(spans)
            assert (owner is None) == touched.isdisjoint(owners)
            if owner is None:
                memory.add(str(number), spans)
                owners |= dict.fromkeys(touched, str(number))
            else:
                assert owner in {owners.get(byte) for byte in touched}
            if chance.random() < 0.4:
                gone = str(chance.randrange(number + 1))
                memory.remove(gone)
                owners = {byte: name for byte, name in owners.items() if name != gone}
        memory.clear()
        assert memory.owner([(0, 200)]) is None


def test_spans_of_arrays() -> None:
    table = np.zeros((3, 4))
    begin = table.ctypes.data
    assert span(table) == span(table.T) == (begin, begin + 96)
    assert span(table[1]) == (begin + 32, begin + 64)
    assert span(table[:, 1]) == (begin + 8, begin + 16)  # the rest of it has gaps
    assert len({*span(table[:, :0])}) == len({*span(table[:0])}) == 1
