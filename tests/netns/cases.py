"""Faults of networks, case by case, and the outcomes that the ranks must reach.

A case does its thing once on a site, over a transport. It checks what came of it (AssertionError), and tells how long
it took the ranks to notice, and to go on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.netns import jobs
from tests.netns.jobs import Story
from tests.netns.network import Direction
from tests.netns.site import Site, check_sound, detection

NEAR, FAR = "alpha", "beta"
"""The host of the store, and the host that things happen to."""
PAIR = (NEAR, NEAR, FAR, FAR)
TRIO = (NEAR, FAR, "gamma")
"""Two hosts with two ranks each; three with one."""
LIMIT = 1.0
"""The setting peer_timeout, but where a case says otherwise: the least there is."""
HEARTBEAT = 2.0
"""The setting heartbeat, where it matters."""
DEFAULT_LIMIT = 5.0
SLACK = 6.0
"""Seconds beyond the limit that a rank may take to raise. In them are the first retransmission, some moments for a
better explanation, a store that does not answer - and the haste of the machine."""
_SMALL, _LARGE = 1000, 1 << 18
_ENDLESS = 1 << 40


@dataclass(frozen=True)
class Seen:
    """The observations of a case.

    detected   seconds from the fault to the error of each rank that survives; empty where nothing may fail
    recovered  seconds that `shrink` took, for each rank that goes on
    """

    detected: list[float] = field(default_factory=list)
    recovered: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One thing that can happen.

    title       what it is, for the table
    run         does it once on a site of `hosts`, over a transport
    quick       the transports that the tests try; the rest is for `python -m tests.netns`
    """

    name: str
    title: str
    run: Callable[[Site, str], Seen]
    hosts: tuple[str, ...] = PAIR
    quick: tuple[str, ...] = ("auto",)


def settings(transport: str, limit: float = LIMIT, heartbeat: float = 0.0) -> dict[str, Any]:
    """Settings under which a host that does not acknowledge is lost after `limit` seconds, one that gives no sign of
    life after `heartbeat`. Never after 0: no case is to pass by what another one is about."""
    return {"transport": transport, "heartbeat": heartbeat, "tcp": {"peer_timeout": limit}}


def judge(site: Site, stories: Iterable[Story], fault_at: float, limit: float = LIMIT, closing: float = 1.0) -> Seen:
    """Every rank lost one on the other side of the fault, in time, and closed within `closing` more."""
    told = list(stories)
    far = [story for story in told if story.rank in site.ranks_on(FAR)]
    near = [story for story in told if story not in far]
    return Seen([detection(story, near if story in far else far, fault_at, limit + SLACK, closing) for story in told])


def judge_leaky(stories: Sequence[Story], fault_at: float) -> Seen:
    """The same where the two sides can still tell each other something: the first cause that a rank finds reaches all,
    so that one may hear that it is itself the lost one."""
    return Seen([detection(story, stories, fault_at, LIMIT + SLACK) for story in stories])


# Nothing may fail


def healthy(site: Site, transport: str) -> Seen:
    """Every collective is right. An allreduce of 1 MiB goes over the network once each way, not once per rank: the
    algorithm knows the hosts. With `auto`, ranks reach those of their host, and only those, through shared memory."""
    with site.running(jobs.mixture, 80, 1, config={"transport": transport}) as run:
        check_sound(run.results())
    with site.running(jobs.traffic, _LARGE, config={"transport": transport}) as run:
        run.await_mark("before")
        before = {name: site.network.bytes_from(name) for name in site.network.hosts}
        run.tell("go")
        run.await_mark("after")
        sent = {name: site.network.bytes_from(name) - count for name, count in before.items()}
        run.tell("go")
        stories = run.results()
    check_sound(stories)
    for name, count in sent.items():
        assert count < 1.1 * 4 * _LARGE, f"{name} sent {count} bytes for an allreduce of {4 * _LARGE}"
    for story in stories:
        assert story.notes["algorithm"] == "host_pipeline", f"{story} chose {story.notes['algorithm']}"
        here = sorted(site.ranks_on(story.hostname)) if transport == "auto" else None
        mapped = story.notes.get("mapped")
        assert mapped == here, f"{story} reaches the memory of ranks {mapped}, not {here}"
    return Seen()


def loss(site: Site, transport: str) -> Seen:
    """2 % of all packets are lost, each way. Everything is right, and nobody is taken for lost."""
    site.network.drop_some(FAR, 0.02)
    with site.running(jobs.mixture, 90, 2, config={"transport": transport}) as run:
        check_sound(run.results())
    return Seen()


def slow(site: Site, transport: str) -> Seen:
    """A host has a line of 10 Mbit/s with up to 0.4 s of queue, and one rank comes late to a call by twice the time
    after which a silent host is lost. But it is not silent."""
    site.network.slow(FAR, "10mbit", "400ms")
    with site.running(jobs.stream, 1 << 16, 7, (3, 2 * LIMIT), config=settings(transport)) as run:
        stories = run.results()
    check_sound(stories)
    assert max(story.longest for story in stories) > 1.5 * LIMIT, "no call took long: nothing was tried"
    return Seen()


def blip(site: Site, transport: str) -> Seen:
    """The network is gone for two thirds of the time that it may. In that time TCP has doubled its pauses so often that
    what got lost would be repeated too late, were it left alone."""
    limit = 2.5
    with site.running(jobs.stream, _SMALL, 400, config=settings(transport, limit)) as run:
        run.await_mark("streaming")
        site.network.drop(FAR)
        time.sleep(1.7)
        site.network.heal()
        stories = run.results()
    check_sound(stories)
    assert max(story.longest for story in stories) > 1.2, "no call was held up: nothing was tried"
    return Seen()


# A host falls silent


def breaking(site: Site, transport: str, fault: Callable[[Site], None], count: int = _SMALL) -> Seen:
    """A fault in the middle of a stream of allreduces of `count` numbers, after which nothing passes."""
    with site.running(jobs.stream, count, _ENDLESS, config=settings(transport)) as run:
        run.await_mark("streaming")
        fault_at = time.monotonic()
        fault(site)
        return judge(site, run.results(), fault_at)


def cut_off(site: Site) -> None:
    """Lose all frames to the far host and from it."""
    site.network.drop(FAR)


def interface_down(site: Site) -> None:
    """Switch the interface off on the far host itself."""
    site.network.take_down(FAR)


def leaking(site: Site, transport: str, fault: Callable[[Site], None]) -> Seen:
    """A fault in the middle of a stream of allreduces that lets some frames pass."""
    with site.running(jobs.stream, _SMALL, _ENDLESS, config=settings(transport)) as run:
        run.await_mark("streaming")
        fault_at = time.monotonic()
        fault(site)
        return judge_leaky(run.results(), fault_at)


def cut_one_way(site: Site, direction: Direction) -> None:
    """Lose all frames to the far host, or all from it."""
    site.network.drop(FAR, direction)


def cut_large(site: Site) -> None:
    """Lose large frames, as where the MTU is smaller on the way."""
    site.network.drop_large(FAR, 1000)


def cut_listeners(site: Site, transport: str) -> Seen:
    """The host that is cut off only receives: it has sent nothing that is not acknowledged."""
    with site.running(jobs.broadcasts, _SMALL, 0, config=settings(transport)) as run:
        run.await_mark("streaming")
        fault_at = time.monotonic()
        cut_off(site)
        return judge(site, run.results(), fault_at)


def cut_asleep(site: Site, transport: str, seconds: float) -> Seen:
    """The host is cut off while no rank is in a call; `seconds` later they call."""
    with site.running(jobs.pause, _SMALL, config=settings(transport)) as run:
        run.await_mark("asleep")
        cut_off(site)
        time.sleep(seconds)
        fault_at = time.monotonic()
        run.tell("go")
        return judge(site, run.results(), fault_at)


def cut_unmet(site: Site, transport: str) -> Seen:
    """The host is cut off when its ranks have joined the world, and nobody has yet sent anything to anybody. Then rank
    0 broadcasts, to a rank beside it too, which may be served before the others are missed. A measurement of the links
    would have connected the hosts."""
    config = settings(transport) | {"calibrate": False}
    with site.running(jobs.begin_late, _SMALL, 0, config=config) as run:
        run.await_mark("asleep")
        fault_at = time.monotonic()
        cut_off(site)
        run.tell("go")
        stories = run.results()
    concerned = [story for story in stories if story.failure is not None or story.rank in {0, *site.ranks_on(FAR)}]
    return judge(site, concerned, fault_at)


def cut_default(site: Site, transport: str) -> Seen:
    """The host is cut off, and the settings are what they are by default."""
    with site.running(jobs.stream, _SMALL, _ENDLESS, config={"transport": transport}) as run:
        run.await_mark("streaming")
        fault_at = time.monotonic()
        cut_off(site)
        return judge(site, run.results(), fault_at, DEFAULT_LIMIT)


def cut_store(site: Site, transport: str) -> Seen:
    """One host of three is cut off, and the store was there. The others all name it, also those that waited for each
    other."""
    with site.running(jobs.stream, _SMALL, _ENDLESS, config=settings(transport), store_on=FAR) as run:
        run.await_mark("streaming")
        fault_at = time.monotonic()
        cut_off(site)
        return judge(site, run.results(), fault_at)


def shrink(site: Site, transport: str) -> Seen:
    """A host is cut off; the ranks on the side of the store shrink their world to themselves and compute on. Those of
    the other side cannot, and are told why. Nobody waits longer than `heartbeat` for a silent host."""
    with site.running(jobs.survive, _SMALL, config=settings(transport, heartbeat=HEARTBEAT)) as run:
        run.await_mark("streaming")
        fault_at = time.monotonic()
        cut_off(site)
        stories = run.results()
    far = site.ranks_on(FAR)
    left = [story for story in stories if story.rank not in far]
    for place, story in enumerate(left):
        assert story.ended is None, f"{story} could not go on: {story.ended}"
        assert story.notes["now"] == (place, len(left)), f"{story} is now rank, size {story.notes['now']}"
    for story in stories:
        if story.rank in far:
            ended = story.ended
            assert ended is not None, f"{story} went on"
            assert ended.kind == "RendezvousError", f"{story}: {ended}"
            assert "survivors" in ended.message, f"{story}: {ended}"
    recovered = [story.recovered for story in left if story.recovered is not None]
    return Seen(judge(site, stories, fault_at, closing=HEARTBEAT + SLACK).detected, recovered)


def stopped(site: Site, transport: str) -> Seen:
    """A process is stopped, and its host goes on acknowledging for it."""
    victim = max(site.ranks_on(FAR))
    others = [rank for rank in range(site.size) if rank != victim]
    with site.running(jobs.stream, _SMALL, _ENDLESS, config=settings(transport, heartbeat=HEARTBEAT)) as run:
        run.await_mark("streaming")
        fault_at = time.monotonic()
        site.crew.signal(victim, signal.SIGSTOP)
        try:
            survivors = run.results(ranks=others)
        finally:
            site.crew.signal(victim, signal.SIGCONT)
        (late,) = run.results(ranks=[victim])
    assert late.failure is not None, f"{late} was lost and does not know"
    return Seen([detection(story, [late], fault_at, HEARTBEAT + SLACK) for story in survivors])


CASES = (
    Case("healthy", "nothing happens", healthy, quick=("tcp", "auto")),
    Case("loss", "2 % of packets lost", loss),
    Case("slow", "slow line, late rank", slow),
    Case("blip", "cut off for 1.7 s", blip),
    Case("cut", "cut off", partial(breaking, fault=cut_off)),
    Case(
        "cut_to", "frames to a host lost", partial(leaking, fault=partial(cut_one_way, direction="to")), quick=("tcp",)
    ),
    Case(
        "cut_from", "frames from a host lost", partial(leaking, fault=partial(cut_one_way, direction="from")), quick=()
    ),
    Case("cut_in_bulk", "cut off, 4 MiB", partial(breaking, fault=cut_off, count=1 << 20), quick=()),
    Case("cut_large", "large frames lost", partial(leaking, fault=cut_large), quick=()),
    Case("cut_listeners", "cut off, only receiving", cut_listeners, quick=("tcp",)),
    Case("cut_asleep", "cut off between calls", partial(cut_asleep, seconds=1.5)),
    Case("cut_at_once", "cut off just before a call", partial(cut_asleep, seconds=0.0), quick=()),
    Case("cut_unmet", "cut off before the first call", cut_unmet),
    Case("interface_down", "interface switched off", partial(breaking, fault=interface_down)),
    Case("cut_default", "cut off, default settings", cut_default),
    Case("cut_store", "cut off with the store, 3 hosts", cut_store, TRIO),
    Case("shrink", "cut off, then shrink", shrink),
    Case("shrink_trio", "cut off, then shrink, 3 hosts", shrink, TRIO, quick=()),
    Case("stopped", "a rank stopped", stopped),
    Case("stopped_alone", "the rank of a host stopped", stopped, TRIO),
)
