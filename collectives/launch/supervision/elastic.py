"""The part of an elastic job beside its hosts: discovery names hosts, the ranks agree on changes in the store, and
commands ask for something. Two threads wait for the first two, and post what they find."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import queue
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from collectives.launch.hosts import Host
from collectives.launch.job import AllocationEnded, DiscoveryError, Elastic, NamedHost, Place, discovery_mark
from collectives.launch.processes import marked, signal_process
from collectives.launch.store_keeper import StoreKeeper, serving_address
from collectives.launch.supervision.control import ControlSocket
from collectives.membership import Change, History, ask_to_leave, set_bounds
from collectives.scaling import Plan
from transports.errors import ConfigError, RondeError
from transports.interfaces import canonical, interfaces, is_this_host
from transports.rendezvous import first_meeting, give_up
from transports.store import Store

FIND_SECONDS: Final = 1.0
"""Time between two looks for hosts, as in horovodrun."""

_HISTORY_SECONDS: Final = 0.2
"""Time for a thread to notice that it is to end."""


class Mailbox:
    """Calls functions in the thread of a selector. Any thread may `post` them.

    closing  set when the threads that were started here are to end
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.closing = threading.Event()
        self._selector = selector
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        self._threads: list[threading.Thread] = []
        os.set_blocking(self._read, False)
        selector.register(self._read, selectors.EVENT_READ, self._deliver)

    def start(self, name: str, call: Callable[[], None]) -> None:
        """Call it in a thread of its own."""
        thread = threading.Thread(target=call, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Call it in the selector's thread."""
        self._calls.put(call)
        os.write(self._write, b"\0")

    def close(self) -> None:
        """End the threads. Idempotent."""
        if not self.closing.is_set():
            self.closing.set()
            for pid in marked({discovery_mark()}):
                signal_process(pid, signal.SIGKILL)
            for thread in self._threads:
                thread.join(2 * _HISTORY_SECONDS)
            self._selector.unregister(self._read)
            if not any(thread.is_alive() for thread in self._threads):
                os.close(self._read)
                os.close(self._write)

    def _deliver(self) -> None:
        os.read(self._read, 4096)
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()


class ElasticJob:
    """Tells the plan of an elastic job of hosts, changes and requests, and the ranks of its decisions. The launcher
    serves the store, since any host may go.

    name  the job's id
    say   writes lines of the launcher itself to stderr
    end   ends the job with an exit code, for a reason

    places      the hosts that are named or in use
    failed      processes that failed and were not replaced; the launcher adds them
    first_rank  the process that is rank 0
    """

    def __init__(
        self,
        job: Elastic,
        name: str,
        selector: selectors.BaseSelector,
        keeper: StoreKeeper,
        say: Callable[[str], None],
        end: Callable[[int, str], None],
    ) -> None:
        self.plan = Plan(job.terms, time.monotonic())
        self.places: dict[str, Place] = {}
        self.failed: list[int] = []
        self.first_rank = 0
        self._job = job
        self._name = name
        self._selector = selector
        self._keeper = keeper
        self._say = say
        self._end = end
        self._resources = contextlib.ExitStack()
        self._mailbox = self._resources.enter_context(contextlib.closing(Mailbox(selector)))
        self._named: dict[str, int] | None = None  # slots of the hosts, as the last look named them
        self._trouble = ""  # of the last look for hosts
        self._looks_since: float | None = None  # the beginning of the present look
        self._store: Store | None = None
        self._concluded = False

    def open(self) -> None:
        """Begin to look for hosts and to answer commands."""
        try:
            control = ControlSocket(self._selector, self._name, self._answer)
            self._resources.enter_context(contextlib.closing(control))
        except ConfigError as error:
            self._say(f"ronde: `ronde drain` will not reach this job: {error}")
        self._mailbox.start("ronde-discovery", self._find_hosts)

    def close(self) -> None:
        """End the threads, and release everything. Idempotent."""
        self._resources.close()

    def serve(self, secret: bytes, interface: str) -> tuple[str, tuple[str, int]]:
        """Serve the store where other hosts reach it; as StoreKeeper.serve. Raises ConfigError, RendezvousError."""
        hints = [place.name for place in self.places.values() if not place.is_here]
        served = self._keeper.serve(secret, interface or self._address(hints), hints)
        self._store = self._resources.enter_context(contextlib.closing(self._keeper.client()))
        set_bounds(self._store, self._job.terms.minimum, self._job.terms.maximum)
        self._mailbox.start("ronde-history", partial(self._read_history, self._keeper.client()))
        return served

    def _address(self, hints: Sequence[str]) -> str:
        """The address to serve on: that of the way to a host elsewhere. A name that leads nowhere yet is no error, as
        its host may come later. '' if there are no such hosts."""
        if hints:
            with contextlib.suppress(ConfigError):
                return serving_address("", hints)
        return _outward_address() if hints or self._job.discovery.changes else ""

    def watch_preemption(self, name: str, host: Host) -> None:
        """Notice when a host, which was reached, is about to go."""
        host.watch_preemption(self._job.notice, self._job.terms.leave_timeout, partial(self._on_preempted, name))

    @property
    def trouble(self) -> str:
        """The reason why there are no more hosts, as far as it is known; '' if not."""
        since = self._looks_since
        if since is not None and time.monotonic() - since >= FIND_SECONDS:
            return f"{self._job.discovery} has not ended for {time.monotonic() - since:.0f} s"
        return self._trouble

    # What the plan has decided

    def ask_to_leave(self, numbers: Sequence[int], reason: str) -> None:
        """Ask processes to leave at their next boundary."""
        self._say(f"ronde: processes {', '.join(map(str, numbers))} are to leave: {reason}")
        with self._using_store() as store:
            ask_to_leave(store, numbers, reason)

    def conclude(self) -> None:
        """Once the program has ended on a rank, let the others wait for nobody."""
        number = self.plan.finished_by
        if number is not None and not self._concluded:
            self._concluded = True
            self._say(f"ronde: process {number} exited with 0: the program has ended, and no process is started now")
            with self._using_store() as store:
                set_bounds(store, 1, self._job.terms.maximum)

    def give_up(self, number: int, size: int) -> None:
        """A process has ended: the first world, of `size` ranks, begins without it, if it has not met."""
        if number < size:
            with self._using_store() as store:
                give_up(store, number, size)

    @contextlib.contextmanager
    def _using_store(self) -> Iterator[Store]:
        """The store, which is in this process: without it nothing goes on."""
        assert self._store is not None
        try:
            yield self._store
        except RondeError as error:
            self._on_lost_store(str(error))

    # In threads of their own

    def _find_hosts(self) -> None:
        """Look for hosts; once, if they never change."""
        closing, post = self._mailbox.closing, self._mailbox.post
        while not closing.is_set():
            self._looks_since = time.monotonic()
            try:
                post(partial(self._on_found, self._job.discovery.find()))
                if not self._job.discovery.changes:
                    return
            except DiscoveryError as error:
                post(partial(self._on_trouble, str(error)))
            except AllocationEnded as error:
                post(partial(self._end, 1, str(error)))
                return
            finally:
                self._looks_since = None
            closing.wait(FIND_SECONDS)

    def _read_history(self, store: Store) -> None:
        """Wait for the first world and then read the changes of the ranks."""
        closing, post = self._mailbox.closing, self._mailbox.post
        with contextlib.closing(store), contextlib.closing(History(store)) as history:
            try:
                first = None
                while first is None and not closing.is_set():
                    first = first_meeting(store, time.monotonic() + _HISTORY_SECONDS)
                post(partial(self._on_met, first or ()))
                while not closing.is_set():
                    change = history.wait(time.monotonic() + _HISTORY_SECONDS)
                    if change is not None:
                        post(partial(self._on_change, change))
            except RondeError as error:
                if not closing.is_set():
                    post(partial(self._on_lost_store, str(error)))

    # What happens

    def _on_met(self, ranks: Sequence[int]) -> None:
        self.plan.met(ranks, time.monotonic())

    def _on_found(self, hosts: Sequence[NamedHost]) -> None:
        names = {host.name: host.slots for host in hosts}
        self._trouble = "" if names else f"{self._job.discovery}: names no host with slots"
        for name in [name for name in self.places if name not in names and not self.plan.is_open(name)]:
            del self.places[name]
        for host in hosts:
            way = None if host.is_here else self._job.way.command(host.address)
            self.places[host.name] = Place(host.name, agent=way)
        if names != self._named:
            self._named = names
            listed = ", ".join(f"{name}:{slots}" for name, slots in names.items())
            if self._job.discovery.changes:
                self._say(f"ronde: hosts: {listed or '(none)'}")
            self.plan.found(names)

    def _on_trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._say(f"ronde: {text}")

    def _on_preempted(self, name: str, reason: str) -> None:
        self.plan.drain(name, reason)

    def _on_change(self, change: Change) -> None:
        if change.members:
            self.first_rank = change.members[0]
            text = f"ronde: {len(change.members)} ranks, processes {', '.join(map(str, change.members))}"
        else:  # the last ones have left
            text = "ronde: no ranks"
        if change.came:
            text += f"; came: {', '.join(map(str, change.came))}"
        for number, reason in change.left.items():
            text += f"; left: {number} ({reason})"
        self._say(text)
        self.failed[:] = [number for number in self.failed if number in change.members]
        self.plan.changed(change.members, change.left, time.monotonic(), change.lost)

    def _on_lost_store(self, text: str) -> None:
        self._end(1, f"the store of the job failed: {text}")

    def _host_of_name(self, text: str) -> str:
        """The name that a host of the job has here: a command on this machine may know it by another of its names."""
        name = canonical(text)
        if name not in self.places and is_this_host(name):
            return next((known for known, place in self.places.items() if place.is_here), name)
        return name

    def _answer(self, request: dict[str, Any]) -> dict[str, str]:
        """Answer a command, see `control`."""
        match request:
            case {"drain": str(name)}:
                try:
                    numbers = self.plan.drain(self._host_of_name(name), "ronde drain")
                except KeyError:
                    known = ", ".join(self.places) or "none"
                    raise ConfigError(f"host {name!r}: is not known; hosts: {known}") from None
                listed = f"processes {', '.join(map(str, numbers))} are to leave"
                return {"text": f"host {name}: {listed if numbers else 'no process runs there'}"}
            case _:
                raise ConfigError("the launcher does not know this request: another version of Ronde?")


def _outward_address() -> str:
    """An address of this machine that is not loopback; '' if it has none."""
    found = [ipaddress.ip_address(text) for texts in interfaces().values() for text in texts]
    return next((str(address) for address in found if not (address.is_loopback or address.is_link_local)), "")
