"""Parameter servers: rounds, quorum, grace, staleness; several servers; lost workers and servers; snapshots; errors."""

from __future__ import annotations

import math
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator, MismatchError
from collectives.parameter_server import Synchronizer
from collectives.parameter_server.shard import Parameter, Rules, Shard
from collectives.parameter_server.shards import assigned, shard_of
from tests.collectives.launch.launcher import ronde as launched
from tests.collectives.membership.changes import SECONDS, job
from tests.worlds import world_of


def tree(value: float = 0.0) -> Any:
    return {"layers": [np.full((3, 2), value, np.float32), np.full(2, value, np.float64)], "scale": np.float32(value)}


def totals(params: Any) -> list[float]:
    first, second = params["layers"]
    assert (first.shape, first.dtype, second.dtype, params["scale"].shape) == ((3, 2), "f4", "f8", ())
    assert all(len(set(array.flat)) == 1 for array in (first, second)), "a change is applied whole"
    return [float(first[0, 0]), float(second[0]), float(params["scale"])]


# Without communication


def test_names_and_shards_are_divided_alike_on_all_ranks() -> None:
    assert [shard_of(f"layer/{n}", 3) for n in range(6)] == [2, 1, 1, 0, 2, 0]
    assert assigned(3, {5: [], 6: []}) == [5, 6, 5]
    assert assigned(3, {5: [1], 7: []}) == [7, 5, 5], "a server keeps its shards, the lost ones are shared out"
    with pytest.raises(ValueError, match="no server"):
        assigned(1, {})


def test_a_round_is_the_weighted_mean_of_a_quorum() -> None:
    parameter, rules, active = Parameter(np.zeros(2)), Rules(2, 0.0, None), frozenset({0, 1, 2})
    parameter.add(0, np.array([1.0, 2.0]), 1.0, 1, None)
    assert not parameter.decide(active, rules, 0.0)
    parameter.add(0, np.array([1.0, 2.0]), 1.0, 1, None)
    assert not parameter.decide(active, rules, 0.0), "one worker twice is no quorum of two"
    assert parameter.decide(frozenset({0}), rules, 0.0), "the quorum is that of the workers that there are"
    assert (parameter.value.tolist(), parameter.version) == ([1.0, 2.0], 2)
    parameter.add(0, np.array([4.0, 0.0]), 3.0, 1, None)
    parameter.add(2, np.array([0.0, 4.0]), 1.0, 1, None)
    assert parameter.decide(active, rules, 0.0)
    assert parameter.value.tolist() == [4.0, 3.0]


@pytest.mark.parametrize("weight", [1e-300, 1e-44, 1.0, 1e39, 1e300])
@pytest.mark.parametrize("changes", [1, 2])
def test_a_weight_beyond_the_range_of_the_values_is_a_weight(weight: float, changes: int) -> None:
    parameter = Parameter(np.zeros(2, np.float32))
    for worker in range(changes):
        parameter.add(worker, np.array([3e38, -1e-30], np.float32), weight, 1, None)
    assert parameter.decide(frozenset(range(changes)), Rules(changes, 0.0, None), 0.0)
    assert parameter.value.dtype == np.float32
    np.testing.assert_array_equal(parameter.value, np.array([3e38, -1e-30], np.float32))


def test_a_round_waits_for_its_grace_unless_all_are_there() -> None:
    parameter, rules, active = Parameter(np.zeros(1)), Rules(1, 5.0, None), frozenset({0, 1})
    parameter.add(0, np.ones(1), 1.0, 1, None)
    assert not parameter.decide(active, rules, 10.0)
    assert parameter.due == 15.0
    assert not parameter.decide(active, rules, 14.9)
    assert parameter.decide(active, rules, 15.0)
    assert parameter.due == math.inf
    for worker in (0, 1):
        parameter.add(worker, np.ones(1), 1.0, 1, None)
    assert parameter.decide(active, rules, 20.0)
    assert parameter.value.tolist() == [2.0]


def test_a_stale_change_is_dropped() -> None:
    parameter = Parameter(np.zeros(1), version=9)
    assert not parameter.add(0, np.ones(1), 1.0, 6, staleness=2)
    assert not parameter.decide(frozenset({0}), Rules(1, 0.0, 2), 0.0)
    assert parameter.add(0, np.ones(1), 1.0, 7, staleness=2)


def test_snapshots_come_every_so_many_updates_and_versions_never_return(tmp_path: Path) -> None:
    forms = {"a/b": np.zeros(2, np.float32), "c": np.zeros((), np.float64)}
    path = tmp_path / "deep" / "shard.npz"
    shard = Shard({name: Parameter(value) for name, value in forms.items()}, path, every=3)
    for _ in range(5):
        parameter = shard.parameters["a/b"]
        parameter.add(0, np.ones(2, np.float32), 1.0, 1, None)
        assert parameter.decide(frozenset({0}), Rules(1, 0.0, None), 0.0)
        shard.updated()
    back = Shard.restored(forms, path, every=3)
    assert back.parameters["a/b"].value.tolist() == [3.0, 3.0]
    assert back.parameters["a/b"].version == 4 + 3 > shard.parameters["a/b"].version
    assert back.parameters["c"].value.shape == ()
    shard.interrupt()  # as an update: a worker that waits for a newer version need not wait for lost changes
    assert (shard.parameters["a/b"].version, shard.parameters["c"].version) == (7, 2)
    assert Shard.restored(forms, path, every=3).parameters["a/b"].version == 7 + 3
    assert [file.name for file in path.parent.iterdir()] == ["shard.npz"]
    with pytest.raises(ValueError, match=r"'c' .*float64 \(\), .*float64 \(1,\)"):
        Shard.restored({**forms, "c": np.zeros(1)}, path, 3)
    with pytest.raises(ValueError, match=r"\['a/b', 'c'\], .*\['c'\]"):
        Shard.restored({"c": forms["c"]}, path, 3)


# Workers and servers


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize("servers", [1, 2])
def test_every_change_of_every_worker_is_added_once(transport: str, servers: int) -> None:
    def rank(comm: Communicator) -> Any:
        sync = Synchronizer(tree(float(comm.rank + 5)), servers=servers, comm=comm)
        sync.start()
        if sync.role == "worker":
            last = [0.0] * 3
            for step in range(20 * (comm.rank + 1)):  # workers make different numbers of steps
                found = totals(sync.pull_all())
                assert all(new >= old for new, old in zip(found, last, strict=True))
                last = found
                sync.push_all(tree(1.0))
                if step % 4 == 0:  # a worker sees its own changes
                    assert sync.pull("scale") >= last[2] + 1
        return sync.role, totals(sync.finish())

    with world_of(transport, 2 + servers) as world:
        results = world.run(rank)
    assert [role for role, _ in results] == ["worker"] * 2 + ["server"] * servers
    assert all(found == [5.0 + 20 + 40] * 3 for _, found in results)


def test_a_quorum_makes_training_synchronous() -> None:
    """With a quorum of all, and pulls that wait for the next version, values are those of averaged gradients."""

    def rank(comm: Communicator) -> list[float]:
        sync = Synchronizer({"x": np.zeros(1)}, quorum=2, comm=comm)
        sync.start()
        seen = []
        if sync.role == "worker":
            for _ in range(5):
                sync.push("x", [float(comm.rank)], weight=1.0 + 2 * comm.rank)
                seen.append(float(sync.pull("x", newer_than=sync.versions["x"] or 1)[0]))
        sync.finish()
        return seen

    with world_of("local", 3) as world:
        first, second, _ = world.run(rank)
    assert first == second == [0.75, 1.5, 2.25, 3.0, 3.75]


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble, ">f8", ">f4"])
def test_no_precision_is_lost_on_the_way(dtype: Any) -> None:
    exact = 1 + (2.0**-40 if np.dtype(dtype).itemsize > 4 else 2.0**-20)

    def rank(comm: Communicator) -> None:
        sync = Synchronizer([np.ones(3, dtype)])
        sync.start()
        if sync.role == "worker":
            sync.push_all([np.full(3, exact - 1, dtype)])
        (found,) = sync.finish()
        assert (found.dtype, found.tolist()) == (dtype, [exact] * 3)

    with world_of("local", 2) as world:
        world.run(rank)


def test_a_worker_that_has_finished_is_not_waited_for() -> None:
    def rank(comm: Communicator) -> float:
        sync = Synchronizer({"x": np.zeros(1)}, quorum=2, comm=comm)
        sync.start()
        if comm.rank == 0:
            sync.push("x", [4.0])
            assert sync.pull("x", newer_than=1).tolist() == [4.0]
        return float(sync.finish()["x"][0])

    with world_of("local", 3) as world:
        assert world.run(rank) == [4.0] * 3


def test_grace_ends_without_a_message() -> None:
    def rank(comm: Communicator) -> float:
        sync = Synchronizer({"x": np.zeros(1)}, grace=0.05, comm=comm)
        sync.start()
        if comm.rank == 0:
            began = time.monotonic()
            sync.push("x", [4.0])
            assert sync.pull("x", newer_than=1).tolist() == [4.0]
            assert time.monotonic() - began >= 0.05
        if sync.role == "worker":
            both.wait(SECONDS)
        return float(sync.finish()["x"][0])

    both = threading.Barrier(2)
    with world_of("local", 3) as world:
        assert world.run(rank) == [4.0] * 3


def test_stale_changes_are_dropped_and_counted() -> None:
    gate = threading.Barrier(2)

    def rank(comm: Communicator) -> Any:
        sync = Synchronizer({"x": np.zeros(1)}, staleness=2, comm=comm)
        sync.start()
        if sync.role == "worker":
            sync.pull("x")
            gate.wait(SECONDS)
            if comm.rank == 0:
                for _ in range(5):
                    sync.push("x", [1.0])
                    sync.pull("x")
            gate.wait(SECONDS)
            if comm.rank == 1:
                sync.push("x", [100.0])
                assert sync.pull("x").tolist() == [5.0]
                sync.push("x", [10.0])
        return sync.finish()["x"].tolist(), sync.dropped

    with world_of("local", 3) as world:
        assert world.run(rank) == [([15.0], 0), ([15.0], 0), ([15.0], 1)]


# Ranks that are lost


class Dies(Exception):
    pass


def lifetime(steps: int, dies_at: dict[int, int], *, gone: Any = None, **options: Any) -> Any:
    """The life of a rank: each step of a worker adds 1. Returns the role, the steps and the final value."""

    def body(comm: Communicator) -> Any:
        number = comm.transport.group.numbers[comm.rank]
        sync = Synchronizer({"x": np.zeros(1), "w": np.zeros(1)}, elastic=True, **options)
        mine = 0
        sync.start()
        try:
            while sync.role == "worker" and mine < steps:
                if dies_at.get(number) == mine:
                    raise Dies
                sync.push_all({"x": np.ones(1), "w": np.ones(1)})
                sync.pull_all()
                mine += 1
            final = sync.finish()
        except Dies:
            ronde.world().abort("it dies")
            return "died", mine, []
        return sync.role, mine, [float(final["x"][0]), float(final["w"][0])]

    return body


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_lost_worker_costs_at_most_one_step_of_each(transport: str) -> None:
    with job(transport) as here:
        results = [future.result(SECONDS) for future in here.start(4, lifetime(60, {1: 25}))]
    assert [role for role, *_ in results] == ["worker", "died", "worker", "server"]
    total = sum(mine for _, mine, _ in results)
    for role, _, final in results:
        for value in final:
            assert total - 3 <= value <= total + 3, (role, value, total)


@pytest.mark.parametrize("quorum", [2, 3])
def test_with_a_quorum_a_lost_worker_costs_few_changes_of_each(quorum: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers wait for a newer version after each change: one is lost of each if the quorum is all, else two."""
    pushed, applied, decide = {}, np.zeros(3), Parameter.decide

    def counted(self: Parameter, *arguments: Any) -> bool:
        changes = None if self._mean is None else np.rint(self._mean * self._weight)
        done = decide(self, *arguments)
        if done:
            applied[:] += changes
        return done

    monkeypatch.setattr(Parameter, "decide", counted)

    def body(comm: Communicator) -> list[float]:
        number = comm.transport.group.numbers[comm.rank]
        sync = Synchronizer({"x": np.zeros(3)}, elastic=True, quorum=quorum)
        sync.start()
        try:
            for mine in range(40 if sync.role == "worker" else 0):
                pushed[number] = mine + 1
                sync.push("x", np.eye(3)[number])
                if number == 1 and mine == 14:
                    raise Dies
                sync.pull("x", newer_than=max(sync.versions["x"], 1))
            return [float(value) for value in sync.finish()["x"]]
        except Dies:
            ronde.world().abort("it dies")
            return []

    with job("local") as here:
        first, died, other, server = (future.result(SECONDS) for future in here.start(4, body))
    assert died == []
    assert first == other == server
    assert pushed == {0: 40, 1: 15, 2: 40}
    for number, count in pushed.items():
        assert count - (1 if quorum == 3 else 2) <= applied[number] <= count


KILLED = """
import os, signal
import numpy as np
import ronde
from ronde.parameter_server import Synchronizer

ronde.init()
number = ronde.rank()
sync = Synchronizer({"x": np.zeros(2), "w": np.zeros(2)}, elastic=True)
sync.start()
mine = after = 0
while sync.role == "worker" and after < 20:
    sync.push_all({"x": np.eye(2)[number], "w": np.eye(2)[number]})
    mine += 1
    if (number, mine) == (1, 25):
        os.kill(os.getpid(), signal.SIGKILL)
    sync.pull_all()
    after += sync.comm.size == 2
final = sync.finish()
if ronde.rank() == 0:
    print(mine, *final["x"], *final["w"])
ronde.shutdown()
"""


@pytest.mark.processes
def test_a_killed_process_costs_at_most_one_change_of_each_worker(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(KILLED)
    elastic = ["-np", "3", "--min-np", "2", "--max-np", "3", "--no-prefix", "--blacklist-cooldown-range", "300", "300"]
    done = launched("run", *elastic, sys.executable, str(script))
    assert done.returncode == 0, done.stderr.decode()
    assert "left: 1 (its process ended)" in done.stderr.decode()
    mine, *counts = map(float, done.stdout.split())
    for first, killed in (counts[:2], counts[2:]):
        assert mine - 1 <= first <= mine
        assert 24 <= killed <= 25


class Killed(BaseException):
    """Ends a server in the middle of its work."""


@pytest.mark.parametrize("spare", [False, True])
def test_a_lost_server_costs_the_updates_since_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: bool
) -> None:
    """Its shards go to the other server, or to a newcomer."""
    every, updates, lost = 7, [0], threading.Event()
    updated = Shard.updated

    def counted(self: Shard) -> None:
        updated(self)
        if "x" in self.parameters and not lost.is_set():
            updates[0] += 1
            if updates[0] == 40:
                lost.set()
                raise Killed

    monkeypatch.setattr(Shard, "updated", counted)
    names = {"x": shard_of("x", 2), "w": shard_of("w", 2)}
    assert names["x"] != names["w"]

    def body(comm: Communicator) -> Any:
        try:
            return live(comm)
        except Killed:
            ronde.world().abort("it dies")
            return "died", 0, []

    live = lifetime(50, {}, servers=2, snapshots=tmp_path, every=every)
    with job("local") as here:
        futures = here.start(4, body)
        if spare:
            futures.append(here.come(body, 9))
        results = [future.result(SECONDS) for future in futures]
    assert lost.is_set()
    roles = [role for role, *_ in results]
    assert roles.count("died") == 1
    assert roles.count("server") == (2 if spare else 1)
    finals = [final for _, _, final in results if final]
    assert all(final == finals[0] for final in finals)
    x, other = finals[0]
    assert 100 - every - 2 <= x <= 100, "beside the updates since the snapshot, one step of each worker"
    assert 100 - 2 <= other <= 100, "the other server loses nothing but changes on their way"


def test_a_job_goes_on_from_the_snapshots(tmp_path: Path) -> None:
    body = lifetime(10, {}, servers=2, snapshots=tmp_path, every=1000)
    for times in (1, 2):
        with job("local") as here:
            results = [future.result(SECONDS) for future in here.start(3, body)]
        assert [final for *_, final in results] == [[10.0 * times] * 2] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-0-of-2.npz", "shard-1-of-2.npz"]


def test_without_snapshots_a_lost_server_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    updated = Shard.updated

    def killed(self: Shard) -> None:
        if "x" in self.parameters:
            raise Killed
        updated(self)

    monkeypatch.setattr(Shard, "updated", killed)

    def body(comm: Communicator) -> str:
        try:
            lifetime(50, {}, servers=2)(comm)
        except Killed:
            ronde.world().abort("it dies")
        except RuntimeError as error:
            return str(error)
        return ""

    with job("local") as here:
        said = [future.result(SECONDS) for future in here.start(4, body)]
    left = [text for text in said if text]
    assert left
    assert all("its server was lost, and there are no snapshots" in text for text in left)


def test_after_a_failure_one_may_shrink_by_hand() -> None:
    def rank(comm: Communicator) -> Any:
        sync = Synchronizer({"x": np.zeros(1)}, role="server" if comm.rank == 0 else "worker", comm=comm)
        sync.start()

        def train(steps: int) -> None:
            for _ in range(steps):
                sync.push("x", [1.0])
                sync.pull("x")

        if comm.rank == 2:
            train(5)
            comm.abort("it dies")
            comm.close()
            return None
        with pytest.raises(ronde.AbortedError, match="it dies"):
            sync.finish() if sync.role == "server" else train(10**6)
        with comm.shrink() as smaller:
            sync.start(smaller)
            if sync.role == "worker":
                before = sync.pull("x")
                sync.push("x", [1.0])
                assert sync.pull("x") == before + 1
            return sync.role, sync.finish()["x"] >= 6

    with world_of("local", 3) as world:
        assert world.run(rank) == [("server", True), ("worker", True), None]


# Errors


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"servers": 0}, ValueError, "servers=0: .*1 or more"),
        ({"quorum": 1.5}, TypeError, "quorum=1.5: .* int"),
        ({"every": True}, TypeError, "every=True: .* int"),
        ({"staleness": -1}, ValueError, "staleness=-1: .*0 or more"),
        ({"grace": math.inf}, ValueError, "grace=inf: .*seconds"),
        ({"role": "ps"}, ValueError, "role='ps': .*'worker', 'server' or None"),
        ({"params": {"n": np.arange(3)}}, TypeError, r"params\['n'\]: is of int64"),
        ({"params": {}}, ValueError, "params: has no arrays"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Synchronizer(**{"params": tree(), **options})


def test_bad_calls_leave_it_usable() -> None:
    def rank(comm: Communicator) -> Any:
        sync = Synchronizer(tree(), comm=comm)
        with pytest.raises(RuntimeError, match=r"pull: .*start"):
            sync.pull("scale")
        with pytest.raises(RuntimeError, match=r"finish: .*start"):
            sync.finish()
        sync.start()
        if sync.role == "server":
            with pytest.raises(RuntimeError, match=r"push: rank 1 .*server.*finish"):
                sync.push("scale", 1.0)
        else:
            with pytest.raises(KeyError, match=r"name='scales': .*layers/0, layers/1, scale"):
                sync.pull("scales")
            with pytest.raises(ValueError, match=r"delta: .*\(3,\).* \(2,\).*'layers/1'"):
                sync.push("layers/1", np.zeros(3))
            with pytest.raises(FloatingPointError, match=r"'scale' .*finite"):
                sync.push_all({**tree(), "scale": np.float32("nan")})
            with pytest.raises(ValueError, match=r"weight=0: .*above 0"):
                sync.push("scale", 1.0, 0)
            for delta in (1j, "text", None):
                with pytest.raises(TypeError, match=r"delta: .*real numbers"):
                    sync.push("scale", delta)
            for version in ("1", 1.5, True):
                with pytest.raises(TypeError, match=rf"newer_than={version!r}: .* int"):
                    sync.pull("scale", newer_than=version)
            sync.push("scale", 2.0)
        return float(sync.finish()["scale"])

    with world_of("local", 2) as world:
        assert world.run(rank) == [2.0, 2.0]


def test_ranks_that_disagree_are_told() -> None:
    def rank(comm: Communicator) -> None:
        sync = Synchronizer(tree(), comm=comm, servers=1 + comm.rank // 2)
        with pytest.raises(MismatchError, match="servers: rank 2 has 2, rank 0 has 1"):
            sync.start()
        sync = Synchronizer(tree(), comm=comm, role="worker")
        with pytest.raises(ValueError, match=r"role: .*3 ranks .*server"):
            sync.start()

    with world_of("local", 3) as world:
        world.run(rank)
