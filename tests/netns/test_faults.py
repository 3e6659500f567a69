"""Hosts that are cut off, slow, or lose packets: the cases of cases.py, each at least once."""

from __future__ import annotations

import pytest

from tests.netns.cases import CASES, PAIR, TRIO, Case
from tests.netns.site import Site


def _quick(hosts: tuple[str, ...]) -> pytest.MarkDecorator:
    chosen = [(case, transport) for case in CASES if case.hosts == hosts for transport in case.quick]
    return pytest.mark.parametrize(
        ("case", "transport"), chosen, ids=[f"{case.name}-{transport}" for case, transport in chosen]
    )


@_quick(PAIR)
def test_two_hosts(pair: Site, case: Case, transport: str) -> None:
    case.run(pair, transport)


@_quick(TRIO)
def test_three_hosts(trio: Site, case: Case, transport: str) -> None:
    case.run(trio, transport)
