"""The figures of a job at one moment, as plain data, for the terminal, the page, scripts and Prometheus."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from collectives.flight import CLOSED, FAILED
from collectives.observing import CallKind, Culprit, HostState, RankState, Snapshot, judge
from frontends.top.watching import Look

WINDOW: Final = 30.0
"""Seconds whose waits are charged."""
NOTABLE: Final = 0.1
"""Seconds from which on a chain of waits is shown: those of a job that goes on change all the time."""
MOST_NAMED: Final = 8
"""Ranks of a list that are named."""
_KINDS: Final = 12
"""Kinds of calls that are shown."""

Figures = dict[str, Any]
"""The keys are those of `figures_of`. Times are seconds, shares go from 0 to 1, a list of ranks names the first ones
and has the number of all."""


def figures_of(look: Look, snapshot: Snapshot) -> Figures:
    """The figures of a look, of which the snapshot was made by `snapshot_of`."""
    first = look.records[0].facts if look.records else {}
    return {
        "world": snapshot.world,
        "program": str(first.get("program", "")),
        "transport": str(first.get("transport", "")),
        "size": snapshot.size,
        "over": look.over,
        "time": time.time(),
        "window": min(WINDOW, snapshot.charges.span),
        "ranks": [_rank(state, look.delays) for state in snapshot.ranks],
        "hosts": [_host(state) for state in snapshot.hosts],
        "missing": _several(snapshot.missing),
        "silent": _several(look.silent),
        "trouble": look.trouble,
        "chain": _chain(snapshot),
        "slowest": [_kind(kind) for kind in snapshot.slowest[:_KINDS]],
        "culprits": [_culprit(one) for one in judge(snapshot.charges, look.delays, look.links)],
        "failures": [
            {"rank": record.rank, **{key: record.failure.get(key) for key in ("error", "text", "peer")}}
            for record in look.records
            if record.failure
        ][:MOST_NAMED],
    }


def snapshot_of(look: Look) -> Snapshot:
    """The comparison of the records of a look."""
    return Snapshot.of(look.records, since=look.now - int(WINDOW * 1e9))


def _rank(state: RankState, delays: Mapping[int, float]) -> Figures:
    call = state.call
    return {
        "rank": state.rank,
        "host": state.hostname,
        "host_id": state.host,
        "pid": state.pid,
        "state": _state_of(state),
        "call": None
        if call is None
        else {
            "text": call.description.call,
            "collective": call.description.collective,
            "line": call.description.line,
            "algorithm": call.description.algorithm,
            "communicator": call.communicator,
            "number": call.number,
        },
        "last": None if state.last is None else {"text": state.last.call, "line": state.last.line},
        "seconds": state.seconds,
        "waits_for": _several(state.waits_for),
        "waits": state.waits,
        "calls_per_second": state.calls_per_second,
        "bytes_per_second": state.bytes_per_second,
        "communicating": state.communicating,
        "waited": state.waited,
        "caused": state.caused,
        "share": state.share,
        "run_delay": delays.get(state.rank),
    }


def _state_of(state: RankState) -> str:
    """One word."""
    if state.state == FAILED:
        return "failed"
    if state.state == CLOSED:
        return "closed"
    if not state.alive:
        return "dead"
    if state.waits_for:
        return "waiting"
    return "in a call" if state.calls else "computing"


def _host(state: HostState) -> Figures:
    return {
        "host": state.hostname,
        "host_id": state.host,
        "ranks": _several(state.ranks),
        "alive": state.alive,
        "waiting": state.waiting,
        "calls_per_second": state.calls_per_second,
        "bytes_per_second": state.bytes_per_second,
        "communicating": state.communicating,
        "waited": state.waited,
        "caused": state.caused,
        "share": state.share,
    }


def _kind(kind: CallKind) -> Figures:
    return {
        "communicator": kind.communicator,
        "text": kind.description.call,
        "collective": kind.description.collective,
        "algorithm": kind.description.algorithm,
        "line": kind.description.line,
        "count": kind.count,
        "mean": kind.mean,
        "longest": kind.longest,
        "total": kind.total,
        "waiting": kind.waiting,
    }


def _culprit(culprit: Culprit) -> Figures:
    return {
        "kind": str(culprit.kind),
        "ranks": _several(culprit.ranks),
        "host": culprit.host,
        "share": culprit.share,
        "seconds": culprit.seconds,
        "reason": culprit.reason,
        "calls": [call.description.call for call in culprit.calls[:MOST_NAMED]],
    }


def _chain(snapshot: Snapshot) -> Figures | None:
    chain = snapshot.chain
    if chain is None:
        return None
    states = {state.rank: state for state in snapshot.ranks}
    shown = chain.ranks if len(chain.ranks) <= MOST_NAMED else (*chain.ranks[: MOST_NAMED - 2], *chain.ranks[-2:])
    links = []
    for rank in shown:
        state = states.get(rank)
        call = None if state is None else state.call
        links.append(
            {
                "rank": rank,
                "host": "" if state is None else state.hostname,
                "state": "no record" if state is None else _state_of(state),
                "call": "" if call is None else call.description.call,
                "number": 0 if call is None else call.number,
                "line": "" if call is None else call.description.line,
                "seconds": 0.0 if state is None else state.seconds,
            }
        )
    waits = states[chain.ranks[0]].waits
    return {"ranks": list(shown), "length": len(chain.ranks), "circle": chain.circle, "seconds": waits, "links": links}


def _several(ranks: Sequence[int]) -> Figures:
    return {"count": len(ranks), "first": list(ranks[:MOST_NAMED])}
