"""The engine of a communicator's named operations: its thread, its messages, and the running of what was agreed on.

`negotiate` tells what is to be run; this module carries its messages and obeys. The submitting thread announces by
itself; the engine's thread waits for what comes, and runs operations one at a time (batch.py). With nothing in flight
it sleeps on a condition variable, so that other calls of this rank have the transport to themselves; then rank 0's
looks up now and then to see if the others wait for it, for the stall report.

One lock guards everything. It is not held while the thread waits, runs an operation, or ends one (callbacks!).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from collectives.alarm import Alarm
from collectives.batch import Item, Operation, run_all
from collectives.config import Config
from collectives.jobs import Jobs
from collectives.mail import Mail
from collectives.member import Member
from collectives.negotiate import Coordinator
from collectives.neighbours import peek
from collectives.progress import Job, Work
from collectives.terms import JOIN, Announcement, Answer, Terms, bits
from collectives.trace import now as moment
from transports.base import Transport
from transports.errors import AbortedError, ClosedError, DeadlineExceeded, RendezvousError, RondeError, from_wire

_PATIENCE: Final = 5.0
"""Seconds that the coordinator gets to answer a rank that does not want to wait any longer."""
_NEVER: Final = float("inf")

log = logging.getLogger("ronde")


class _Order(NamedTuple):
    """An answer, and what it lets run."""

    run: list[tuple[str, Terms]]
    answer: Answer


class Engine:
    """Named operations of one communicator. Methods may be called from any thread."""

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        tag: int,
        jobs: Jobs,
        alarm: Alarm,
        config: Config,
    ) -> None:
        """No I/O, no thread: the first operation starts it.

        tag    it uses this one and the next
        jobs   nobody else runs any of them; they are yet to be staged
        """
        self._transport = transport
        self._ranks = ranks
        self._rank = ranks.index(transport.rank)
        self._jobs = jobs
        self._staged = False
        self._alarm = alarm
        self._timeout = config.timeout
        self._stall = config.stall or _NEVER
        self._key = f"engine/{tag:x}/{ranks[0]}"
        self._mail = Mail(transport, ranks, tag)
        self._member = Member(holds=self._rank > 0)
        self._coordinator = Coordinator(ranks, fusion=config.fusion_bytes) if self._rank == 0 else None
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._operations: dict[str, Operation] = {}
        self._orders: deque[_Order] = deque()
        self._asleep = False
        self._listening = False
        self._due = _NEVER  # when there may be something to mind
        self._heard = False
        self._closing = False
        self._abandoned = False
        self._ended = False
        self._refusal: RondeError | None = None

    # ---- for callers

    def submit(self, name: str, job: Job[Any]) -> Work[Any]:
        """Run a job once all ranks have submitted one by this name.

        Raises TypeError or ValueError for a bad name and for one that is in flight on this rank, ClosedError, or the
        transport's failure. Nothing was submitted then.
        """
        if not isinstance(name, str):
            raise TypeError(f"name={name!r}: must be a string")
        if not name:
            raise ValueError("name='': must not be empty")
        name.encode()  # raises ValueError for what cannot be sent
        return self._begin(Operation(name, job, job.timeout), lambda: self._member.submit(name, job.terms))

    def join(self, timeout: float) -> Work[int]:
        """This rank has no more data; see Communicator.join."""
        return self._begin(Operation(JOIN, None, timeout), self._member.join)

    def leave(self) -> None:
        """Submit nothing more. What is in flight goes on; what lacks this rank fails. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            if self._thread is None and self._is_used():
                self._start()  # so that the others need not wait for this rank
            if self._thread is None:
                return
            self._member.leave()
            with contextlib.suppress(RondeError):  # the thread finds out by itself
                self._announce()
            self._rouse()

    def close(self, deadline: float) -> None:
        """Leave, and wait until all that this rank has in flight is over.

        Raises DeadlineExceeded if that takes too long; what is in flight then fails with ClosedError.
        """
        self.leave()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(max(0.0, deadline - time.monotonic()))
        if not thread.is_alive():
            return
        with self._lock:
            self._abandoned = True
            late = [operation.describe() for operation in self._operations.values()]
            self._rouse()
        self._fail_all(self._closed_error())
        raise DeadlineExceeded(f"still in flight when the communicator was closed: {', '.join(late) or 'nothing'}")

    # ---- for submitting threads and the engine's; the lock is held

    def _begin(self, operation: Operation, enter: Callable[[], None]) -> Work[Any]:
        name = operation.name
        with self._lock:
            if self._closing:
                raise self._closed_error()
            failure = self._refusal or self._transport.failure
            if failure is not None:
                raise failure.within(f"submitting {operation.describe()}")
            if JOIN in self._operations:
                raise ValueError(f"name={name!r}: this rank has joined, and submits nothing until all have")
            if name in self._operations:
                raise ValueError(f"name={name!r}: an operation of this name is in flight on this rank")
            if self._thread is None:
                self._start()
            self._operations[name] = operation
            sooner = operation.expires < self._due
            self._due = min(self._due, operation.expires)
            enter()
            try:
                if not (self._asleep and self._coordinator is None and self._mail.here()):
                    self._announce()  # else what has come is to be learnt first: it may be the end
                self._rouse(sooner)
            except RondeError:
                self._operations.pop(name, None)
                raise
        return operation.work

    def _is_used(self) -> bool:
        """True if another rank has begun to name operations."""
        if len(self._ranks) > 1 and self._transport.failure is None:
            with contextlib.suppress(RendezvousError):  # without a store a rank that waits finds out by itself
                return peek(self._transport.group.store, self._key) is not None
        return False

    def _start(self) -> None:
        with contextlib.suppress(RendezvousError):
            self._transport.group.store.set(self._key, b"")
        self._due = time.monotonic() + self._stall
        self._mail.listen((0,) if self._coordinator is None else range(1, len(self._ranks)))
        if self._coordinator is not None:  # those who listen learn that there is somebody who answers
            for rank in range(1, len(self._ranks)):
                self._mail.send(rank, Answer().pack())
        name = f"ronde engine of rank {self._transport.rank}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _announce(self) -> None:
        if self._ended:
            return
        said = self._member.announce()
        if said is None:
            return
        if self._coordinator is None:
            self._mail.send(0, said.pack())
            return
        self._hear(0, said)
        if self._listening or (self._asleep and not self._closing):
            self._decide()  # else the thread does, once it has run what it is running, or has looked at what came

    def _hear(self, rank: int, said: Announcement) -> None:
        assert self._coordinator is not None
        now = time.monotonic()
        self._coordinator.hear(rank, said, now)
        self._due = min(self._due, now + self._stall)

    def _decide(self) -> None:
        if self._coordinator is None:
            return
        for ranks, answer in self._coordinator.decide():
            packed = answer.pack()
            for rank in bits(ranks & ~1):
                self._mail.send(rank, packed)
            if ranks & 1:
                self._take(answer)

    def _take(self, answer: Answer) -> None:
        """Learn from an answer; the thread is to obey it."""
        run = self._member.hear(answer)
        for name, _ in run:
            if name in self._operations:
                self._operations[name].expires = _NEVER  # from now on the executor minds the time
                self._operations[name].agreed = moment()
        if run and JOIN in self._operations:
            join = self._operations[JOIN]
            join.expires = time.monotonic() + join.timeout
        self._ended |= answer.ended
        self._orders.append(_Order(run, answer))

    def _rouse(self, sooner: bool = False) -> None:
        """Let the thread look at what has changed, where it would not."""
        if self._asleep:
            self._wanted.notify()
        elif self._listening and (self._orders or self._closing or sooner):
            with contextlib.suppress(RondeError):  # the thread finds out by itself
                self._mail.ring()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the communicator of rank {self._transport.rank} was closed")

    # ---- the engine's thread

    def _serve(self) -> None:
        try:
            self._look(0.0)
            while (turn := self._next()) is not None:
                order, until = turn
                if order is not None:
                    self._obey(order)
                if order is None or (self._coordinator is not None and self._operations):
                    self._look(until)  # the coordinator after each order, to decide on all that came meanwhile
            self._fail_all(self._closed_error())
        except RondeError as error:
            self._fail_all(error if self._abandoned else self._alarm.settle(error))
        except BaseException as error:
            rank = self._transport.rank
            cause = AbortedError(f"the engine of named operations of rank {rank} gave up: {error!r}", rank=rank)
            self._alarm.sound(cause)
            self._fail_all(cause)
            raise

    def _next(self) -> tuple[_Order | None, float] | None:
        """What to obey, if anything, and until when to listen after that; None: nothing more, ever."""
        with self._lock:
            self._listening = False
            self._decide()
            while True:
                if self._orders:
                    return self._orders.popleft(), 0.0
                if self._abandoned or self._refusal is not None or (self._closing and self._is_done()):
                    return None
                if self._operations or (self._coordinator is not None and self._coordinator.pending):
                    self._listening = True
                    return None, self._due
                self._asleep = True
                self._wanted.wait(None if self._coordinator is None or self._stall == _NEVER else self._stall / 2)
                self._asleep = False
                if self._coordinator is not None and not self._orders:
                    return None, 0.0

    def _is_done(self) -> bool:
        if self._operations:
            return False
        return self._coordinator is None or self._coordinator.ended or self._transport.failure is not None

    def _look(self, until: float) -> None:
        """Wait for messages, and learn from those that come."""
        for sender, message in self._mail.gather(until):
            self._receive(sender, message)
        if time.monotonic() >= self._due:
            self._mind_the_time()

    def _receive(self, sender: int, message: bytes) -> None:
        with self._lock:
            if self._coordinator is None:
                self._heard = True
                self._take(Answer.unpack(message))
                self._announce()  # before it is obeyed: the next messages travel meanwhile
                return
            said = Announcement.unpack(message)
            self._hear(sender, said)
            if said.left:
                self._mail.ignore(sender)

    def _obey(self, order: _Order) -> None:
        for failure in order.answer.failed:
            fields = {
                "kind": failure.error,
                "message": failure.text,
                "rank": self._transport.rank,
                "peer": failure.peer,
            }
            self._end(failure.name, error=from_wire(fields))
        if order.run:
            self._run(order)
        if order.answer.last >= 0:
            self._end(JOIN, order.answer.last)
        if order.answer.ended:
            with self._lock:
                self._refusal = ClosedError(f"rank {self._ranks[0]} was closed", peer=self._ranks[0])

    def _run(self, order: _Order) -> None:
        if not self._staged:
            self._jobs.stage()  # all ranks are here
            self._staged = True
        items = [Item(self._operations.get(name), name, terms) for name, terms in order.run]
        for name, result, error in run_all(items, self._jobs, order.answer.fusion, self._timeout):
            self._end(name, result, error=error)
            if self._transport.failure is not None:
                raise self._transport.failure

    def _end(self, name: str, result: Any = None, *, error: BaseException | None = None) -> None:
        """An operation is over."""
        with self._lock:
            operation = self._operations.pop(name, None)
        if operation is None:  # this rank has joined, or has been closed
            return
        operation.show(self._jobs.trace)
        if error is None:
            operation.work.keep(result)
        else:
            operation.work.fail(error)

    def _fail_all(self, cause: RondeError) -> None:
        with self._lock:
            cause = self._refusal = self._refusal or cause
            operations, self._operations = self._operations, {}
        for operation in operations.values():
            operation.work.fail(cause.within(f"in {operation.describe()}"))

    # ---- what takes too long

    def _mind_the_time(self) -> None:
        """Report stalls, and withdraw what nobody waits for any more. Raises DeadlineExceeded if that is in vain."""
        now = time.monotonic()
        with self._lock:
            self._report(now)
            for operation in self._operations.values():
                if operation.expires <= now and operation.withdrawn:
                    coordinator = self._transport.group.describe(self._ranks[0])
                    raise DeadlineExceeded(
                        f"{operation.describe()} has not been run for {operation.timeout:g} s, and {coordinator}, "
                        f"which coordinates named operations, does not answer",
                        rank=self._transport.rank,
                        peer=self._ranks[0],
                    )
                if operation.expires <= now:
                    operation.withdrawn = True
                    operation.expires = now + _PATIENCE + (0.0 if self._stall == _NEVER else self._stall / 2)
                    self._member.withdraw(operation.name)
            self._announce()
            times = [operation.expires for operation in self._operations.values()]
            if self._coordinator is not None:
                times.append(self._coordinator.oldest + self._stall)
            self._due = min(times, default=_NEVER)

    def _report(self, now: float) -> None:
        if self._coordinator is not None:
            late = self._coordinator.late(now - self._stall)
            if late:
                rows = "".join(f"\n  {item.describe(now)}" for item in late)
                log.warning("named operations that some ranks have submitted and others have not:%s", rows)
        elif not self._heard and self._operations:
            self._heard = True
            names = ", ".join(map(repr, self._operations))
            coordinator = self._transport.group.describe(self._ranks[0])
            log.warning("%s, which coordinates named operations, has submitted none; waiting: %s", coordinator, names)
