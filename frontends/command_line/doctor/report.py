"""Judges the findings of `ronde doctor` about a cluster: its problems, and the table for people. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from frontends.command_line.doctor.check import SLOW, Findings, HostFinding, LinkFinding, typical

CLOCK_SECONDS: Final = 1.0
"""Clocks that are further apart are a problem: certificates, logs and time-outs in files compare them."""

COMPARED_FIRST: Final = ("python", "ronde", "numpy")

_MEANING: Final = {
    "silent": "no answer",
    "refused": "refused",
    "unreachable": "unreachable",
    "stranger": "wrong host or service",
    "cut": "large packets are lost",
    "stuck": "bulk data do not arrive",
    "slow": "slow",
}
_ADVICE: Final = {
    "silent": "a firewall drops the connections, or the interface is the wrong one (--network-interface)",
    "refused": "a firewall rejects the connections; the ranks listen on ports that the system chooses",
    "unreachable": "there is no route, or the interface is down or the wrong one (--network-interface)",
    "stranger": "a proxy or firewall answers, or several hosts have this address (--network-interface)",
    "cut": "the MTU on the way is smaller than that of the interface, and no host is told: a smaller MTU on the "
    "interfaces, or ICMP 'fragmentation needed' that firewalls let pass, mends it",
    "stuck": "packets are lost on the way, or the network is overloaded",
    "slow": "another interface or cable is used (--network-interface), or others use the network",
}


def problems(findings: Findings) -> list[str]:
    """Everything that is wrong, one line each; empty if the cluster is all right."""
    found = [f"host {host.name}: {host.problem}" for host in findings.hosts if host.problem]
    alive = [host for host in findings.hosts if not host.problem]
    return [*found, *_versions(alive), *_clocks(alive), *_links(findings, alive)]


def warnings(findings: Findings) -> list[str]:
    """Facts that work, but may not be intended."""
    limits = {host.name: _mtu(host) for host in findings.hosts if _mtu(host) is not None}
    if len(set(limits.values())) < 2:
        return []
    return ["the interfaces have different MTUs: " + ", ".join(f"{name} {mtu}" for name, mtu in limits.items())]


def _versions(alive: Sequence[HostFinding]) -> list[str]:
    """The packages of which hosts have different versions, or which some hosts lack."""
    packages = {package for host in alive for package in host.facts["versions"]}
    first = [package for package in COMPARED_FIRST if package in packages]
    texts = []
    for package in [*first, *sorted(packages - set(first))]:
        have = {host.name: host.facts["versions"].get(package, "none") for host in alive}
        ((usual, count), *others) = Counter(have.values()).most_common()
        if others and count > others[0][1]:
            odd = ", ".join(f"{name} has {one}" for name, one in have.items() if one != usual)
            texts.append(
                f"{_several('host', [n for n, one in have.items() if one != usual])}: "
                f"another {package} than the others ({usual}): {odd}"
            )
        elif others:
            texts.append(f"{package} differs: " + ", ".join(f"{name} has {one}" for name, one in have.items()))
    return texts


def _clocks(alive: Sequence[HostFinding]) -> list[str]:
    texts = []
    for host in alive:
        if host.ahead is not None and abs(host.ahead[0]) - host.ahead[1] > CLOCK_SECONDS:
            direction = "ahead of" if host.ahead[0] > 0 else "behind"
            texts.append(
                f"host {host.name}: its clock is {abs(host.ahead[0]):.1f} s {direction} the others'; synchronize the "
                f"clocks (NTP)"
            )
    return texts


def _links(findings: Findings, alive: Sequence[HostFinding]) -> list[str]:
    """Links that do not work, by the host that they have in common if there is one."""
    links = _judged(findings.links)
    bad = [link for link in links if link.state != "ok"]
    texts = []
    while bad:
        blamed = _blame(bad, links, [host.name for host in alive])
        if blamed is None:
            link = bad.pop(0)
            back = next((b for b in links if (b.source, b.target) == (link.target, link.source)), None)
            works = "; the other direction works" if back is not None and back.state == "ok" else ""
            texts.append(f"{link.source} to {link.target}: {_said(link, findings)}{works}: {_ADVICE[link.state]}")
        else:
            text, gone = blamed
            texts.append(f"{text}: {_said(gone[0], findings)}: {_ADVICE[gone[0].state]}")
            bad = [link for link in bad if link not in gone]
    return texts


def _judged(links: Sequence[LinkFinding]) -> list[LinkFinding]:
    """The links, with the state "slow" for those that are slower than others."""
    usual = typical(link.rate for link in links if link.rate is not None)
    return [
        replace(link, state="slow") if link.rate is not None and link.rate < usual / SLOW else link for link in links
    ]


def _blame(
    bad: Sequence[LinkFinding], links: Sequence[LinkFinding], names: Sequence[str]
) -> tuple[str, list[LinkFinding]] | None:
    """A host of which all links, or all in one direction, are bad in the same way, and the bad links that this
    explains; None if there is no such host, or if with two hosts it could be either."""
    ways: dict[str, Callable[[LinkFinding, str], bool]] = {
        "nothing passes to it or from it": lambda link, name: name in (link.source, link.target),
        "no connection to it works, those from it do": lambda link, name: link.target == name,
        "no connection from it works, those to it do": lambda link, name: link.source == name,
    }
    best: tuple[str, list[LinkFinding]] | None = None
    for text, concerns in ways.items():
        for name in names:
            mine = [link for link in links if concerns(link, name)]
            gone = [link for link in bad if concerns(link, name)]
            if len(gone) < 2 or len(gone) < len(mine) or len(names) < 3:
                continue
            if best is None or len(gone) > len(best[1]):
                connected = all(link.state in ("cut", "slow") for link in gone)
                best = (f"host {name}" if connected else f"host {name}: {text}"), gone
    return best


def _said(link: LinkFinding, findings: Findings) -> str:
    """The result of a link, with its address and interface."""
    target = next(host for host in findings.hosts if host.name == link.target)
    where = f"{target.address}{f' ({target.interface})' if target.interface else ''}"
    if link.state == "slow":
        usual = typical(link.rate for link in findings.links if link.rate is not None)
        return f"slow, {_rate(link.rate)} to {where}, where other links have {_rate(usual)}"
    if link.state == "cut":
        return f"packets of {link.lost} bytes do not arrive at {where}, those of {link.packet} do"
    return f"{_MEANING[link.state]} from {where} port {target.port} [{link.detail}]"


def render(findings: Findings) -> str:
    """The table for people."""
    alive = [host for host in findings.hosts if host.facts]
    same = _same_versions(alive)
    rows = [("host", "address", "interface", "MTU", "clock", "versions")]
    for host in findings.hosts:
        ahead = "?" if host.ahead is None else f"{host.ahead[0] * 1e3:+.1f} ms"
        own = [f"{name} {one}" for name, one in host.facts.get("versions", {}).items() if name not in same]
        versions = (", ".join(own) or "see below") if host.facts else "does not answer"
        rows.append((host.name, host.address or "?", host.interface or "?", _mtu(host) or "?", ahead, versions))
    lines = ["hosts", *_table(rows)]
    if same:
        lines += ["", "versions on all of them", *_table(list(same.items()))]
    if findings.links:
        rows = [("from", "to", "latency", "rate", "packets", "result")]
        rows += [
            (
                link.source,
                link.target,
                "?" if link.latency is None else f"{link.latency * 1e3:.2f} ms",
                "?" if link.rate is None else _rate(link.rate),
                "?" if link.packet is None else f"{link.packet} B",
                "ok" if link.state == "ok" else _MEANING[link.state],
            )
            for link in _judged(findings.links)
        ]
        lines += ["", "links", *_table(rows)]
    lines += [f"\nwarning: {text}" for text in warnings(findings)]
    found = problems(findings)
    lines += [f"\nproblem: {text}" for text in found]
    if not found:
        lines += ["", f"{_several('host', [host.name for host in findings.hosts])}: all right"]
    return "\n".join(lines) + "\n"


def _same_versions(alive: Sequence[HostFinding]) -> dict[str, str]:
    """The packages of which all hosts have the same version."""
    first, *others = [host.facts["versions"] for host in alive] or [{}]
    return {name: one for name, one in first.items() if all(other.get(name) == one for other in others)}


def _mtu(host: HostFinding) -> str | None:
    """The MTU of the interface that the host uses."""
    limit = host.facts.get("mtu", {}).get(host.interface)
    return None if limit is None else str(limit)


def _rate(bits: float | None) -> str:
    bits = bits or 0.0
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mbit/s"


def _several(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]) - 1)]
    return ["  " + "  ".join([*(row[i].ljust(width) for i, width in enumerate(widths)), row[-1]]) for row in cells]
