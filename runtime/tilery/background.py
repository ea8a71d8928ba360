"""Background: a few daemon threads that work through a queue, end with the process, and are not there after a fork."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

Task = Callable[[], None]
# A compilation cannot be interrupted, and NVRTC must not be at work while the process tears it down.
EXIT_DEADLINE_S = 30.0
# Below the threads that serve calls, where cores are few.
NICENESS = 10


class Workers:
    """Threads that are started when there is work, up to a limit, and wait for more."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._busy = 0
        self._closed = False

    def submit(self, task: Task, limit: int) -> None:
        """Queue a task; at most ``limit`` threads work. A task handles its own errors; after `close` it is dropped."""
        with self._changed:
            if self._closed:
                return
            self._tasks.append(task)
            if self._busy + len(self._tasks) > self._threads and self._threads < limit:
                self._threads += 1
                threading.Thread(target=self._work, name=f"tilery-{self._threads}", daemon=True).start()
            self._changed.notify_all()

    def _work(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tasks)
                task = self._tasks.popleft()
                self._busy += 1
            try:
                task()
            except Exception:
                log.exception("a task in the background failed")
            del task  # it may hold the last reference to something large
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is queued or under way; whether that was reached."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._tasks and not self._busy, timeout)

    def close(self) -> None:
        """Drop what is queued and wait for what is under way."""
        with self._changed:
            self._closed = True
            self._tasks.clear()
        if not self.wait(EXIT_DEADLINE_S):
            log.warning("a compilation is still running after %.0f s; the process ends without it", EXIT_DEADLINE_S)


workers = Workers()
"""Those of this process."""


def _after_fork() -> None:
    """In the child the threads are gone, and what they were doing is the parent's."""
    global workers
    workers = Workers()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: workers.close())
