"""Counters. Counting happens where something slow happens anyway; a call itself only adds one to its Plan."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from .decision import Decision
    from .problem import Problem

GROUPS = (
    "origins",
    "store",
    "jit",
    "tune",
    "records",
    "misses",
    "fallbacks",
    "rejected",
    "captures",
    "background",
    "specialised",
    "reference",
    "trace",
)
LEVELS = ("memory", "seed", "user")
"""Of the store, in the order in which they are looked into."""

MAX_UNCOVERED = 1000
"""Uncovered Problems that a report lists one by one; the others are only counted."""

Counts = Mapping[tuple[str, str], float]

_counts: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


class Counted(Protocol):
    """What `track` keeps: a Plan."""

    decision: Decision  # the choice that it comes from
    calls: int  # launches so far

    @property
    def tier(self) -> str:
        """The tier that answered."""


class Served(NamedTuple):
    """Calls that were served alike: by one or several Plans of a Problem and tier; ``miss`` as in `Decision`, and where
    there is none the Problem may be left out."""

    problem: Problem | None
    tier: str
    calls: int
    miss: str
    plans: int = 1


_tracked: dict[int, Counted] = {}
# Of Plans that were given up: calls and Plans, by tier, and where no image fitted by Problem.
_former: dict[tuple[Problem | None, str, str], tuple[int, int]] = {}


def count(group: str, name: str, amount: float = 1) -> None:
    """Add to one counter, e.g. ``count("store", "hits")``."""
    with _lock:
        _counts[group, name] += amount  # type: ignore[assignment]  # seconds are counted too


def counts() -> Counts:
    """All counters as they are now."""
    with _lock:
        return dict(_counts)


def track(plan: Counted) -> None:
    """Count a new Plan, and its calls from now on."""
    with _lock:
        _tracked[id(plan)] = plan


def retire(plan: Counted) -> None:
    """Keep the calls of a Plan, and not the Plan."""
    with _lock:
        if _tracked.pop(id(plan), None) is None:
            return
        miss = plan.decision.miss
        key = (plan.decision.problem if miss else None, plan.tier, miss)
        calls, plans = _former.get(key, (0, 0))
        _former[key] = (calls + plan.calls, plans + 1)


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
        memo: calls that found their Plan made (``hits``), and Plans (``misses``).
        hit_rates: between 0 and 1, of the memo and of each level of the store, among the look-ups that got to it;
            a level that was never asked is not there.
        origins: Plans by where the code was: memory, image, store, nvrtc.
        store: hits in all and per level, misses, writes, faults, quarantined.
        jit: compiles, failures, seconds.
        tune: what the tuner did, and seconds.
        misses: Plans for which no image fitted, by kind of problem and what happened.
        fallbacks, rejected: by reason.
        captures: kernels that were refused because a CUDA graph was being captured.
        background: queued, swaps, failures.
        specialised: kernels, failures.
        reference: calls on the CPU that no kernel could serve; they are in no tier.
        trace: failures of writing it.
        uncovered: the Problems that no image fits, most calls first: problem, calls, what happens (``miss``).
        uncovered_others: how many more there are, and their calls.
        Whatever else is counted has a key of its own, as records: dropped.
    """
    with _lock:
        counted, tracked, former = dict(_counts), list(_tracked.values()), dict(_former)
    # What serves now comes last: its ``miss`` is the one that is reported.
    rows = [Served(problem, tier, calls, miss, plans) for (problem, tier, miss), (calls, plans) in former.items()]
    rows += [Served(p.decision.problem, p.tier, p.calls, p.decision.miss) for p in tracked]
    return report(rows, counted)


def report(rows: Iterable[Served], counted: Counts) -> dict[str, Any]:
    """The report of `stats` from what was served and the counters, of this process or of a trace."""
    plans: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    missed: dict[Problem, tuple[int, str]] = {}
    hits = 0
    for row in rows:
        plans[row.tier] += row.plans
        calls[row.tier] += row.calls
        hits += max(0, row.calls - row.plans)
        if row.miss and row.problem:
            missed[row.problem] = (missed.get(row.problem, (0, ""))[0] + row.calls, row.miss)
    memo = {"hits": hits, "misses": plans.total()} if plans else {}
    made: dict[str, Any] = {"plans": dict(plans), "calls": dict(calls), "memo": memo}
    made["hit_rates"] = _hit_rates(memo, counted)
    for group in dict.fromkeys((*GROUPS, *sorted(owner for owner, _ in counted))):
        made[group] = {name: value for (owner, name), value in sorted(counted.items()) if owner == group}
    return made | _uncovered(missed)


def _hit_rates(memo: Mapping[str, int], counted: Counts) -> dict[str, float]:
    rates = {"memo": memo["hits"] / sum(memo.values())} if memo else {}
    left = counted.get(("store", "hits"), 0) + counted.get(("store", "misses"), 0)
    for level in LEVELS:
        if left > 0:
            hits = counted.get(("store", f"{level}_hits"), 0)
            rates[level] = hits / left
            left -= hits
    return rates


def _uncovered(missed: Mapping[Problem, tuple[int, str]]) -> dict[str, Any]:
    from dataclasses import asdict

    ordered = sorted(missed.items(), key=lambda item: -item[1][0])
    rest = [calls for _, (calls, _) in ordered[MAX_UNCOVERED:]]
    return {
        "uncovered": [
            {"problem": asdict(problem), "calls": calls, "miss": miss}
            for problem, (calls, miss) in ordered[:MAX_UNCOVERED]
        ],
        "uncovered_others": {"problems": len(rest), "calls": sum(rest)},
    }


def reset() -> None:
    """Start again from nothing."""
    with _lock:
        _counts.clear()
        _tracked.clear()
        _former.clear()


def _after_fork() -> None:
    """In the child a lock may have been held by a thread that is gone. Counting starts again."""
    global _lock
    _lock = threading.Lock()
    reset()


os.register_at_fork(after_in_child=_after_fork)
