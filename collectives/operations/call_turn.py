"""CallTurn: the right to run calls of one communicator, one at a time, and the answer for what becomes of a call.

    free ---- take, by a thread ----> held ---- release ----> free
      |                                 ^
      +---- lend, to machine code ------+ take_back

    call        nothing taken        | turn, number, published ... | turn given back
    interrupt   nothing has happened | abort of all ranks          | the call has ended

An interrupt that comes while this rank has the turn aborts even if nothing was published yet: the program may leave the
call out and make the next one, which the other ranks would take for this one.

Python runs signal handlers between any two instructions of the main thread, and a handler may raise: KeyboardInterrupt
may come right behind the call that takes the turn. So the turn is an entry of a dictionary, whose value tells the
holder: one method of the dictionary takes it, another one gives it back, and no handler runs in the middle of either.
Everything from the first instruction on is in one `try`, and `leave` asks the entry whether there is something to
answer for. (Smith, "Ctrl-C handling in Python and Trio", 2017, tells why nothing less will do.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from collectives.execution import Executor
from collectives.operations.job import Job
from transports.errors import REENTRY, ReentryError, RondeError
from transports.locks import let_go

HOLDER: Final = 0
"""The key of the holder."""
_LENT: Final = object()


class CallTurn:
    """The turn of one executor.

    take     take(HOLDER, me) is me: the turn was free, and is the caller's now. `me` is the object of this very call
             of `get_ident`, so that a call in the middle of another one of its thread is not taken for that
    clear    give the turn back; `tell` must follow if there is an element in `waiting`
    waiting  an element for each thread that waits for the turn
    lock     guards the queue of calls, too
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._holder: dict[int, object] = {}
        self.take = self._holder.setdefault
        self.clear: Callable[[], None] = self._holder.clear
        self.waiting: list[object] = []
        self._make_lock()

    def locked(self) -> bool:
        """True if a thread or machine code has the turn."""
        return bool(self._holder)

    @property
    def is_lent(self) -> bool:
        """True while machine code has the turn."""
        return self._holder.get(HOLDER) is _LENT

    @property
    def is_mine(self) -> bool:
        """True if this thread has the turn: it is in the middle of a call."""
        return self._holder.get(HOLDER) == get_ident()

    def lend(self) -> bool:
        """Give the turn to machine code; False if a thread has it."""
        return self.take(HOLDER, _LENT) is _LENT

    def take_back(self, me: object) -> None:
        """Take the lent turn for a thread."""
        self._holder[HOLDER] = me

    def await_turn(self, me: object, seconds: float | None) -> bool:
        """Wait until the turn is this thread's; False after `seconds`. The lock is held, once."""
        self.waiting.append(me)
        try:
            self.changed.wait_for(lambda: self.take(HOLDER, me) is me, seconds)
        finally:
            self.waiting.remove(me)
        return self._holder.get(HOLDER) is me

    def release(self) -> None:
        """Give the turn back, and tell those that wait for it."""
        self.clear()
        if self.waiting:
            self.tell()

    def tell(self) -> None:
        """Tell those that wait for the turn that it was given back. Another thread may have it by now."""
        with self.lock:
            self.changed.notify_all()

    def leave(self, me: object, error: BaseException) -> None:
        """A call has ended by an error: give back what it has. Nothing has happened, or all ranks abort, if the error
        is not one of Ronde's.

        me  as given to `take`
        """
        try:
            if not isinstance(error, RondeError):
                let_go(self.lock)
                self._executor.interrupted()
                if self._holder.get(HOLDER) is me:
                    answer_for(self._executor, error)
        finally:
            if self._holder.get(HOLDER) is me:
                self.release()

    def after_fork(self) -> None:
        """In a forked child: the turn stays as it is, for a caller that has forked in the middle of a job."""
        self._make_lock()

    def _make_lock(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)

    def check_wait(self) -> None:
        """Raise ReentryError if this thread has the turn: a wait for another call would have no end."""
        if self.is_mine or self._executor.entered:
            raise ReentryError(REENTRY)


def answer_for(executor: Executor, error: BaseException) -> None:
    """Abort if an error that is none of Ronde's leaves the other ranks waiting. A ValueError between two exchanges does
    not: it comes of what the ranks have agreed on, and so on all of them."""
    interrupt = not isinstance(error, Exception) or isinstance(error, MemoryError)
    if executor.is_open or interrupt:
        executor.left(error)


def run_whole(executor: Executor, job: Job[Any], deadline: float) -> Any:
    """The product of a job in a thread that has the turn, or needs none. After an error of other code than Ronde's the
    thread gives locks back that it still holds; in the middle of a call all ranks abort."""
    try:
        return job.run(deadline)
    except RondeError:
        raise
    except BaseException as error:
        executor.interrupted()
        answer_for(executor, error)
        raise
