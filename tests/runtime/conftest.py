from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from tilery import arrays, ops, plan
from tilery.problem import Problem

from tests.runtime.fake_cuda import FakeAdapter, FakeArray, FakePlan


@dataclass
class FakeGpu:
    """What happened on the fake GPU."""

    adapter: FakeAdapter = field(default_factory=FakeAdapter)
    plans: list[FakePlan] = field(default_factory=list)

    def plan_for(self, problem: Problem, ordinal: int, stream: int | None = None) -> FakePlan:
        self.plans.append(FakePlan(problem, ordinal))
        return self.plans[-1]

    @property
    def launches(self) -> int:
        return sum(len(plan.launches) for plan in self.plans)

    def array(self, data: Any, ordinal: int = 0) -> FakeArray:
        return FakeArray(data, ordinal)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """GPUs made of host memory."""
    fake = FakeGpu()
    monkeypatch.setitem(arrays._by_type, FakeArray, fake.adapter)
    monkeypatch.setattr(plan, "plan_for", fake.plan_for)
    monkeypatch.setattr(ops, "_memo", {})
    return fake
