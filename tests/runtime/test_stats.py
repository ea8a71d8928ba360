"""The counters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilery.stats import GROUPS, count, reset, stats, track


class FakePlan:
    def __init__(self, tier: str, calls: int) -> None:
        self.tier = tier
        self.calls = calls


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    yield
    reset()


def test_nothing_happened() -> None:
    assert stats() == {name: {} for name in ("plans", "calls", *GROUPS)}


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
