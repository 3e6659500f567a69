"""Probes on loopback: what they find, and that they answer nobody without the secret."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from frontends.command_line.doctor.check import Findings, check, ring_links
from frontends.command_line.doctor.probe import Probe
from frontends.command_line.doctor.probes import ProbeHere
from frontends.command_line.doctor.report import problems
from transports.auth import new_secret
from transports.errors import RondeError

SECRET = new_secret()


@pytest.fixture
def pair() -> Iterator[tuple[Probe, list[Any]]]:
    """A probe called "near", and the target that is one called "far"."""
    with closing(Probe()) as near, closing(Probe()) as far:
        listening(near, "near")
        yield near, ["far", *listening(far, "far")]


def listening(probe: Probe, name: str, secret: bytes = SECRET) -> tuple[str, int]:
    """The address and port of a probe."""
    state, value = probe.answer(["listen", secret, name, "127.0.0.1", []])
    assert state == "ok", value
    return value["address"], value["port"]


def reached(probe: Probe, target: list[Any]) -> dict[str, Any]:
    state, (found,) = probe.answer(["reach", [target]])
    assert state == "ok"
    return dict(found)


def test_a_sound_link(pair: tuple[Probe, list[Any]]) -> None:
    near, far = pair
    found = reached(near, far)
    assert (found["to"], found["state"], found["detail"], found["lost"]) == ("far", "ok", "", 0)
    assert 0 < found["latency"] < 1
    ahead, doubt = found["clock"]
    assert abs(ahead) <= doubt + 0.01
    assert found["packet"] >= 1500
    state, rate = near.answer(["rate", *far])
    assert state == "ok"
    assert rate > 1e6


def test_a_port_that_refuses(pair: tuple[Probe, list[Any]]) -> None:
    near, _ = pair
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert reached(near, ["far", "127.0.0.1", port])["state"] == "refused"
    assert near.answer(["rate", "far", "127.0.0.1", port])[0] == "failed"


def test_another_host_with_this_address(pair: tuple[Probe, list[Any]]) -> None:
    near, far = pair
    found = reached(near, ["third", *far[1:]])
    assert (found["state"], found["detail"]) == ("stranger", "127.0.0.1 leads to far: several hosts have this address")


def test_a_probe_of_another_doctor(pair: tuple[Probe, list[Any]]) -> None:
    near, _ = pair
    with closing(Probe()) as other:
        found = reached(near, ["far", *listening(other, "far", new_secret())])
    assert (found["state"], found["detail"]) == ("stranger", "the other end does not know the job's secret")


def test_a_service_that_hangs_up(pair: tuple[Probe, list[Any]]) -> None:
    near, _ = pair
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: server.accept()[0].close())
        found = reached(near, ["far", *server.getsockname()])
    assert found["state"] == "stranger"


def test_nothing_is_answered_without_the_secret(pair: tuple[Probe, list[Any]]) -> None:
    _, (_, *address) = pair
    with socket.create_connection(tuple(address), 5) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: far\r\n\r\n".ljust(200))
        link.settimeout(10)
        try:
            said = link.recv(100)
        except ConnectionResetError:  # it has not read everything
            said = b""
    assert said == b""


def test_questions_that_cannot_be_answered() -> None:
    with closing(Probe()) as probe:
        state, text = probe.answer(["sing"])
        assert (state, text) == ("failed", "the probe got an unknown question ('sing'): another version of Ronde?")
        state, text = probe.answer(["listen", SECRET, "near", "eth99", []])
        assert state == "failed"
        assert "'eth99': is not an interface or address of this machine" in text


def examined(probes: list[ProbeHere]) -> Findings:
    with ThreadPoolExecutor(len(probes)) as pool:
        return check(probes, pool, interface="127.0.0.1", start_seconds=30)


@pytest.mark.long
def test_a_ring_of_seven() -> None:
    with ExitStack() as stack:
        probes = [stack.enter_context(closing(ProbeHere(f"h{number}"))) for number in range(7)]
        findings = examined(probes)
    states = {(link.source, link.target): (link.state, link.rate is not None) for link in findings.links}
    ring = {(f"h{a}", f"h{b}") for a, b in ring_links(range(7))}
    assert {pair for pair, (_, measured) in states.items() if measured} == ring
    assert {state for state, _ in states.values()} == {"ok"}
    assert len(states) == 2 * 7 + 4  # those that are no neighbours of the first reach it too
    assert [text for text in problems(findings) if "slow" not in text] == []


def test_a_probe_that_fails_does_not_stop_the_others() -> None:
    class Broken(ProbeHere):
        def ask(self, *question: object, seconds: float) -> Any:
            if question[0] == "reach":
                raise RondeError("its cable was pulled")
            return super().ask(*question, seconds=seconds)

    with ExitStack() as stack:
        kinds = {"h1": ProbeHere, "h2": Broken, "h3": ProbeHere}
        probes = [stack.enter_context(closing(kind(name))) for name, kind in kinds.items()]
        findings = examined(probes)
    assert [(host.name, host.problem) for host in findings.hosts] == [
        ("h1", ""),
        ("h2", "its cable was pulled"),
        ("h3", ""),
    ]
    assert {link.source for link in findings.links} == {"h1", "h3"}


def test_a_host_that_has_loopback_only() -> None:
    class Elsewhere(ProbeHere):
        """Claims to have another address, at which it can be reached."""

        def ask(self, *question: Any, seconds: float) -> Any:
            answer = super().ask(*question, seconds=seconds) if question[0] != "reach" else None
            if question[0] == "listen":
                return answer | {"address": "10.99.0.1"}
            return [{"to": name, "state": "ok"} for name, *_ in question[1]] if answer is None else answer

    with ExitStack() as stack:
        kinds = {"h1": Elsewhere, "h2": Elsewhere, "h3": ProbeHere}
        probes = [stack.enter_context(closing(kind(name))) for name, kind in kinds.items()]
        with ThreadPoolExecutor(3) as pool:
            findings = check(probes, pool, interface="127.0.0.1", start_seconds=30, rates=False)
    assert [link.target for link in findings.links] == ["h2", "h1"]
    (problem,) = problems(findings)
    assert problem.startswith("host h3: no address but 127.0.0.1 was found that leads to the other hosts")
