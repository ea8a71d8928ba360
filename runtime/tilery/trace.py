"""Trace: the Problems of a process and what serves them, as JSON lines in a file of bounded size.

Nothing here can make a call fail: what cannot be written is counted, and warned of once. Several processes may append
to one file: a line is one write at its end. A full file becomes FILE.1, and the FILE.1 of before is gone.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from stat import S_ISREG
from typing import Any

from .decision import Decision
from .policy import Policy
from .problem import Problem
from .stats import Counted, count, counts

log = logging.getLogger(__name__)

Event = dict[str, Any]
Row = tuple[Problem, str, str, str]

FLUSH_S = 60.0
# O_NONBLOCK: a pipe that nobody reads is an error, never a wait.
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
# Of a text, so that a line stays well below the 4096 bytes that a pipe takes at once, each character escaped (6 bytes).
MAX_TEXT = 200


class Trace:
    """One file, and what this process has to say in it.

    Args:
        path: the file; its folder exists.
        max_bytes: bound of the file and its predecessor together.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.process = os.urandom(4).hex()  # a pid is used again
        self._half = max_bytes // 2
        self._plans: dict[int, Counted] = {}
        self._former: dict[Row, int] = {}  # calls of Plans that were given up
        self._written: dict[Any, float] = {}
        self._lock = threading.Lock()
        self._warned = False

    def built(self, plan: Counted, origin: str, seconds: float, swap: bool) -> None:
        """A new Plan, or one that takes another's place."""
        with self._lock:
            self._plans[id(plan)] = plan
        chosen = plan.decision
        self.write(
            [
                {"event": "swap" if swap else "plan"}
                | _identity(chosen)
                | {"source": chosen.source, "arch": chosen.arch, "origin": origin, "reason": chosen.reason[:MAX_TEXT]}
                | {"pending": chosen.pending, "us": round(chosen.us, 3), "basis": chosen.basis}
                | {"seconds": round(seconds, 6)}
            ]
        )

    def retire(self, plan: Counted) -> None:
        """Write the calls of a Plan that is given up, and keep no more of it than their number."""
        with self._lock:
            if self._plans.pop(id(plan), None) is None:
                return
            row = _row(plan.decision)
            calls = self._former[row] = self._former.get(row, 0) + plan.calls
        if calls > self._written.get(row, 0):
            self._written[row] = calls
            self.write([{"event": "calls"} | _identity(plan.decision) | {"calls": calls}])

    def flush(self) -> None:
        """Write the calls and counters that changed since the last time; both are cumulative."""
        self.write(self._changes())

    def write(self, events: Iterable[Event]) -> None:
        """Append events."""
        about = {"time": round(time.time(), 3), "pid": os.getpid(), "process": self.process}
        try:
            with self._lock:
                for event in events:
                    self._append(json.dumps(event | about, separators=(",", ":")).encode() + b"\n")
        except (OSError, ValueError) as error:
            self._fault(error)

    def _changes(self) -> Iterator[Event]:
        rows: dict[Row, tuple[int, Decision]] = {}
        for plan in tuple(self._plans.values()):
            chosen = plan.decision
            row = _row(chosen)
            rows[row] = (rows.get(row, (self._former.get(row, 0), chosen))[0] + plan.calls, chosen)
        for row, (calls, chosen) in rows.items():
            if calls != self._written.get(row, 0):
                yield {"event": "calls"} | _identity(chosen) | {"calls": calls}
                self._written[row] = calls
        for key, value in counts().items():
            if value != self._written.get(key):
                yield {"event": "count", "group": key[0], "name": key[1][:MAX_TEXT], "value": value}
                self._written[key] = value

    def _append(self, line: bytes) -> None:
        file = os.open(self.path, FLAGS, 0o600)
        try:
            found = os.fstat(file)
            if S_ISREG(found.st_mode) and found.st_size + len(line) > self._half and self._rotate(file, found):
                os.close(file)
                file = os.open(self.path, FLAGS, 0o600)
            if os.write(file, line) != len(line):
                raise OSError(errno.ENOSPC, "a line was written in part")
        finally:
            os.close(file)

    def _rotate(self, file: int, found: os.stat_result) -> bool:
        """Move the file away, unless another process does; whether the path now names another file."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.path.samestat(os.stat(self.path), found):
            os.rename(self.path, f"{self.path}.1")
        return True

    def _fault(self, error: Exception) -> None:
        count("trace", "failures")
        if not self._warned:
            self._warned = True
            log.warning("the trace %s cannot be written: %s. Calls go on without it.", self.path, error)


def _row(chosen: Decision) -> Row:
    return chosen.problem, chosen.device.name, chosen.variant.name, chosen.tier


def _identity(chosen: Decision) -> Event:
    served = {"variant": chosen.variant.name, "tier": chosen.tier, "miss": chosen.miss[:MAX_TEXT]}
    return {"problem": asdict(chosen.problem), "device": chosen.device.to_dict()} | served


_traces: dict[Path, Trace] = {}
_lock = threading.Lock()
_started = False


def _trace_of(settings: Policy) -> Trace | None:
    if settings.trace is None:
        return None
    with _lock:
        if settings.trace not in _traces:
            _traces[settings.trace] = Trace(settings.trace, settings.trace_max_mib << 20)
            _start()
        return _traces[settings.trace]


def _start() -> None:
    """See to it that `flush` is called."""
    global _started
    if _started:
        return
    _started = True
    with suppress(RuntimeError):  # no more threads: then it is called at exit only
        threading.Thread(target=_flush_often, name="tilery-trace", daemon=True).start()
    # A process that multiprocessing forked ends without atexit.
    if (multiprocessing := sys.modules.get("multiprocessing.util")) is not None:
        multiprocessing.Finalize(None, flush, exitpriority=0)


def _flush_often() -> None:
    while True:
        time.sleep(FLUSH_S)
        flush()


def built(settings: Policy, plan: Counted, origin: str, seconds: float, *, swap: bool = False) -> None:
    """Say that a Plan was made ready, and from now on how often it is called; nothing where the policy has no trace.

    Args:
        settings: the policy under which it was made.
        plan: the Plan.
        origin: where its code was.
        seconds: what choosing and making ready took.
        swap: whether it takes the place of a Plan that served until now.
    """
    if (found := _trace_of(settings)) is not None:
        found.built(plan, origin, seconds, swap)


def retire(plan: Counted) -> None:
    """Say how often a Plan was called that is given up."""
    for found in tuple(_traces.values()):
        found.retire(plan)


def note(settings: Policy, event: str, **fields: Any) -> None:
    """Say something else that took long, as a specialised kernel; nothing where the policy has no trace.

    Args:
        settings: the policy.
        event: what happened, in one word.
        fields: as JSON takes them; a line should stay below 4096 bytes.
    """
    if (found := _trace_of(settings)) is not None:
        found.write([{"event": event} | fields])


def flush() -> None:
    """Write the calls and counters of this process into its traces, as happens every minute and at exit."""
    for trace in tuple(_traces.values()):
        trace.flush()


def _after_fork() -> None:
    """In the child Plans and counters start again, and a lock may have been held by a thread that is gone."""
    global _lock, _started
    _lock, _started = threading.Lock(), False
    _traces.clear()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(flush)
