"""Counters. Counting happens where something slow happens anyway; a call itself only adds one to its Plan."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, Protocol

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


def stats() -> dict[str, Any]:
    """What happened in this process so far.

    Keys: ``plans`` and ``calls`` by tier, ``store`` (hits, misses, writes, faults, quarantined), ``jit``
    (compiles, failures, seconds), ``fallbacks`` and ``rejected`` by reason. ``calls`` may lack a few where threads
    share a Plan.
    """
    with _lock:
        counts, tracked = dict(_counts), list(_tracked)
    plans: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for plan in tracked:
        plans[plan.tier] += 1
        calls[plan.tier] += plan.calls
    report: dict[str, Any] = {"plans": dict(plans), "calls": dict(calls)}
    for group in ("store", "jit", "fallbacks", "rejected"):
        report[group] = {name: value for (owner, name), value in sorted(counts.items()) if owner == group}
    return report


def reset() -> None:
    """Start again from nothing."""
    with _lock:
        _counts.clear()
        _tracked.clear()
