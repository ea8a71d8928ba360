"""One maker at a time per key: among the threads of a process, and among processes. Both waits have a deadline."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.05

_held: set[FileLock] = set()
_flights: WeakSet[Flights] = WeakSet()


class Flights:
    """Locks by name for the threads of a process; a name without users is forgotten."""

    def __init__(self) -> None:
        self._reset()
        _flights.add(self)

    def _reset(self) -> None:
        self._guard = threading.Lock()
        self._users: dict[str, tuple[threading.Lock, list[object]]] = {}

    @contextmanager
    def hold(self, name: str, until: float) -> Iterator[bool]:
        """Hold the lock of a name; yields False where another thread still has it at the time ``until``."""
        me = object()
        with self._guard:
            lock, users = self._users.setdefault(name, (threading.Lock(), []))
            users.append(me)
        held = lock.acquire(timeout=min(max(until - time.monotonic(), 0), threading.TIMEOUT_MAX))
        try:
            yield held
        finally:
            if held:
                lock.release()
            with self._guard:
                users.remove(me)
                if not users:
                    self._users.pop(name, None)


class FileLock:
    """flock on a file. The kernel frees it when its holder dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self, until: float, enough: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the lock; False at the time ``until``, or as soon as ``enough()`` says that it is not needed.

        Raises:
            OSError: the file cannot be opened, or the file system has no locks.
        """
        pause = _FIRST_WAIT_S
        while not self._try():
            left = until - time.monotonic()
            if left <= 0 or enough():
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_WAIT_S)
        return True

    def _try(self) -> bool:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        _held.add(self)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._still_there():
                return True
        except BlockingIOError:
            pass
        except BaseException:
            self.release()
            raise
        self.release()
        return False

    def _still_there(self) -> bool:
        """Whether the locked file is the one that others would open: it may have been deleted meanwhile."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        return False

    def release(self) -> None:
        """Give the lock back. Nothing happens in a forked child: the lock is its parent's."""
        if self in _held:
            _held.discard(self)
            with suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)

    def delete(self) -> None:
        """Delete the file of a lock that is held."""
        with suppress(OSError):
            os.unlink(self._path)


def _after_fork() -> None:
    """In the child: no thread is left to free a lock, and its copy of a lock file would keep that locked."""
    for lock in _held:
        with suppress(OSError):
            os.close(lock._fd)
    _held.clear()
    for flights in list(_flights):
        flights._reset()


os.register_at_fork(after_in_child=_after_fork)
