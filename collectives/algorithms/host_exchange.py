"""Alltoall in two levels: blocks for the ranks of another host cross together, as one message of each lane.

    two hosts of two ranks; the blocks that rank 0 of host A = {0, 1} holds, as (from, to):

    at first        (0,0) (0,1) (0,2) (0,3)     rank 2 is in lane 0 of host B, rank 3 in lane 1
    inside A        (0,0) (0,2) (1,0) (1,2)     1 sends what is for lane 0, 0 sends 1 what is for lane 1
    across hosts    (0,0) (1,0) (2,0) (3,0)     0 and 2 exchange what each other's lanes have

Ranks send h - 1 messages over the links between the h hosts in place of p - l. Where hosts have different numbers of
ranks, lanes have teams (see hierarchical.py): the leader exchanges for its team, and hands over its members' blocks.
(Träff and Rougier, "MPI collectives and datatypes for hierarchical all-to-all communication", 2014.)
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from collectives.algorithms.registry import Cost, algorithm
from collectives.schedule import Geometry, Step, copy, inp, lanes, out, recv, scratch, send, settle


def _traffic(g: Geometry) -> Fraction:
    """Count blocks: inside hosts to the leaders, across hosts, and from leaders to the members of their teams."""
    world = lanes(g.hosts, g.size)
    blocks = 0
    for host, teams in enumerate(world.teams):
        local = sum(len(team) for team in teams)
        away = g.size - local
        blocks += local * (local - 1)
        for lane in range(world.lanes):
            targets = sum(len(world.teams[far][lane]) for far in range(world.hosts) if far != host)
            blocks += (local - 1) * targets + local * targets
        blocks += sum(len(team) - 1 for team in teams) * away
    return Fraction(blocks, g.size)


def _cost(g: Geometry) -> Cost:
    world = lanes(g.hosts, g.size)
    far, rounds, inside, across = world.hosts - 1, 0, 0.0, 0.0
    for teams in world.teams:
        local, team = sum(len(team) for team in teams), len(teams[0])
        away = g.size - local
        rounds = max(rounds, local + team - 2)
        inside = max(inside, local - 1 + (local - 1) * away / world.lanes + (team - 1) * away)
        across = max(across, local * away / world.lanes)
    return Cost(
        rounds + far,
        (inside + across) / g.size,
        copied=(1 + 3 * across) / g.size,
        local_rounds=rounds,
        local_sent=inside / g.size,
    )


class _Slots:
    """SCRATCH in the order of use. All blocks have one size, which is that of a rank's first block."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.used = 0

    def take(self, width: int) -> int:
        self.used += width
        return self.used - width


def _others(hosts: int, host: int) -> list[tuple[int, int]]:
    """Return the hosts (ahead, behind) of every round of a pairwise exchange."""
    return [((host + i) % hosts, (host - i) % hosts) for i in range(1, hosts)]


@algorithm(
    "alltoall",
    "hierarchical",
    traffic=_traffic,
    cost=_cost,
    uniform=True,
    multihost=True,
)
def alltoall(g: Geometry) -> Iterator[Step]:
    """Inside a host every rank sends each leader the blocks for its lane. The leaders of a lane exchange pairwise, in
    one message, what their hosts have for each other. They hand over the blocks of their teams.

    Traffic with h hosts of l ranks, in rows: (l - 1) / l + (p - l) / p for each rank (Träff and Rougier 2014). Time:
    l - 1 local messages with (l - 1) / l N, and h - 1 between hosts, in place of p - l, with the same bytes.
    """
    world = lanes(g.hosts, g.size)
    host, lane = world.find(g.rank)
    team = world.teams[host][lane]
    leader = {teams[0]: number for number, teams in enumerate(world.teams[host])}
    local = sorted(rank for members in world.teams[host] for rank in members)
    me, row = local.index(g.rank), g.rank * g.size
    far = {
        number: [rank for ahead, _ in _others(world.hosts, host) for rank in world.teams[ahead][number]]
        for number in range(world.lanes)
    }
    slots = _Slots(row)
    kept: dict[int, int] = {}  # rank of this host -> slot of its blocks for the own lane on other hosts

    label = "inside the host"
    yield copy(inp(row + g.rank), out(row + g.rank), "copy own block")
    if g.rank in leader:
        kept[g.rank] = slots.take(len(far[lane]))
        for slot, rank in enumerate(far[lane], kept[g.rank]):
            yield copy(inp(row + rank), scratch(slot, row), "pack")
    for i in range(1, len(local)):
        ahead, behind = local[(me + i) % len(local)], local[(me - i) % len(local)]
        if g.rank in leader:
            kept[behind] = slots.take(len(far[lane]) + 1)
            yield recv(behind, scratch(kept[behind], row, len(far[lane]) + 1), label)
        else:
            yield recv(behind, out(behind * g.size + g.rank), label)
        if ahead in leader:
            blocks = [*far[leader[ahead]], ahead]
            packed = slots.take(len(blocks))
            for slot, rank in enumerate(blocks, packed):
                yield copy(inp(row + rank), scratch(slot, row), "pack")
            yield send(ahead, scratch(packed, row, len(blocks)), label)
        else:
            yield send(ahead, inp(row + ahead), label)
        yield settle(label)
        if g.rank in leader:
            yield copy(scratch(kept[behind] + len(far[lane]), row), out(behind * g.size + g.rank), "unpack")

    away = [rank for rank in range(g.size) if rank not in local]
    handed = slots.take(len(away) * (len(team) - 1)) if len(team) > 1 else 0
    if g.rank in leader:
        label = "across hosts"
        begin = 0
        for ahead, behind in _others(world.hosts, host):
            targets, sources = world.teams[ahead][lane], sorted(rank for each in world.teams[behind] for rank in each)
            packed = slots.take(len(local) * len(targets))
            landing = slots.take(len(sources) * len(team))
            yield recv(world.teams[behind][lane][0], scratch(landing, row, len(sources) * len(team)), label)
            for number, source in enumerate(local):
                yield copy(
                    scratch(kept[source] + begin, row, len(targets)),
                    scratch(packed + number * len(targets), row, len(targets)),
                    "pack",
                )
            yield send(targets[0], scratch(packed, row, len(local) * len(targets)), label)
            yield settle(label)
            begin += len(targets)
            for number, source in enumerate(sources):
                block = landing + number * len(team)
                yield copy(scratch(block, row), out(source * g.size + g.rank), "unpack")
                for turn in range(len(team) - 1):
                    target = handed + turn * len(away) + away.index(source)
                    yield copy(scratch(block + 1 + turn, row), scratch(target, row), "pack")
        for turn, member in enumerate(team[1:]):
            if away:
                yield send(member, scratch(handed + turn * len(away), row, len(away)), "in team")
    elif away:
        landing = slots.take(len(away))
        yield recv(team[0], scratch(landing, row, len(away)), "in team")
        for slot, source in enumerate(away, landing):
            yield copy(scratch(slot, row), out(source * g.size + g.rank), "unpack")
