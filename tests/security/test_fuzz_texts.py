"""Texts from the store, files, the environment and processes may be anything: only the documented errors are raised."""

from __future__ import annotations

import contextlib
import math
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Config
from collectives.failure.launcher_reports import culprit
from collectives.failure.mismatched_calls import find_mismatch, mismatch
from collectives.launch.calls.outcome import Failure, Success, dump, load
from collectives.planning.rules import Rules
from collectives.watchdog import stall_report as stall
from frontends.command_line.run import as_variables
from tests.security.fuzz import faulty, fuzz, numbers, values
from transports import launchers, packed
from transports.errors import ConfigError, MismatchError, RondeError, from_wire, to_wire
from transports.packed import pack, unpack
from transports.rendezvous import bootstrap, wire
from transports.rendezvous.causes import Causes
from transports.rendezvous.memory import MemoryStore
from transports.store import pack_table

SECRET = "5e" * 32

# Plain values


@fuzz(40)
@given(values)
def test_packed_values_are_unpacked(value: object) -> None:
    assert same(unpack(pack(value)), value)


def same(a: Any, b: Any) -> bool:
    """Equal, and NaN is NaN."""
    if isinstance(b, float):
        return isinstance(a, float) and (a == b or (math.isnan(a) and math.isnan(b)))
    if isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in b)
    return type(a) is type(b) and bool(a == b)


@fuzz(60)
@given(st.binary(max_size=100) | faulty(values.map(pack)))
def test_invalid_packed_bytes_raise_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xd6\xff" + bytes(4),
        b"\xd4\x05\x00",
        b"\x91" * 100_000 + b"\xc0",
        b"\x81\x91\xc0\xc0",
        b"\xa1\xff",
        b"\xdc\xff\xff" + b"\xc0" * 65_534,
        b"\xdd\x00\x01\x00\x01" + b"\xc0" * 65_537,
        b"\xc0\xc0",
        bytes(packed.MAX_BYTES + 1),
    ],
    ids=lambda data: data[:6].hex(),
)
def test_limits(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data)


@fuzz(60)
@given(st.dictionaries(st.sampled_from(["kind", "message", "rank", "peer"]) | st.text(max_size=5), values))
def test_any_description_is_an_error(fields: dict[str, object]) -> None:
    error = from_wire(fields)
    assert isinstance(error, RondeError)
    assert from_wire(unpack(pack(to_wire(error)))).message == error.message


# The store


errors = st.fixed_dictionaries({"kind": values, "message": values, "rank": values, "peer": values})
entries = st.one_of(
    values,
    st.tuples(st.text(max_size=5), st.text(max_size=5), numbers, numbers, numbers),
    st.fixed_dictionaries({"error": errors | values}),
)


@fuzz(40)
@given(
    st.sampled_from(["members", "members/size", "members/row/0", "members/row/1", "members/taken/0", "members/count"]),
    st.one_of(
        st.binary(max_size=60),
        entries.map(pack),
        faulty(entries.map(pack)),
        st.lists(entries.map(pack), max_size=3).map(pack_table),
        faulty(st.lists(entries.map(pack), max_size=2).map(pack_table)),
    ),
    st.integers(0, 1),
)
def test_the_tables_of_a_rendezvous_hold_anything(key: str, said: bytes, rank: int) -> None:
    store = MemoryStore()
    store.prefixed("generation-0").set(key, said)
    with contextlib.suppress(RondeError, ValueError):  # ValueError: no counter
        group = bootstrap.join(rank, 2, store, deadline=time.monotonic() + 0.002)
        assert set(group.numbers) in ({0, 1}, {rank})  # the other one may have been given up
        assert group.size == len(group.numbers)
        assert all(isinstance(member.hostname, str) for member in group.members)


@fuzz(40)
@given(st.one_of(st.binary(max_size=60), (errors | values).map(pack), faulty(errors.map(pack))))
def test_the_cause_in_the_store_is_anything(said: bytes) -> None:
    store = MemoryStore()
    store.prefixed("cause").set("first", said)
    causes = Causes(store)
    cause = causes.fetch(0.0)
    assert cause is None or isinstance(cause, RondeError)
    assert causes.publish(RondeError("of this rank")) in (True, False)


calls = st.tuples(st.integers(1, 3) | values, values, values)
notes = st.tuples(st.integers(-1, 3) | values, st.lists(calls, max_size=3))


@fuzz(40)
@given(st.one_of(st.binary(max_size=60), notes.map(pack), faulty(notes.map(pack)), values.map(pack)))
def test_a_note_of_a_wait_may_be_any_bytes(said: bytes) -> None:
    store = MemoryStore()
    store.prefixed("waiting").set("key", said)
    found = find_mismatch(store, "key", [0, 1], 0, [(1, 7, "allreduce"), (2, 8, "barrier")])
    assert found is None or found.peer in (0, 1)


waits = st.tuples(st.text(max_size=3) | values, numbers, numbers, numbers, st.none() | st.integers(-1, 3) | values)
stalled = st.tuples(
    st.lists(st.tuples(st.text(max_size=3), numbers | values, st.text(max_size=3)), max_size=2) | values,
    st.text(max_size=3) | values,
    st.lists(waits, max_size=2) | values,
)


@fuzz(60)
@given(st.one_of(st.binary(max_size=60), stalled.map(pack), faulty(stalled.map(pack)), values.map(pack)))
def test_an_answer_to_a_question_may_be_any_bytes(said: bytes) -> None:
    answer = stall.read_answer(said, 2)
    if answer is not None:
        assert all(isinstance(number, int) for _, number, _ in answer.calls)
        assert all(wait.peer in (None, 0, 1) for wait in answer.waits)


@fuzz(30)
@given(st.binary(max_size=60))
def test_a_row_of_a_mismatch_is_anything(said: bytes) -> None:
    store = MemoryStore()
    store.put_row("mismatch/key", 1, 2, said)
    error = mismatch(store, "key", 0, 2, "allreduce", "ring", "test")
    assert isinstance(error, MismatchError)
    assert "rank 0: allreduce, " in str(error)


@fuzz(50)
@given(st.binary(max_size=20) | st.integers(-5, 5).map(lambda number: b"%d" % number))
def test_the_first_failure_in_the_store_is_anything(said: bytes) -> None:
    store = MemoryStore()
    store.set("launcher/first-failure", said)
    assert culprit(store, [2, 0]) in (0, 2)


# The environment


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
likely = st.sampled_from(["0", "1", "2", "", "-1", "01", " 1", "1e3", "tcp://127.0.0.1:80", "tcp://[::1]:1", SECRET])
variables = st.sampled_from(["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "STORE", "SECRET", "JOB"])


@fuzz(60)
@given(st.dictionaries(variables, likely | texts))
def test_the_launchers_variables_are_anything(given: dict[str, str]) -> None:
    env = {f"RONDE_{name}": text for name, text in given.items()}
    try:
        job = launchers.job_from_environment(env)
    except ConfigError as error:
        assert "RONDE_" in str(error)  # noqa: PT017
        return
    if job is not None:
        assert 0 <= job.rank < job.size
        again = launchers.job_from_environment(launchers.job_to_environment(job))
        assert again == job


NAMES = """
RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMIX_NAMESPACE PMIX_RANK PMI_RANK
PMI_SIZE
PMI_FD FLUX_TASK_RANK FLUX_JOB_SIZE JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE HOROVOD_RANK HOROVOD_SIZE SLURM_PROCID
SLURM_STEP_ID
SLURM_STEP_NUM_TASKS SLURM_STEP_NODELIST PET_NNODES PET_NODE_RANK TF_CONFIG RONDE_LAUNCHER RONDE_SIZE RONDE_STORE
RONDE_PORT
RONDE_SECRET RONDE_SECRET_FILE
"""
foreign = st.sampled_from([name for line in NAMES.splitlines() for name in line.split(" ") if name])
hosts = st.text("ab01[],-", max_size=12)


@fuzz(100)
@given(st.dictionaries(foreign, likely | texts | hosts | st.just("slurm")))
def test_the_variables_of_other_launchers_are_anything(env: dict[str, str]) -> None:
    told = launchers.describe(env)
    if told["launcher"] is not None:
        assert 0 <= told["rank"] < told["size"]


@fuzz(50)
@given(texts | st.tuples(texts, texts).map(lambda pair: f"tcp://{pair[0]}:{pair[1]}") | likely)
def test_the_stores_address_is_anything(url: str) -> None:
    with contextlib.suppress(ConfigError):
        host, port = wire.parse_url(url)
        assert host
        assert 0 < port < 65536
    with contextlib.suppress(ConfigError):
        bootstrap.open_store(url, b"", 0.0).close()


settings_names = st.one_of(
    st.sampled_from(["transport", "timeout", "connect_timeout", "reproducible", "rules", "stage_bytes", "heartbeat"]),
    st.sampled_from(["tls_certificate", "tls_key", "tls_ca", "tcp_interface", "shm_ring_bytes", "auto_intra"]),
)


@fuzz(50)
@given(st.dictionaries(settings_names | texts.map(str.lower), likely | texts))
def test_settings_in_the_environment_are_anything(
    tmp_path_factory: pytest.TempPathFactory, given: dict[str, str]
) -> None:
    env = {f"RONDE_{name.upper()}": text for name, text in given.items() if name != "config"}
    with contextlib.suppress(ConfigError):
        Config.load(environment=env, directory=tmp_path_factory.getbasetemp())


@fuzz(40)
@given(st.lists(st.tuples(settings_names | st.sampled_from(["tcp.spin_us", "x.y", "."]) | texts, texts), max_size=3))
def test_settings_on_the_command_line_are_anything(settings: list[tuple[str, str]]) -> None:
    with contextlib.suppress(ConfigError):
        as_variables(settings)


# Files


def toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"'
    return str(value)


plain = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
in_toml = st.recursive(
    st.booleans() | numbers | st.just(10**400) | st.floats() | plain | likely,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=6,
)
names_in_files = settings_names | st.sampled_from(["tcp", "shm", "auto", "local", "faulty", "tool", "rule"])


@fuzz(60)
@given(
    st.sampled_from(["ronde.toml", "pyproject.toml"]),
    st.dictionaries(names_in_files | plain, in_toml, max_size=4),
    st.sampled_from([None, "ronde", "tool"]) | in_toml,
    st.booleans(),
)
def test_files_of_settings_hold_anything(
    tmp_path_factory: pytest.TempPathFactory, name: str, table: dict[str, object], place: object, named: bool
) -> None:
    path = tmp_path_factory.mktemp("files") / name
    whole = {"tool": {"ronde": table}} if place == "ronde" else {"tool": place} if place == "tool" else table
    lines = [f"{toml(key)} = {toml(value)}" for key, value in whole.items()]
    if place is not None and not isinstance(place, str):
        lines = [f"tool.ronde = {toml(place)}"]
    path.write_text("\n".join(lines), "utf-8")
    env = {"RONDE_CONFIG": str(path)} if named else {}
    with contextlib.suppress(ConfigError):
        Config.load(environment=env, directory=path.parent)


@fuzz(60)
@given(st.binary(max_size=60), st.sampled_from(["ronde.toml", "rules.toml"]))
def test_files_are_anything(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("files") / name
    path.write_bytes(data)
    with contextlib.suppress(ConfigError):
        Config.load(environment={"RONDE_CONFIG": str(path)})
    with contextlib.suppress(ConfigError):
        Rules.read(str(path))


def test_numbers_beyond_all_bounds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ronde.toml"
    path.write_text(f"timeout = {10**400}")
    with pytest.raises(ConfigError, match=r"timeout=.*number"):
        Config.load(environment={}, directory=tmp_path)


rules = st.dictionaries(
    st.sampled_from(["collective", "algorithm", "min_bytes", "max_ranks", "segments", "transport"]) | plain,
    st.sampled_from(["allreduce", "ring", "tcp"]) | in_toml,
    max_size=4,
)


@fuzz(40)
@given(st.lists(rules, max_size=3) | in_toml)
def test_rules_are_anything(tmp_path_factory: pytest.TempPathFactory, rows: object) -> None:
    path = tmp_path_factory.mktemp("files") / "rules.toml"
    path.write_text(f"rule = {toml(rows)}\ncosts = {toml(rows)}", "utf-8")
    with contextlib.suppress(ConfigError):
        Rules.read(str(path))


@pytest.mark.parametrize("name", ["a\0b", "", "x" * 10_000])
def test_names_of_files_are_anything(name: str, tmp_path: Path) -> None:
    with contextlib.suppress(ConfigError):
        Rules.read(name)
    if "\0" not in name:
        with contextlib.suppress(ConfigError):
            Config.load(environment={"RONDE_CONFIG": name}, directory=tmp_path)


def test_tables_in_tables_end_somewhere(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text("x = " + "[" * 50_000)
    with pytest.raises(ConfigError, match="TOML"):
        Config.load(environment={"RONDE_CONFIG": str(path)})
    with pytest.raises(ConfigError, match="TOML"):
        Rules.read(str(path))


# What a rank of `run` sends home, through a pipe that only it has


@fuzz(50)
@given(st.one_of(st.binary(max_size=80), faulty(st.builds(lambda value: dump(Success(1, value)), values))))
def test_an_outcome_is_anything(data: bytes) -> None:
    """The pipe belongs to a process that this one has started, which runs the caller's own code: unpickling adds
    nothing to what that can do. What is no pickle is the failure of that rank."""
    outcome = load(1, data)
    assert isinstance(outcome, Success | Failure)
    assert outcome.rank == 1


def test_the_outcome_of_another_rank_is_a_failure() -> None:
    unfinished = object.__new__(Success)
    for value in (Success(2, "value"), unfinished, "no outcome", None):
        outcome = load(1, pickle.dumps(value))
        assert isinstance(outcome, Failure)
        assert outcome.rank == 1
