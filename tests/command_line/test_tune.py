"""`ronde tune`: the table that it writes is one that is read, and chooses what was fastest."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectives import ConfigError
from collectives.planning.cost_model import Model
from collectives.planning.rules import NO_LIMIT, CopyKernel, Costs, Rule, Rules, SingleCopy
from frontends.command_line.tune import COLLECTIVES, Found, rules
from tests.collectives.launch.launcher import ronde


@pytest.mark.processes
def test_every_collective_is_measured_and_the_table_is_used(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    done = ronde(
        "tune", "-np", "3", "--transport", "local", "--max", "16K", "--factor", "16", "--seconds", "0.01",
        "-o", str(file),
    )  # fmt: skip
    said = done.stdout.decode()
    assert done.returncode == 0, said + done.stderr.decode()
    table = Rules.read(str(file))
    assert f"{len(table.rules)} rules in {file}" in said
    for collective in COLLECTIVES:
        assert said.count(f"{collective:>15}") == 2
    assert table.kernel_table() is not None
    (costs,) = table.costs
    assert costs.transport == "local"
    assert set(costs.terms()) == {"alpha", "beta", "gamma", "copy"}
    assert all((rule.min_ranks, rule.max_ranks, rule.transport) == (3, 3, "local") for rule in table.rules)
    done = ronde("bench", "-np", "3", "--max", "64", extra={"RONDE_RULES": str(file), "RONDE_TRANSPORT": "local"})
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["allreduce", "sort"], "'sort': must be among allreduce, allgather"),
        (["-np", "1"], "-np 1: must be 2 or more"),
        (["-o", "."], "'.': is a folder; it must be a file to write"),
        (["--factor", "0"], "'0': must be an integer, 2 or more"),
        (["--max", "lots"], "'lots': must be a positive number of bytes"),
    ],
)
def test_bad_arguments(arguments: list[str], text: str) -> None:
    done = ronde("tune", *arguments)
    assert done.returncode == 2
    assert text in done.stderr.decode()


def test_rules_cover_the_sizes_between_those_that_were_measured() -> None:
    found = [
        Found("allreduce", 1 << 10, 10.0, "ring", 9.9),  # not worth it
        Found("allreduce", 1 << 12, 10.0, "ring", 9.0),
        Found("allreduce", 1 << 14, 10.0, "ring", 5.0),
        Found("allreduce", 1 << 16, 10.0, "direct", 5.0),
        Found("broadcast", 1 << 10, 10.0, "chain", 5.0),
    ]
    assert list(rules(found, 4, "tcp")) == [
        Rule("allreduce", "ring", (1 << 11) + 1, 1 << 15, 4, 4, "tcp"),
        Rule("allreduce", "direct", (1 << 15) + 1, NO_LIMIT, 4, 4, "tcp"),
        Rule("broadcast", "chain", 0, NO_LIMIT, 4, 4, "tcp"),
    ]


def test_a_written_table_can_be_read(tmp_path: Path) -> None:
    table = Rules(
        (Rule("allreduce", "ring", 5, 6, 7, 8, "tcp", 9), Rule("barrier", "dissemination")),
        (Costs("tcp", 1e-5, 2e-10, 3e-10, 4e-11, 5e-5, 6e-10), Costs(alpha=1e-6)),
        (SingleCopy("allgather", 1 << 20, 2, 3, "shm"), SingleCopy("alltoall")),
        (CopyKernel("vector", 1 << 16, True, False), CopyKernel("memcpy")),
    )
    table.write(tmp_path / "rules.toml", "two\nlines")
    assert (tmp_path / "rules.toml").read_text().startswith("# two\n# lines\n")
    assert Rules.read(str(tmp_path / "rules.toml")) == table


def test_costs_replace_those_of_the_model() -> None:
    table = Rules((), (Costs(gamma=7.0), Costs("tcp", alpha=1.0, copy=2.0), Costs("shm", beta=3.0)))
    assert table.model(Model(), "tcp") == Model(alpha=1.0, gamma=7.0, copy=2.0)
    with pytest.raises(ConfigError, match=r"alpha=-1\.0: .*positive"):
        Costs(alpha=-1.0)
