"""The state machine of an elastic job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from collectives.scaling.actions import Action, Begin, Close, Finish, Leave, Open, Send, Start
from collectives.scaling.slots import Host, Slot
from collectives.scaling.terms import SETTLE_SECONDS, Terms

_NEVER: Final = float("inf")
NOT_NAMED: Final = "its host is not offered any more"


@dataclass
class _Process:
    """A process that runs, or that has ended with 0 and may have left. `asked`: it is to leave; `signalled`: it got
    SIGTERM; `term_at`, `kill_at`: when it is signalled if it still runs."""

    host: str
    slot: int
    asked: bool = False
    signalled: bool = False
    term_at: float = _NEVER
    kill_at: float = _NEVER


class Plan:
    """Decides what an elastic job does. The launcher reports events by the other methods, calls `decide` after them and
    whenever `wake_at` has come, and carries the actions out in order. Times are seconds of one clock.

        found, drain         hosts that may be used, and one that may not
        ready, lost          the answers to Open; a host that was ready can be lost later
        ended                a process has ended
        met                  the first world is there
        changed              the ranks have agreed on a new world

    A process that fails is replaced by one with a new number on any free slot; its own slot rests first. So is a rank
    that leaves on its own. Any other process that was not to leave and exits with 0 has reached the end of the program,
    at whatever moment: nothing is started any more, and processes that wait to become ranks are ended. The job ends
    well when the other ranks have ended then. It fails when no rank is left, when there are too few slots for too long,
    and when the ranks have changed too often.
    """

    def __init__(self, terms: Terms, now: float) -> None:
        self._terms = terms
        self._hosts: dict[str, Host] = {}
        self._processes: dict[int, _Process] = {}
        self._members: set[int] = set()  # ranks of the world that have not ended
        self._left: set[int] = set()  # processes that the ranks have left behind, or that have left
        self._lost: set[int] = set()  # those of them that did not leave
        self._settling: dict[
            int, tuple[float, Slot]
        ] = {}  # processes that ended with 0: when that is the program's end
        self._first_failed: int | None = None
        self._next = 0
        self._changes = 0
        self._begun = False
        self._finished_by: int | None = None
        self._over = False
        self._verdict: Finish | None = None
        self._short_since: float | None = now
        self._alone_since: float | None = None

    # Events

    def found(self, hosts: Mapping[str, int]) -> None:
        """Discovery names these hosts and their numbers of slots, and no others."""
        for name in hosts:
            self._hosts.setdefault(name, Host(name))
        for name, host in self._hosts.items():
            host.offer(hosts.get(name, 0))

    def drain(self, name: str, reason: str) -> tuple[int, ...]:
        """Use a host no more, until discovery has ceased to name it; its processes, which are asked to leave. Raises
        KeyError for a host that is not known."""
        host = self._hosts[name]
        host.drained = host.drained or reason
        return tuple(number for number, process in self._processes.items() if process.host == name)

    def ready(self, name: str) -> None:
        """A host was reached."""
        if self._hosts[name].state == "opening":
            self._hosts[name].state = "ready"

    def lost(self, name: str, now: float) -> None:
        """A host could not be reached, or cannot be reached any more: its processes are lost with it."""
        host = self._hosts[name]
        for number in [number for number, process in self._processes.items() if process.host == name]:
            process = self._processes.pop(number)
            self._members.discard(number)
            if not process.asked and self._first_failed is None:
                self._first_failed = number
        if host.state != "closed":
            host.fail(now, self._terms.cooldown)

    def ended(self, number: int, status: int, now: float) -> None:
        """A process has ended with this status, 0 for success."""
        process = self._processes.pop(number, None)
        if process is None:
            return
        slot = self._hosts[process.host].slots[process.slot]
        if self._finishing or process.asked:
            self._members.discard(number)
        elif status == 0 and number not in self._left:
            self._settling[number] = now + SETTLE_SECONDS, slot
        elif status == 0 and number in self._lost and not process.signalled:
            self._finish(number, now)
        else:
            slot.fail(now, self._terms.cooldown)
            if status and number not in self._left and self._first_failed is None:
                self._first_failed = number
            self._members.discard(number)
        slot.number = None

    def met(self, members: Iterable[int], now: float) -> None:
        """The first world is there, of these processes."""
        for number in members:
            if number in self._processes:
                process = self._processes[number]
                self._hosts[process.host].slots[process.slot].joined(now)

    def changed(
        self, members: Collection[int], left: Iterable[int], now: float, lost: Collection[int] = frozenset()
    ) -> None:
        """The ranks have agreed on a world of these processes. `left` were ranks before, and are not any more; those of
        them in `lost` did not leave: the others have lost them."""
        self._changes += 1
        self._lost.update(lost)
        for number in left:
            self._left.add(number)
            if number in self._settling:
                _, slot = self._settling.pop(number)
                if number in lost:
                    self._finish(number, now)
                else:
                    slot.fail(now, self._terms.cooldown)
            elif number in self._processes:
                process = self._processes[number]
                if not process.asked:  # it was lost, and may never notice; or it leaves on its own
                    process.term_at = min(process.term_at, now + self._terms.grace)
        self._members = {number for number in members if number in self._processes or number in self._settling}
        self.met(members, now)
        limit = self._terms.changes
        if limit is not None and self._changes > limit:
            self._verdict = Finish(False, f"the ranks have changed {self._changes} times; --reset-limit is {limit}")

    # Decisions

    def decide(self, now: float) -> list[Action]:
        """The actions that are due now."""
        if self._over:
            return []
        self._settle(now)
        actions = self._end_hosts(now) if not self._finishing else []
        if self._verdict is None and not self._finishing:
            actions += self._open_hosts(now)
            actions += self._fill(now) if self._begun else self._begin(now)
            self._check_minimum(now)
        actions += self._signals(now)
        if self._verdict is None:
            self._check_members(now)
        if self._verdict is not None:
            self._over = True
            actions.append(self._verdict)
        return actions

    @property
    def wake_at(self) -> float:
        """When to call `decide` if nothing happens before; infinite if never."""
        if self._over:
            return _NEVER
        times = [until for until, _ in self._settling.values()]
        times += [process.term_at for process in self._processes.values()]
        times += [process.kill_at for process in self._processes.values()]
        if self._alone_since is not None:
            times.append(self._alone_since + SETTLE_SECONDS)
        if not self._finishing:
            if self._short_since is not None:
                times.append(self._short_since + self._terms.patience)
            for host in self._hosts.values():
                if host.usable and host.state == "closed":
                    times.append(host.retry_at)
                elif host.state == "ready" and self._begun and self._wanted() > 0:
                    free = [slot for slot in host.slots[: host.usable] if slot.number is None]
                    times += [slot.rests_to for slot in free]
        return min(times, default=_NEVER)

    @property
    def ready_slots(self) -> int:
        """The number of slots on hosts that were reached."""
        return sum(host.usable for host in self._hosts.values() if host.state == "ready")

    @property
    def finished_by(self) -> int | None:
        """The first process that has reached the end of the program: from then on the others are to wait for no
        newcomer. None before that."""
        return self._finished_by

    def slots(self, name: str) -> int:
        """The number of slots of a host that may have processes."""
        return self._hosts[name].usable

    def is_open(self, name: str) -> bool:
        """True for a host that was opened, and neither closed nor lost since."""
        return name in self._hosts and self._hosts[name].state != "closed"

    def is_used(self, name: str) -> bool:
        """True while a host has processes of the job."""
        return any(process.host == name for process in self._processes.values())

    def _settle(self, now: float) -> None:
        """Processes that ended with 0 have reached the end of the program, unless a change tells that they left."""
        for number in [number for number, (until, _) in self._settling.items() if now >= until]:
            del self._settling[number]
            self._finish(number, now)

    @property
    def _finishing(self) -> bool:
        return self._finished_by is not None

    def _finish(self, number: int, now: float) -> None:
        """A process has reached the end of the program."""
        self._members.discard(number)
        if self._finished_by is None:
            self._finished_by = number
        for other, process in self._processes.items():
            if other not in self._members and other not in self._left:
                process.term_at = min(process.term_at, now)

    def _end_hosts(self, now: float) -> list[Action]:
        """Ask processes to leave whose slots may not be used any more, and close hosts that are not used."""
        actions: list[Action] = []
        for host in self._hosts.values():
            leaving = []
            for number, process in self._processes.items():
                if process.host == host.name and process.slot >= host.usable and not process.asked:
                    process.asked = True
                    waits = number not in self._members  # it has nothing to finish
                    process.term_at = now if waits else now + self._terms.leave_timeout
                    leaving.append(number)
            if leaving:
                actions.append(Leave(tuple(leaving), host.drained or NOT_NAMED))
            if not host.usable and host.state != "closed" and not self.is_used(host.name):
                host.state, host.retry_at = "closed", now
                actions.append(Close(host.name))
        return actions

    def _open_hosts(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for host in self._hosts.values():
            if host.usable and host.state == "closed" and host.retry_at <= now:
                host.state = "opening"
                actions.append(Open(host.name))
        return actions

    def _begin(self, now: float) -> list[Action]:
        """The first world, once there are enough slots and no host is about to give more."""
        terms = self._terms
        places = [(host.name, slot) for host in self._hosts.values() for slot in host.free(now)]
        wanted = terms.first or terms.maximum or len(places)
        opening = any(host.state == "opening" for host in self._hosts.values())
        if len(places) < terms.minimum or (opening and (len(places) < wanted or not (terms.first or terms.maximum))):
            return []
        places = places[:wanted]
        for name, slot in places:
            self._members.add(self._add(name, slot))
        self._begun = True
        return [Begin(tuple(places)), *self._fill(now)]

    def _fill(self, now: float) -> list[Action]:
        """Newcomers, as many as slots and terms allow."""
        actions: list[Action] = []
        wanted = self._wanted()
        for host in self._hosts.values():
            for slot in host.free(now):
                if wanted > 0:
                    wanted -= 1
                    actions.append(Start(self._add(host.name, slot), host.name, slot))
        return actions

    def _add(self, host: str, slot: int) -> int:
        number = self._next
        self._next += 1
        self._processes[number] = _Process(host, slot)
        self._hosts[host].slots[slot].take(number)
        return number

    def _staying(self) -> int:
        """The number of processes that are ranks or may become ranks."""
        return sum(not process.asked and number not in self._left for number, process in self._processes.items())

    def _wanted(self) -> float:
        """The number of processes to start if there are slots. None while the job may be about to end."""
        if self._settling:
            return 0
        maximum = _NEVER if self._terms.maximum is None else self._terms.maximum
        return maximum + self._terms.spares - self._staying()

    def _check_minimum(self, now: float) -> None:
        count = self._staying() + len(self._settling)
        if count >= self._terms.minimum:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        elif now - self._short_since >= self._terms.patience:
            found = count if self._begun else self.ready_slots
            self._verdict = Finish(
                False,
                f"only {found} of at least {self._terms.minimum} ranks could be run for {self._terms.patience:g} s "
                "(--elastic-timeout)",
                self._first_failed if self._begun else None,
            )

    def _check_members(self, now: float) -> None:
        """The job is over when no rank is left: newcomers alone have no state."""
        if not self._begun or self._members or self._settling:
            self._alone_since = None
            return
        if self._alone_since is None:  # a change that is not known yet may have admitted some that run
            self._alone_since = now
        if self._finishing or not self._processes or now - self._alone_since >= SETTLE_SECONDS:
            failed = not self._finishing and self._first_failed is not None
            reason = "" if self._finishing or failed else "all ranks have left"
            self._verdict = Finish(self._finishing, reason, self._first_failed if failed else None)

    def _signals(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for number, process in self._processes.items():
            if process.term_at <= now:
                process.term_at, process.kill_at = _NEVER, now + self._terms.grace
                process.signalled = True
                actions.append(Send(number, kill=False))
            elif process.kill_at <= now:
                process.kill_at = _NEVER
                actions.append(Send(number, kill=True))
        return actions
