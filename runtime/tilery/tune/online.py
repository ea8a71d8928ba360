"""A measurement in a running program: on a private stream, with scratch memory, within a budget, never in a capture."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .. import device
from ..errors import DriverError
from ..generator.records import Record
from ..pack import Pack
from ..policy import Policy
from ..problem import Problem
from ..stats import count
from ..store import store_for
from ..store.lock import FileLock
from .buffers import Skip
from .gpu import OUT_OF_MEMORY, Gpu
from .identity import lock_path, uuid_of
from .measure import OverBudget
from .session import verdict
from .tuner import Asked, Tuner

# The program needs the memory more: rotating sets are fewer where these have no room for all.
MEMORY_SHARE, MEMORY_BYTES = 0.25, 512 << 20
# Launches of each candidate, about, that a comparison takes at the very least.
LEAST_LAUNCHES = 4

_guard = threading.Lock()
_measuring: dict[int, threading.Lock] = {}


class Busy(Skip):
    """A CUDA graph is being captured, or another process measures: a later call may ask again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, message)


def measure(problem: Problem, ordinal: int, pack: Pack, settings: Policy) -> Record | None:
    """The record of a problem, or None where there is a reason to have none, which is counted.

    Args:
        problem: what was called often.
        ordinal: the GPU.
        pack: whose variants are measured: those with an image.
        settings: the policy; ``tune_budget_ms`` is the most time of the GPU that this takes.

    Raises:
        Busy: not now.
        DriverError: a kernel's fault.
    """
    started = time.perf_counter()
    try:
        return _measure(problem, ordinal, pack, settings)
    except Busy:
        raise
    except Skip as reason:
        count("tune", f"skipped, {reason.kind}")
    except DriverError as error:
        if error.name != OUT_OF_MEMORY:
            raise
        count("tune", "skipped, no memory")
    finally:
        count("tune", "seconds", time.perf_counter() - started)
    return None


def _measure(problem: Problem, ordinal: int, pack: Pack, settings: Policy) -> Record | None:
    budget_us = settings.tune_budget_ms * 1e3
    gpu = Gpu(ordinal, MEMORY_SHARE, MEMORY_BYTES, before=lambda: _check_capture(ordinal))
    tuner = Tuner(gpu, pack, settings, store_for(settings))
    asked = tuner.ask(problem)
    _check_worth(asked, budget_us)
    with ExitStack() as stack:
        stack.enter_context(_alone(ordinal))
        _check_capture(ordinal)
        # A capture of the program in another thread would break by what this one allocates.
        stack.enter_context(device.relaxed())
        stack.enter_context(gpu)
        found, _ = tuner.measure(asked, budget_us)
    count("tune", "gpu_ms", found.gpu_us / 1e3)
    for name in found.wrong:
        count("tune", f"wrong, {name}")
    status, reason, _ = verdict(asked, found)
    if status != "measured":
        raise Skip(reason, status)
    count("tune", "tuned")
    return tuner.record(asked, found.times, 0)


def _check_worth(asked: Asked, budget_us: float) -> None:
    if len(asked.candidates) < 2:
        raise Skip("fewer than two variants that fit have an image", "nothing to choose from")
    least_us = asked.decision.us * LEAST_LAUNCHES * len(asked.candidates) if asked.decision else 0.0
    if least_us > budget_us:
        raise OverBudget(f"it would take {least_us / 1e3:.1f} ms or more")


def _check_capture(ordinal: int) -> None:
    """Refuse while a capture that we can see is under way on the GPU."""
    if device.capturing(0, ordinal):
        raise Busy("a CUDA graph is being captured")


@contextmanager
def _alone(ordinal: int) -> Iterator[None]:
    """One measurement at a time on a GPU: among the threads of this process, and among processes.

    Raises:
        Busy: another process measures.
    """
    with _guard:
        ours = _measuring.setdefault(ordinal, threading.Lock())
    with ours:
        lock = FileLock(lock_path(uuid_of(ordinal)))
        try:
            held = lock.acquire(time.monotonic())
        except OSError:  # no such lock on this file system: other processes cannot be noticed
            yield
            return
        if not held:
            raise Busy("another process measures on the GPU")
        try:
            yield
        finally:
            lock.release()


def _after_fork() -> None:
    """In the child a lock may have been held by a thread that is gone."""
    global _guard
    _guard = threading.Lock()
    _measuring.clear()


os.register_at_fork(after_in_child=_after_fork)
