from __future__ import annotations

import pytest

from tests.runtime.fake_cuda import FakeArray, FakeGpu
from tests.runtime.world import world as world
from tilery import arrays, ops, plan


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """GPUs made of host memory."""
    fake = FakeGpu()
    monkeypatch.setitem(arrays._by_type, FakeArray, fake.adapter)
    monkeypatch.setattr(plan, "plan_for", fake.plan_for)
    monkeypatch.setattr(ops, "_memo", {})
    return fake
