"""Host lists as Slurm writes them."""

from __future__ import annotations

import pytest

from transports.errors import ConfigError
from transports.launchers import hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("linux", "linux"),
        ("a,b,c", "a b c"),
        ("linux[1,2]", "linux1 linux2"),
        ("node[01-03,7]", "node01 node02 node03 node7"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("login,rack[1-2]n[1,5],x[3]-ib", "login rack1n1 rack1n5 rack2n1 rack2n5 x3-ib"),
        ("a[1-2],a[1-2]", "a1 a2 a1 a2"),
        ("node-1.cluster.example,10.0.0.1", "node-1.cluster.example 10.0.0.1"),
    ],
)
def test_lists(text: str, expected: str) -> None:
    assert hosts.expand(text, "LIST") == expected.split()


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", "a,,b", "a[", "a[1", "a]1", "a[]", "a[x]", "a[1-]", "a[2-1]", "a[[1]]", "a b", "a[1-99999999]"],
)
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^LIST="):
        hosts.expand(text, "LIST")


def test_too_many_hosts() -> None:
    with pytest.raises(ConfigError, match=r"^LIST: .*65536 hosts"):
        hosts.expand("n[1-1000]m[1-1000]", "LIST")
