"""Hierarchical algorithms: separate phases inside hosts and across hosts, so that slow links carry each byte once.

                lane 0       lane 1
    host A      0, 2         1            teams: {0, 2} and {1}, led by 0 and 1
    host B      3            4            teams: {3} and {4}
                0 <-> 3      1 <-> 4      across hosts: leaders of a lane, all lanes at the same time

There are as many lanes as the host with the fewest ranks has ranks. On every host a lane has a team of ranks, led by
its first; with equally populated hosts a team is one rank. Each lane carries its share of the data between hosts.
(Thakur and Gropp, "Improving the performance of collective operations in MPICH", 2003; the lanes: Träff and Hunold,
"Decomposing MPI collectives for exploiting multi-lane communication", 2020.)

The phases may overlap, as a pipeline: a part goes across hosts while the host reduces the next one, or spreads the one
before. The second of three hosts, which has the ring's part 1:

    time             1           2           3           4           5           6
    inside the host  reduce 1    reduce 0    reduce 2    spread 2    spread 1    spread 0
    across hosts                 send 1      send 0      send 2      send 1

Part 2 is complete at time 3; parts 1 and 0 come complete from the first host. Segments cut the parts into pieces, so
that less goes before the first message across hosts and after the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise

from collectives.algorithms.registry import Cost, algorithm
from collectives.algorithms.ring import circulate
from collectives.algorithms.symmetry import by_host_and_lane
from collectives.algorithms.tree import broadcast_from, depth, reduce_to
from collectives.schedule import (
    Geometry,
    Ref,
    Run,
    Step,
    binomial_children,
    binomial_parent,
    by_host,
    copy,
    dissemination,
    inp,
    lanes,
    out,
    recv,
    rounds,
    runs,
    scratch,
    send,
    settle,
)

_Hold = Callable[[int, int], Ref]
"""(chunk, width) -> its memory."""


def _allreduce_cost(g: Geometry) -> Cost:
    world = lanes(g.hosts, g.size)
    local, far, team = world.lanes, world.hosts, max(len(team) for host in world.teams for team in host)
    inside = 2 * (local - 1), 2 * (local - 1) / local
    teams = depth(team) + rounds(team)
    across = 2 * (far - 1) * g.segments, 2 * (far - 1) / far / local
    return Cost(
        inside[0] + teams + across[0],
        inside[1] + teams + across[1],
        (local - 1) / local + depth(team) + (far - 1) / far / local / g.segments,
        local_rounds=inside[0] + teams,
        local_sent=inside[1] + teams,
        flight=g.segments,
    )


def _pieces(first: int, width: int, segments: int) -> list[Run]:
    """Return `width` chunks from `first` on as `segments` runs of equal width; `width` is a multiple of `segments`."""
    each = width // segments
    return [(first + segment * each, each) for segment in range(segments)]


def _allreduce(g: Geometry, *, pipelined: bool) -> Iterator[Step]:
    world = lanes(g.hosts, g.size)
    host, lane = world.find(g.rank)
    team = world.teams[host][lane]
    me = team.index(g.rank)
    leaders = [members[0] for members in world.teams[host]]
    across = [members[lane][0] for members in world.teams]
    whole, far = g.size * g.segments, world.hosts
    count = world.lanes * far
    edges = [part * g.size // count * g.segments for part in range(count + 1)]
    parts = [_pieces(low, high - low, g.segments) for low, high in pairwise(edges)]
    outside = parts[lane * far : (lane + 1) * far]
    others, rounds_across = len(leaders) - 1, far - 1

    def combine(pieces: Sequence[Run], own: _Hold, slot: int = 0) -> Iterator[Step]:
        """Leave the piece of each lane, combined, with the leader of that lane."""
        rings = [[piece] for piece in pieces]
        return circulate(
            leaders, lane, rings, own=own, place=out, first=-1, reducing=others, slot=slot, label="inside the host"
        )

    def spread(pieces: Sequence[Run]) -> Iterator[Step]:
        """Give the piece of each lane to all leaders of the host."""
        rings = [[piece] for piece in pieces]
        return circulate(leaders, lane, rings, own=out, place=out, copying=others, label="inside the host")

    own: _Hold = inp
    if len(team) > 1:
        yield from reduce_to(team, me, 0, inp(0, whole), out(0, whole), 0, "reduce in team")
        own = out
    if me == 0:
        ring = partial(
            circulate,
            across,
            host,
            outside,
            own=out if others else own,
            place=out,
            reducing=rounds_across,
            copying=rounds_across,
            label="across hosts",
        )
        if pipelined and rounds_across:
            ahead = g.segments + 1  # a message inside the host never waits behind one that its receiver has not posted
            room = ahead * max(width for part in parts for _, width in part)  # SCRATCH of the ring across hosts
            rows = [zip(*parts[at::far], strict=True) for at in range(far)]
            beside = {row[lane]: row for pieces in rows for row in pieces}
            yield from ring(
                ahead=ahead,
                before=lambda *piece: combine(beside[piece], own, room),
                after=lambda *piece: spread(beside[piece]),
            )
        else:
            inside = [(low, high - low) for low, high in pairwise(edges[::far])]
            yield from combine(inside, own)
            yield from ring()
            yield from spread(inside)
        if g.size == 1:
            yield copy(inp(0, whole), out(0, whole), "copy")
    yield from broadcast_from(team, me, 0, out(0, whole), out(0, whole), "broadcast in team")


@algorithm(
    "allreduce",
    "hierarchical",
    traffic=lambda g: Fraction(2 * (g.size - 1)),
    cost=_allreduce_cost,
    segmented=True,
    multihost=True,
    symmetry=by_host_and_lane,
)
def allreduce(g: Geometry) -> Iterator[Step]:
    """Reduce in teams; reduce-scatter among the leaders of a host; ring allreduce across hosts in segments, every lane
    with its part; allgather among the leaders; broadcast in teams.

    Traffic 2 (p - 1) N, 2 (h - 1) N of it between hosts.
    """
    yield from _allreduce(g, pipelined=False)


_PIPELINED_BYTES = 1 << 17
"""Measured with 6 and 8 ranks on 2 cores, at 200 Mbit/s and 1 Gbit/s: from chunks of 128 KiB on the pipeline takes
0.83 to 1.02 of the time of the phases, with chunks of 8 KiB up to 1.4 times as long."""


def _pipelined_cost(g: Geometry) -> Cost:
    """Return the cost where the links between hosts are slower than the hosts: bytes inside a host count for the first
    and the last piece, the others go beside those between hosts."""
    phases, world = _allreduce_cost(g), lanes(g.hosts, g.size)
    if world.hosts == 1:
        return phases
    pieces, messages = world.hosts * g.segments, 2 * (world.lanes - 1)
    more, hidden = messages * (pieces - 1), messages / world.lanes * (1 - 1 / pieces)
    return phases._replace(
        rounds=phases.rounds + more,
        sent=phases.sent - hidden,
        local_rounds=phases.local_rounds + more,
        local_sent=phases.local_sent - hidden,
    )


@algorithm(
    "allreduce",
    "host_pipeline",
    traffic=lambda g: Fraction(2 * (g.size - 1)),
    cost=_pipelined_cost,
    segmented=True,
    chunk_bytes=_PIPELINED_BYTES,
    multihost=True,
    symmetry=by_host_and_lane,
)
def allreduce_pipelined(g: Geometry) -> Iterator[Step]:
    """The steps of hierarchical in another order. The leaders of a host reduce-scatter a piece just before the ring
    across hosts sends or combines it, and allgather it as soon as it is complete. Meanwhile other pieces are on the way
    between hosts.

    Traffic 2 (p - 1) N, 2 (h - 1) N of it between hosts. Of the pieces inside a host, the bytes count the first and the
    last: the others go beside those between hosts.
    """
    yield from _allreduce(g, pipelined=True)


def _rooted_teams(g: Geometry) -> tuple[list[int], list[int], int]:
    """Return the ranks of the own host, the leaders of all hosts, and the root's index among them. The root leads its
    host."""
    hosts = by_host(g.hosts, g.size)
    leaders = [g.root if g.root in members else members[0] for members in hosts]
    own = next(members for members in hosts if g.rank in members)
    return own, leaders, leaders.index(g.root)


def _largest_host(g: Geometry) -> int:
    return max(len(members) for members in by_host(g.hosts, g.size))


def _broadcast_cost(g: Geometry) -> Cost:
    local, far = rounds(_largest_host(g)), rounds(len(by_host(g.hosts, g.size)))
    return Cost(local + far, local + far, local_rounds=local, local_sent=local)


@algorithm(
    "broadcast",
    "hierarchical",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=_broadcast_cost,
    multihost=True,
)
def broadcast(g: Geometry) -> Iterator[Step]:
    """A binomial tree across the hosts' leaders, then one inside each host. Traffic (p - 1) N, (h - 1) N of it
    between hosts."""
    team, leaders, root = _rooted_teams(g)
    head = next(leader for leader in leaders if leader in team)
    source = inp(0) if g.rank == g.root else out(0)
    if g.rank == head:
        yield from broadcast_from(leaders, leaders.index(head), root, source, out(0), "broadcast across hosts")
    yield from broadcast_from(team, team.index(g.rank), team.index(head), source, out(0), "broadcast inside the host")
    if g.rank == g.root:
        yield copy(inp(0), out(0), "copy")


def _reduce_cost(g: Geometry) -> Cost:
    local, far = depth(_largest_host(g)), depth(len(by_host(g.hosts, g.size)))
    return Cost(local + far, local + far, local + far, local_rounds=local, local_sent=local)


@algorithm(
    "reduce",
    "hierarchical",
    blocks=lambda size: 1,
    traffic=lambda g: Fraction(g.size - 1),
    cost=_reduce_cost,
    multihost=True,
)
def reduce_hierarchical(g: Geometry) -> Iterator[Step]:
    """The mirror image of the hierarchical broadcast, with the same traffic."""
    team, leaders, root = _rooted_teams(g)
    head = next(leader for leader in leaders if leader in team)
    work = out(0) if g.rank == g.root else scratch(0, 0)
    yield from reduce_to(team, team.index(g.rank), team.index(head), inp(0), work, 1, "reduce inside the host")
    if g.rank == head:
        own = work if len(team) > 1 else inp(0)
        yield from reduce_to(leaders, leaders.index(head), root, own, work, 1, "reduce across hosts")
    if g.size == 1:
        yield copy(inp(0), out(0), "copy")


def _outside_lanes(g: Geometry) -> int:
    world = lanes(g.hosts, g.size)
    return g.size - world.hosts * world.lanes


def _allgather_cost(g: Geometry) -> Cost:
    world = lanes(g.hosts, g.size)
    team = max(len(team) for host in world.teams for team in host)
    pieces = max(len(runs(members[0] for members in lane)) for lane in zip(*world.teams, strict=True))
    local_rounds = (team - 1) + (world.lanes - 1) * pieces + rounds(team)
    local_sent = (team - 1) / g.size + (world.lanes - 1) / world.lanes + rounds(team)
    far = world.hosts - 1
    return Cost(
        local_rounds + far,
        local_sent + far / world.hosts / world.lanes,
        copied=1 / g.size,
        local_rounds=local_rounds,
        local_sent=local_sent,
    )


@algorithm(
    "allgather",
    "hierarchical",
    traffic=lambda g: g.size - 1 + Fraction(_outside_lanes(g), g.size),
    cost=_allgather_cost,
    multihost=True,
)
def allgather(g: Geometry) -> Iterator[Step]:
    """Gather in teams; a ring across hosts in every lane; a ring among the leaders of a host; broadcast in teams.

    Traffic (p - 1) N, (h - 1) N of it between hosts, and 1 / p N more for every rank that does not lead a team.
    """
    world = lanes(g.hosts, g.size)
    host, lane = world.find(g.rank)
    team = world.teams[host][lane]
    leaders = [members[0] for members in world.teams[host]]
    across = [members[lane][0] for members in world.teams]
    yield copy(inp(g.rank), out(g.rank), "copy own block")
    if g.rank != team[0]:
        yield send(team[0], inp(g.rank), "gather in team")
    else:
        for member in team[1:]:
            yield recv(member, out(member), "gather in team")
        parts = [runs(members[lane]) for members in world.teams]
        last = len(across) - 1
        yield from circulate(across, host, parts, own=out, place=out, copying=last, label="across hosts")
        parts = [runs(rank for members in world.teams for rank in members[other]) for other in range(world.lanes)]
        last = len(leaders) - 1
        yield from circulate(leaders, lane, parts, own=out, place=out, copying=last, label="inside the host")
    yield from broadcast_from(team, team.index(g.rank), 0, out(0, g.size), out(0, g.size), "broadcast in team")


def _reduce_scatter_cost(g: Geometry) -> Cost:
    world = lanes(g.hosts, g.size)
    local, far, team = world.lanes, world.hosts, max(len(team) for host in world.teams for team in host)
    pieces = max(len(runs(rank for team in lane for rank in team)) for lane in zip(*world.teams, strict=True))
    across = (far - 1) * team * g.segments
    local_rounds = depth(team) + (local - 1) * pieces + team - 1
    local_sent = depth(team) + (local - 1) / local + (team - 1) / g.size
    outside = (far - 1) / far / local
    return Cost(
        local_rounds + across,
        local_sent + outside,
        (local - 1) / local + depth(team) + outside / g.segments,
        local_rounds=local_rounds,
        local_sent=local_sent,
        flight=g.segments,
    )


@algorithm(
    "reduce_scatter",
    "hierarchical",
    traffic=lambda g: g.size - 1 + Fraction(_outside_lanes(g), g.size),
    cost=_reduce_scatter_cost,
    segmented=True,
    multihost=True,
)
def reduce_scatter(g: Geometry) -> Iterator[Step]:
    """Inside a host a ring leaves every rank with its lane's part of the data. Each lane is a ring across hosts. Teams
    of several ranks combine first, and get their blocks last.

    The mirror image of the hierarchical allgather (Träff and Hunold 2020), with the same traffic. Time with h hosts of
    l ranks: 2 (l - 1) local messages with (l - 1) / l N, then h - 1 with N / h of a host's ranks together.
    """
    world = lanes(g.hosts, g.size)
    host, lane = world.find(g.rank)
    team = world.teams[host][lane]
    leaders = [members[0] for members in world.teams[host]]
    across = [members[lane][0] for members in world.teams]
    whole, each = g.size * g.segments, g.segments

    def work(chunk: int, width: int) -> Ref:
        return scratch(0, chunk, width, base=0)

    def result(chunk: int, width: int) -> Ref:
        return out(chunk, width) if chunk // each == g.rank else work(chunk, width)

    own: _Hold = inp
    if len(team) > 1:
        yield from reduce_to(team, team.index(g.rank), 0, inp(0, whole), work(0, whole), whole, "reduce in team")
        own = work
    if g.rank != team[0]:
        yield recv(team[0], out(g.rank * each, each), "scatter in team")
        return
    last = len(leaders) - 1
    members = [[rank for hosts in world.teams for rank in hosts[other]] for other in range(world.lanes)]
    parts = [[(first * each, width * each) for first, width in runs(ranks)] for ranks in members]
    yield from circulate(
        leaders, lane, parts, own=own, place=work, first=-1, reducing=last, slot=whole, label="inside the host"
    )
    if last:
        own = work
    last = len(across) - 1
    parts = [[(rank * each + s, 1) for rank in hosts[lane] for s in range(each)] for hosts in world.teams]
    yield from circulate(
        across, host, parts, own=own, place=result, first=-1, reducing=last, slot=whole, label="across hosts"
    )
    if not last:
        yield copy(own(g.rank * each, each), out(g.rank * each, each), "copy own block")
    hold = result if last else own
    for member in team[1:]:
        yield send(member, hold(member * each, each), "scatter in team")


def _barrier_cost(g: Geometry) -> Cost:
    local, far = 2 * rounds(_largest_host(g)), rounds(len(by_host(g.hosts, g.size)))
    return Cost(local + far, 0, local_rounds=local)


@algorithm(
    "barrier",
    "hierarchical",
    blocks=lambda size: 1,
    cost=_barrier_cost,
    multihost=True,
)
def barrier(g: Geometry) -> Iterator[Step]:
    """Empty messages go up a binomial tree to the first rank of each host. These ranks disseminate (Hensgen et al.
    1988). Then the trees are passed downwards.

    No bytes. Time with h hosts of l ranks: 2 ceil(log2 l) local rounds, and ceil(log2 h) between hosts, where
    dissemination has ceil(log2 p) (Thakur and Gropp 2003).
    """
    hosts = by_host(g.hosts, g.size)
    team = next(members for members in hosts if g.rank in members)
    me = team.index(g.rank)
    children = binomial_children(me, len(team))
    for child in reversed(children):
        yield recv(team[child], None, "arrive inside the host")
    yield settle("arrive inside the host")
    if me:
        parent = team[binomial_parent(me)]
        yield send(parent, None, "arrive inside the host")
        yield recv(parent, None, "leave inside the host")
        yield settle("leave inside the host")
    else:
        leaders = [members[0] for members in hosts]
        for k, (ahead, behind) in enumerate(dissemination(hosts.index(team), len(hosts))):
            label = f"across hosts {k + 1}/{rounds(len(hosts))}"
            yield recv(leaders[behind], None, label)
            yield send(leaders[ahead], None, label)
            yield settle(label)
    for child in children:
        yield send(team[child], None, "leave inside the host")
