"""The counters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.simulated import H200, NVRTC, pack, problem
from tilery.dispatch import choose
from tilery.policy import Policy
from tilery.stats import GROUPS, count, reset, stats, track


class FakePlan:
    def __init__(self, tier: str, calls: int) -> None:
        self.decision = choose(problem(), H200, pack(), Policy(), {}, lambda: NVRTC)
        self.tier = tier
        self.calls = calls


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    yield
    reset()


def test_nothing_happened() -> None:
    empty = {name: {} for name in ("plans", "calls", "memo", "hit_rates", *GROUPS)}
    assert stats() == empty | {"uncovered": [], "uncovered_others": {"problems": 0, "calls": 0}}


def test_counts_and_calls() -> None:
    count("store", "hits")
    count("store", "hits")
    count("jit", "seconds", 0.5)
    for plan in (FakePlan("model", 3), FakePlan("model", 4), FakePlan("jit", 1)):
        track(plan)
    report = stats()
    assert report["store"] == {"hits": 2}
    assert report["jit"] == {"seconds": 0.5}
    assert report["plans"] == {"model": 2, "jit": 1}
    assert report["calls"] == {"model": 7, "jit": 1}
    assert report["memo"] == {"hits": 5, "misses": 3}
