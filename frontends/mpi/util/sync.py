"""Synchronization of ranks: taking turns, counters, locks, conditions and semaphores that all ranks of a communicator
share. All but `Sequential` are on windows, so that their ranks are on one host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import numpy as np

from frontends.mpi import MPI

_NOBODY: Final = -1


class Sequential:
    """Ranks take turns, in their order, in a `with` statement or between `begin` and `end`.

    comm   the communicator
    tag    of the messages that pass the turn on
    """

    def __init__(self, comm: MPI.Intracomm, tag: int = 0) -> None:
        self._comm = comm
        self._tag = tag

    def begin(self) -> None:
        """Wait for the turn."""
        if self._comm.rank > 0:
            self._comm.Recv(_message(), self._comm.rank - 1, self._tag)

    def end(self) -> None:
        """Pass the turn on."""
        if self._comm.rank + 1 < self._comm.size:
            self._comm.Send(_message(), self._comm.rank + 1, self._tag)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


def _message() -> list[Any]:
    return [None, 0, MPI.BYTE]


class _Words:
    """Numbers in the memory of one rank, which all ranks read and change, each at once. Threads of a rank change them
    at the same time, so that one Lock_all serves all changes: a rank can have but one Lock.

    comm   the ranks
    """

    def __init__(self, comm: MPI.Intracomm, info: MPI.Info, dtype: Any, count: int, root: int = 0) -> None:
        """The memory is that of `root`. Collective."""
        self.comm: MPI.Intracomm = comm.Dup()
        self._dtype = np.dtype(dtype)
        size = self._dtype.itemsize
        self._win = MPI.Win.Allocate(size * count if comm.rank == root else 0, size, info, self.comm)
        self._win.Lock_all()
        self._root = root
        self._closed = False

    def check(self) -> None:
        """Raise RuntimeError if it was freed."""
        if self._closed:
            raise RuntimeError("it was freed")

    def change(self, at: int, value: Any, op: MPI.Op) -> Any:
        """Combine a value into the word `at`; the word before."""
        self.check()
        given, before = np.array([value], self._dtype), np.zeros(1, self._dtype)
        self._win.Fetch_and_op(given, before, self._root, at, op)
        return before[0].item()

    def replace_if(self, at: int, expected: Any, value: Any) -> Any:
        """Write a value if the word is as expected; the word before."""
        self.check()
        given, compared = np.array([value], self._dtype), np.array([expected], self._dtype)
        before = np.zeros(1, self._dtype)
        self._win.Compare_and_swap(given, compared, before, self._root, at)
        return before[0].item()

    def read(self, at: int) -> Any:
        """The word `at`."""
        return self.change(at, 0, MPI.NO_OP)

    def write(self, at: int, value: Any) -> None:
        """Write the word `at`."""
        self.change(at, value, MPI.REPLACE)

    def free(self) -> None:
        """Release the memory. Collective. A second call does nothing."""
        if not self._closed:
            self._closed = True
            try:
                self._win.Unlock_all()
                self._win.Free()
            finally:
                self.comm.Free()


class Counter:
    """A number that ranks read and increase at once: each gets another one. It is an iterator without an end.

    start     the first number
    step      added by `next`
    typecode  NumPy's code of the number's type
    comm      the ranks that share it
    root      the rank whose memory it is in

    Making and freeing it is collective.
    """

    def __init__(
        self,
        start: float = 0,
        step: float = 1,
        *,
        typecode: str = "i",
        comm: MPI.Intracomm = MPI.COMM_SELF,
        info: MPI.Info = MPI.INFO_NULL,
        root: int = 0,
    ) -> None:
        self._step = step
        self._words = _Words(comm, info, typecode, 1, root)
        if comm.rank == root:
            self._words.write(0, start)
        self._words.comm.Barrier()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, incr: float | None = None) -> Any:
        """The number; `incr`, by default the step, is added to it. Raises RuntimeError once it is freed."""
        return self._words.change(0, self._step if incr is None else incr, MPI.SUM)

    def free(self) -> None:
        """Release it. Collective. A second call does nothing."""
        self._words.free()


class Mutex:
    """A lock that one rank holds at a time. Ranks get it in the order in which they ask.

    recursive  True: the rank that holds it may acquire it again
    comm       the ranks that share it

    Making and freeing it is collective. `acquire`, `release`, `locked` and `count` raise RuntimeError once it is freed.

    The ranks that wait form a queue: the word TAIL is its last rank, and the word of each rank its successor. A rank
    waits for a message of its predecessor. Source: Mellor-Crummey and Scott 1991, "Algorithms for scalable
    synchronization on shared-memory multiprocessors", section 2.4.
    """

    def __init__(
        self,
        *,
        recursive: bool = False,
        comm: MPI.Intracomm = MPI.COMM_SELF,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> None:
        self._recursive = recursive
        self._tail = comm.size
        self._words = _Words(comm, info, np.int64, comm.size + 1)
        self._rank = comm.rank
        self._count = 0
        if comm.rank == 0:
            for at in range(comm.size + 1):
                self._words.write(at, _NOBODY)
        self._words.comm.Barrier()

    @property
    def comm(self) -> MPI.Intracomm:
        """The ranks, with messages of their own."""
        return self._words.comm

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire it; False if it is held and `blocking` is False."""
        self._words.check()
        if self._count and not self._recursive:
            raise RuntimeError("this rank holds the lock already")
        if not self._count and not self._enter(blocking):
            return False
        self._count += 1
        return True

    def _enter(self, blocking: bool) -> bool:
        words, me = self._words, self._rank
        words.write(me, _NOBODY)
        if not blocking:
            return bool(words.replace_if(self._tail, _NOBODY, me) == _NOBODY)
        before = words.change(self._tail, me, MPI.REPLACE)
        if before != _NOBODY:
            words.write(before, me)
            words.comm.Recv(_message(), before)
        return True

    def release(self) -> None:
        """Release it. Raises RuntimeError if this rank does not hold it."""
        self._words.check()
        if not self._count:
            raise RuntimeError("this rank does not hold the lock")
        self._count -= 1
        if not self._count:
            self._leave()

    def _leave(self) -> None:
        words, me = self._words, self._rank
        if words.read(me) == _NOBODY and words.replace_if(self._tail, me, _NOBODY) == me:
            return
        while (successor := words.read(me)) == _NOBODY:
            pass  # it has joined the queue, and names itself in its next step
        words.comm.Send(_message(), successor)

    def locked(self) -> bool:
        """True if this rank holds it."""
        return self.count() > 0

    def count(self) -> int:
        """The number of times that this rank has acquired it."""
        self._words.check()
        return self._count

    def free(self) -> None:
        """Release it. Collective; a rank that holds it lets it go. A second call does nothing."""
        self.let_go()
        self._words.free()

    def let_go(self) -> None:
        """Release it as often as this rank has acquired it."""
        if self._count:
            self._count = 0
            self._leave()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Condition:
    """Ranks wait until another one notifies them.

    mutex      the lock that is held around all calls; by default a new one
    recursive  of a new lock
    comm       the ranks that share a new lock

    Making and freeing it is collective. All calls but `acquire` and `free` raise RuntimeError if the lock is not held.

    The ranks that wait are a ring of words, guarded by the lock: the word HEAD counts those that were notified, the
    word TAIL those that have begun to wait.
    """

    def __init__(
        self,
        mutex: Mutex | None = None,
        *,
        recursive: bool = True,
        comm: MPI.Intracomm = MPI.COMM_SELF,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> None:
        self._own = mutex is None
        self._mutex = Mutex(recursive=recursive, comm=comm, info=info) if mutex is None else mutex
        size = self._mutex.comm.size
        self._size, self._head, self._tail = size, size, size + 1
        self._words = _Words(self._mutex.comm, info, np.int64, size + 2)

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock; see Mutex.acquire."""
        self._words.check()
        return self._mutex.acquire(blocking)

    def release(self) -> None:
        """Release the lock."""
        self._words.check()
        self._mutex.release()

    def locked(self) -> bool:
        """True if this rank holds the mutex."""
        return self._mutex.locked()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _check(self) -> None:
        self._words.check()
        if not self._mutex.locked():
            raise RuntimeError("this rank does not hold the lock")

    def wait(self) -> bool:
        """Let the lock go, wait to be notified, and acquire the lock as often as before. Returns True."""
        self._check()
        words, mutex = self._words, self._mutex
        place = words.change(self._tail, 1, MPI.SUM)
        words.write(place % self._size, words.comm.rank)
        held = mutex.count()
        for _ in range(held):
            mutex.release()
        words.comm.Recv(_message(), MPI.ANY_SOURCE)
        for _ in range(held):
            mutex.acquire()
        return True

    def wait_for(self, predicate: Callable[[], Any]) -> Any:
        """Wait until a function returns something true, which is the result. It is called with the lock held."""
        self._check()
        while not (result := predicate()):
            self.wait()
        return result

    def notify(self, n: int = 1) -> int:
        """Wake at most `n` of the ranks that wait, in the order in which they began; the number of those woken."""
        self._check()
        words = self._words
        head, tail = words.read(self._head), words.read(self._tail)
        count = min(n, tail - head)
        woken = [words.read(place % self._size) for place in range(head, head + count)]
        words.write(self._head, head + count)
        for rank in woken:
            words.comm.Send(_message(), rank)
        return len(woken)

    def notify_all(self) -> int:
        """Wake all ranks that wait; the number of them."""
        return self.notify(self._size)

    def free(self) -> None:
        """Release it, and its lock if that is its own. Collective; a rank that holds the lock lets it go. A second call
        does nothing."""
        self._mutex.let_go()
        if self._own:
            self._mutex.free()
        self._words.free()


class Semaphore:
    """A number of permits that ranks take and give back.

    value    the number at the beginning
    bounded  True: `release` raises ValueError if there would be more than at the beginning
    comm     the ranks that share it

    Making and freeing it is collective. Raises ValueError for a value below 0.
    """

    def __init__(
        self,
        value: int = 1,
        *,
        bounded: bool = True,
        comm: MPI.Intracomm = MPI.COMM_SELF,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> None:
        if value < 0:
            raise ValueError(f"value={value}: must be 0 or more")
        self._value = value
        self._bounded = bounded
        self._counter = Counter(value, comm=comm, info=info)
        self._changed = Condition(recursive=False, comm=comm, info=info)

    def acquire(self, blocking: bool = True) -> bool:
        """Take a permit; waits for one, or returns False if there is none and `blocking` is False."""
        with self._changed:
            while self._counter.next(0) <= 0:
                if not blocking:
                    return False
                self._changed.wait()
            self._counter.next(-1)
        return True

    def release(self, n: int = 1) -> None:
        """Give `n` permits back. Raises ValueError for fewer than 1, and for more than there were if it is bounded."""
        if n < 1:
            raise ValueError(f"n={n}: must be 1 or more")
        with self._changed:
            if self._bounded and self._counter.next(0) + n > self._value:
                raise ValueError(f"n={n}: there would be more than {self._value} permits")
            self._counter.next(n)
            self._changed.notify(n)

    def free(self) -> None:
        """Release it. Collective. A second call does nothing."""
        self._changed.free()
        self._counter.free()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
