"""The engine of named operations of one communicator: ranks submit in any order, all ranks run them in one order.

    callers' threads            engine's thread                       other ranks
    submit --> InFlight
           --> Endpoint  ----------- announcements --------------------->
                         <---------- answers ----------------------------
                Endpoint.decisions --> BatchRunner (collectives) <------>

The submitting thread sends announcements itself. The engine's thread (Worker) waits for messages and executes the
decisions one at a time. While nothing is in flight it sleeps on a condition variable, so that the other calls of this
rank have the transport to themselves; on rank 0 it then checks from time to time if other ranks wait, for the stall
report.

Lock rule: one lock guards the endpoint, the operations in flight and the worker. The engine's thread does not hold it
while it waits, runs operations, ends them (which calls the user's callbacks) or logs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from collectives.config import Config
from collectives.failure import AbortSignal
from collectives.negotiation.control_channel import ControlChannel
from collectives.negotiation.endpoint import CoordinatorEndpoint, Decision, Endpoint, ParticipantEndpoint
from collectives.negotiation.in_flight import NEVER, InFlight, Operation
from collectives.negotiation.messages import JOIN
from collectives.negotiation.run_batch import BatchItem, BatchRunner
from collectives.negotiation.worker import State, Worker
from collectives.operations import HostOperations, Job, Work
from transports import forking
from transports.base import Transport
from transports.errors import (
    REENTRY,
    AbortedError,
    ClosedError,
    DeadlineExceeded,
    ReentryError,
    RendezvousError,
    RondeError,
    described,
    from_wire,
)
from transports.locks import let_go

_ANSWER_SECONDS: Final = 5.0
"""Time for the coordinator to answer the withdrawal of an expired operation."""

log = logging.getLogger("ronde.negotiation")


class Engine:
    """Runs the named operations of one communicator. Methods may be called from any thread."""

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        tag: int,
        operations: HostOperations,
        abort_signal: AbortSignal,
        config: Config,
    ) -> None:
        """Without I/O and without a thread: the first operation starts both.

        ranks        the communicator's ranks, by their ranks in the transport
        tag          the engine uses `tag` and `tag + 1`
        operations   runs the named operations and nothing else; not staged yet
        """
        stall = config.stall or NEVER
        in_flight = InFlight()
        channel = ControlChannel(transport, ranks, tag)
        self._endpoint: Endpoint
        if transport.rank == ranks[0]:
            self._endpoint = CoordinatorEndpoint(
                channel, in_flight, ranks, config.fusion_bytes, stall, operations.trace
            )
        else:
            self._endpoint = ParticipantEndpoint(channel, in_flight, transport.group.describe(ranks[0]), stall)
        self._transport = transport
        self._ranks = ranks
        self._stall = stall
        self._store_key = f"engine/{tag:x}/{ranks[0]}"
        self._abort_signal = abort_signal
        self._in_flight = in_flight
        self._channel = channel
        self._runner = BatchRunner(operations, config.timeout)
        self._lock = threading.RLock()
        self._worker = Worker(self._lock, channel)
        self._closing = False
        self._refusal: RondeError | None = None
        """The error of every later submission."""
        forking.register(self)

    # ---- for callers

    def submit(self, name: str, job: Job[Any]) -> Work[Any]:
        """Run a job once all ranks have submitted one of this name.

        Raises TypeError or ValueError for a bad name and for one that is in flight on this rank, ClosedError, or the
        transport's failure. Then nothing was submitted.
        """
        if not isinstance(name, str):
            raise TypeError(f"name={name!r}: must be a string")
        if not name:
            raise ValueError("name='': must not be empty")
        if name != name.encode(errors="replace").decode():
            raise ValueError(f"name={name!r}: must not have surrogates, which UTF-8 cannot encode")
        participant = self._endpoint.participant
        return self._submit(
            Operation(name, job, job.timeout, self._check_wait), lambda: participant.submit(name, job.signature)
        )

    def join(self, timeout: float) -> Work[int]:
        """Announce that this rank has no more data; see Communicator.join."""
        return self._submit(Operation(JOIN, None, timeout, self._check_wait), self._endpoint.participant.join)

    def leave(self) -> None:
        """Accept no more submissions. Operations in flight go on; those that lack this rank fail. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            if not self._worker.started:
                if not self._is_used():
                    return
                self._start()  # so that the other ranks learn that this one has left
            self._endpoint.participant.leave()
            with contextlib.suppress(RondeError):  # the engine's thread notices the transport's failure itself
                self._announce()
            self._wake()

    def close(self, deadline: float) -> None:
        """Leave, and wait until the operations of this rank have ended.

        Raises DeadlineExceeded at the deadline; operations still in flight then fail with ClosedError.
        """
        self.leave()
        if self._worker.join(deadline):
            return
        with self._lock:
            unfinished = ", ".join(self._in_flight.describe()) or "nothing"
        self._fail_all(self._closed_error())
        with self._lock:
            self._wake()
        raise DeadlineExceeded(f"still in flight when the communicator was closed: {unfinished}")

    @property
    def ended(self) -> bool:
        """True if it has no thread: it was never used, or all that it had to do after `leave` is done."""
        return self._worker.join(0.0)

    def after_fork(self) -> None:
        """In a forked child: refuse all submissions with ForkedError."""
        self._lock = threading.RLock()
        self._refusal = self._transport.group.forked_error()
        self._in_flight.remove_all()

    # ---- for callers' threads and the engine's; the lock is held

    def _submit(self, operation: Operation, add_to_announcement: Callable[[], None]) -> Work[Any]:
        try:
            with self._lock:
                return self._submit_locked(operation, add_to_announcement)
        except BaseException as error:
            if not isinstance(error, RondeError):
                let_go(self._lock)
                self._transport.interrupted()
                if self._in_flight.get(operation.name) is operation:  # the other ranks may have heard of it
                    rank = self._transport.rank
                    text = f"rank {rank} left the submission of {operation.describe()}: {described(error)}"
                    self._abort_signal.raise_abort(AbortedError(text, rank=rank))
            raise

    def _submit_locked(self, operation: Operation, add_to_announcement: Callable[[], None]) -> Work[Any]:
        if self._closing:
            raise self._closed_error()
        failure = self._refusal or self._transport.failure
        if failure is not None:
            self._abort_signal.note_departure(failure)
            raise self._abort_signal.told(failure).within(f"submitting {operation.describe()}")
        self._in_flight.add(operation)
        try:
            if not self._worker.started:
                self._start()
            expires_first = operation.expires < self._worker.due
            if expires_first:
                self._worker.due = operation.expires
            add_to_announcement()
            if not (self._worker.state is State.SLEEPING and self._endpoint.behind):
                self._announce()
            self._wake(interrupt=expires_first)
        except RondeError:
            self._in_flight.remove(operation.name)
            raise
        return operation.work

    def _start(self) -> None:
        with contextlib.suppress(RendezvousError):  # without a store, ranks that wait for this one find out by timeout
            self._transport.group.store.set(self._store_key, b"")
        self._worker.due = time.monotonic() + self._stall
        self._endpoint.open()
        self._worker.start(f"ronde engine of rank {self._transport.rank}", self._serve)

    def _is_used(self) -> bool:
        """True if any rank has submitted a named operation."""
        if len(self._ranks) > 1 and self._transport.failure is None:
            with contextlib.suppress(RendezvousError):
                return self._transport.group.store.peek(self._store_key) is not None
        return False

    def _announce(self) -> None:
        self._endpoint.announce()
        state = self._worker.state
        if state is State.RECEIVING or (state is State.SLEEPING and not self._closing):
            self._endpoint.decide()  # otherwise the engine's thread does, after it has handled the messages that came

    def _wake(self, *, interrupt: bool = False) -> None:
        self._worker.wake(interrupt=interrupt or self._closing or bool(self._endpoint.decisions))

    def _check_wait(self) -> None:
        """Raise ReentryError if this thread ends the operations, or is in the middle of a call of the transport, which
        the engine's thread may need."""
        if self._worker.is_current or self._transport.entered:
            raise ReentryError(REENTRY)

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the communicator of rank {self._transport.rank} was closed")

    # ---- the engine's thread

    def _serve(self) -> None:
        try:
            self._receive(0.0)
            while (task := self._next()) is not None:
                if not isinstance(task, Decision):
                    self._receive(task)
                    continue
                self._execute(task)
                if self._endpoint.coordinates and self._in_flight:
                    self._receive(0.0)  # so that one decision answers everything that arrived meanwhile
            self._fail_all(self._closed_error())
        except RondeError as error:
            self._fail_all(self._refusal or self._abort_signal.resolve(error))
        except BaseException as error:
            let_go(self._lock)
            self._transport.interrupted()
            rank = self._transport.rank
            cause = AbortedError(
                f"internal error in the engine of named operations of rank {rank}: {described(error)}", rank=rank
            )
            self._abort_signal.raise_abort(cause)
            self._fail_all(cause)
            raise

    def _next(self) -> Decision | float | None:
        """The next task: a decision to execute, or the moment until which to receive messages. None: no more tasks."""
        with self._lock:
            self._worker.state = State.BUSY
            self._endpoint.decide()
            while self._refusal is None:
                if self._endpoint.decisions:
                    return self._endpoint.decisions.popleft()
                if self._closing and self._is_done():
                    return None
                if self._in_flight or self._endpoint.pending:
                    self._worker.state = State.RECEIVING
                    return self._worker.due
                wakes_by_itself = self._endpoint.coordinates and self._stall != NEVER
                self._worker.sleep(self._stall / 2 if wakes_by_itself else None)
                if self._endpoint.coordinates and not self._endpoint.decisions:
                    return 0.0
        return None

    def _is_done(self) -> bool:
        """True if this rank is not needed any more: rank 0 has to answer until the coordinator has ended."""
        if self._in_flight:
            return False
        return not self._endpoint.coordinates or self._endpoint.ended or self._transport.failure is not None

    def _receive(self, until: float) -> None:
        """Wait for messages until that moment, and apply those that arrive."""
        for sender, message in self._channel.receive(until):
            with self._lock:
                self._endpoint.receive(sender, message)
        if time.monotonic() >= self._worker.due:
            self._check_time()

    def _check_time(self) -> None:
        """Report stalls, and withdraw expired operations. Raises DeadlineExceeded if the coordinator ignores that."""
        now = time.monotonic()
        with self._lock:
            report = self._endpoint.stall_report(now)
        if report:
            log.warning("%s", report)
        with self._lock:
            for operation in self._in_flight.expired(now):
                if operation.withdrawn:
                    coordinator = self._transport.group.describe(self._ranks[0])
                    raise DeadlineExceeded(
                        f"{operation.describe()} has not been run for {operation.timeout:g} s, and {coordinator}, "
                        f"which coordinates named operations, does not answer",
                        rank=self._transport.rank,
                        peer=self._ranks[0],
                    )
                operation.withdrawn = True
                operation.expires = now + _ANSWER_SECONDS + (0.0 if self._stall == NEVER else self._stall / 2)
                self._endpoint.participant.withdraw(operation.name)
            self._announce()
            self._worker.due = min(self._in_flight.next_expiry, self._endpoint.next_report(now))

    def _execute(self, decision: Decision) -> None:
        answer = decision.answer
        for name, error, text, peer in answer.failed:
            fields = {"kind": error, "message": text, "rank": self._transport.rank, "peer": peer}
            self._end(name, error=from_wire(fields))
        if decision.run:
            for name, result, failure in self._runner.run(self._items(decision), answer.fusion):
                self._end(name, result, failure)
                if self._transport.failure is not None:
                    raise self._transport.failure
        if answer.last >= 0:
            self._end(JOIN, answer.last)
        if answer.ended:
            with self._lock:
                text = f"{self._transport.group.describe(self._ranks[0])} was closed: its program ended, or called "
                text += "shutdown or close"
                self._refusal = ClosedError(text, rank=self._transport.rank, peer=self._ranks[0])

    def _items(self, decision: Decision) -> list[BatchItem]:
        """The operations of a decision. Raises AbortedError if `close` has given up those of this rank: the others have
        agreed to run them, and would take this rank for one that has joined."""
        with self._lock:
            if self._refusal is None:
                return [BatchItem(self._in_flight.get(name), name, signature) for name, signature in decision.run]
        rank, names = self._transport.rank, ", ".join(repr(name) for name, _ in decision.run)
        cause = AbortedError(f"rank {rank} was closed when all ranks had agreed to run {names}", rank=rank)
        self._abort_signal.raise_abort(cause)
        raise cause

    def _end(self, name: str, result: Any = None, error: BaseException | None = None) -> None:
        """End an operation with a result or an error."""
        with self._lock:
            operation = self._in_flight.remove(name)
        if operation is None:  # this rank has joined, or close has failed the operation
            return
        operation.record(self._runner.trace)
        if error is None:
            operation.work.set_result(result)
        else:
            self._abort_signal.note_departure(error)
            operation.work.set_exception(error)

    def _fail_all(self, cause: RondeError) -> None:
        """Fail everything in flight, and refuse submissions from now on."""
        with self._lock:
            refusal = self._refusal = self._refusal or cause
            operations = self._in_flight.remove_all()
        for operation in operations:
            self._abort_signal.note_departure(refusal)
            operation.work.set_exception(self._abort_signal.told(refusal).within(f"in {operation.describe()}"))
