"""Counters. Counting happens where something slow happens anyway; a call itself only adds one to its Plan."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .decision import Decision

GROUPS = (
    "origins",
    "store",
    "jit",
    "misses",
    "fallbacks",
    "rejected",
    "captures",
    "background",
    "specialised",
)

_counts: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


class Counted(Protocol):
    """What `track` keeps: a Plan."""

    calls: int  # launches so far

    @property
    def tier(self) -> str:
        """The tier that answered."""


_tracked: list[Counted] = []


def count(group: str, name: str, amount: float = 1) -> None:
    """Add to one counter, e.g. ``count("store", "hits")``."""
    with _lock:
        _counts[group, name] += amount  # type: ignore[assignment]  # seconds are counted too


def track(plan: Counted) -> None:
    """Count a new Plan, and its calls from now on."""
    with _lock:
        _tracked.append(plan)


def count_plan(plan: Counted, decision: Decision, origin: str) -> None:
    """Count a new Plan and its calls, where its code was, and what was missed."""
    track(plan)
    count("origins", origin)
    if decision.miss:
        p = decision.problem
        count("misses", f"{p.op} {p.dtype} {p.layout}, aligned to {p.align} bytes: {decision.miss}")
    if decision.tier == "fallback":
        count("fallbacks", decision.silent[-1][1])


def stats() -> dict[str, Any]:
    """What happened in this process so far.

    Keys:
        plans, calls: by tier; ``calls`` may lack a few where threads share a Plan.
        origins: Plans by where the code was: memory, image, store, nvrtc.
        store: hits in all and per level, misses, writes, faults, quarantined.
        jit: compiles, failures, seconds.
        misses: Plans for which no image fitted, by kind of problem and what happened.
        fallbacks, rejected: by reason.
        captures: kernels that were refused because a CUDA graph was being captured.
        background: queued, swaps, failures.
        specialised: kernels, failures.
    """
    with _lock:
        counts, tracked = dict(_counts), list(_tracked)
    plans: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for plan in tracked:
        plans[plan.tier] += 1
        calls[plan.tier] += plan.calls
    report: dict[str, Any] = {"plans": dict(plans), "calls": dict(calls)}
    for group in GROUPS:
        report[group] = {name: value for (owner, name), value in sorted(counts.items()) if owner == group}
    return report


def reset() -> None:
    """Start again from nothing."""
    with _lock:
        _counts.clear()
        _tracked.clear()


def _after_fork() -> None:
    """In the child a lock may have been held by a thread that is gone. Counting starts again."""
    global _lock
    _lock = threading.Lock()
    reset()


os.register_at_fork(after_in_child=_after_fork)
