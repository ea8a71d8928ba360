"""A measurement in a running program, on a made-up GPU: its budget, its memory, its lock, its reasons to do nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.simulated import problem
from tests.tune.conftest import Bench, names, pack
from tests.tune.fake_driver import RESIDENT
from tilery import device, policy
from tilery.asked import request
from tilery.generator.records import Record
from tilery.policy import Policy
from tilery.problem import Problem
from tilery.stats import reset, stats
from tilery.store.lock import FileLock
from tilery.tune import identity, online

P = problem(96, 80, 64)


@pytest.fixture
def gpu(driver: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    driver.capturing = False
    monkeypatch.setattr(device, "capturing", lambda stream, ordinal: driver.capturing)
    reset()
    yield driver
    reset()
    assert (driver.graphs, driver.events, driver.streams, driver.buffers) == (0, 0, 0, {})


def measure(asked: Problem = P, **changes: Any) -> Record | None:
    settings = Policy(**{"store": None, "tune": "on_repeat"} | changes)
    with policy.scope(settings):
        return online.measure(asked, 0, pack(), settings)


def tuned() -> dict[str, float]:
    found: dict[str, float] = stats()["tune"]
    return {name: count for name, count in found.items() if name not in ("seconds", "gpu_ms")}


def test_a_record_of_all(gpu: Bench) -> None:
    fast = names(P)[-1]
    gpu.us = lambda name: 5.0 if name == fast else 9.0
    record = measure()
    assert record is not None
    assert set(record.times) == set(names(P))
    assert min(record.times, key=lambda name: record.times[name].us) == fast
    assert {time.resident for time in record.times.values()} == {RESIDENT}
    launched = {name: pack().variants[name] for name in record.times}
    assert gpu.occupancy == {name: (variant.threads, variant.shared_bytes) for name, variant in launched.items()}
    assert tuned() == {"tuned": 1}
    assert stats()["tune"]["seconds"] > 0


def test_no_stream_is_ever_captured(gpu: Bench) -> None:
    """While one is, cuCtxSynchronize fails for the whole program, and it has done nothing wrong."""
    assert measure() is not None
    assert gpu.replayed
    allowed = {"cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"}
    assert {name for name in gpu.called if "Capture" in name or "CtxSynchronize" in name} <= allowed


def test_the_budget_is_kept(gpu: Bench) -> None:
    gpu.us = lambda name: 50.0
    assert measure(tune_budget_ms=5) is not None
    assert 0 < gpu.clock <= 5000.0 + 10 * 50.0  # and a graph in front of each pass, which nobody times


def test_what_cannot_be_done_within_the_budget_is_not_begun(gpu: Bench) -> None:
    large = request(m=30000, n=30000, k=30000, dtype="bf16", layout="nt")
    assert measure(large, tune_budget_ms=1) is None
    assert gpu.launched == []
    assert tuned() == {"skipped, over the budget": 1}


def test_what_takes_longer_than_predicted_is_stopped(gpu: Bench) -> None:
    gpu.us = lambda name: 3000.0
    assert measure(tune_budget_ms=20) is None
    assert tuned() == {"skipped, over the budget": 1}
    assert gpu.clock <= 20_000


def test_little_memory(gpu: Bench) -> None:
    gpu.memory = 1 << 17
    assert measure() is None
    assert tuned() == {"skipped, no memory": 1}
    gpu.memory = 1 << 18
    assert measure() is None  # there would be room for operands, not for what goes in front of them
    assert tuned() == {"skipped, no memory": 2}


def test_a_capture_puts_it_off(gpu: Bench) -> None:
    gpu.capturing = True
    with pytest.raises(online.Busy):
        measure()
    assert gpu.launched == []


def test_a_capture_that_begins_meanwhile_puts_it_off(gpu: Bench) -> None:
    def us(name: str) -> float:
        gpu.capturing = len(gpu.launched) == 2
        return 5.0

    gpu.us = us
    with pytest.raises(online.Busy):
        measure()
    assert len(gpu.launched) == 2
    assert gpu.replayed == []


def test_another_process_that_measures_puts_it_off(gpu: Bench, tmp_path: Path) -> None:
    path = identity.lock_path(identity.uuid_of(0))
    assert path.parent == tmp_path
    lock = FileLock(path)
    assert lock.acquire(time.monotonic())
    with pytest.raises(online.Busy, match="another process"):
        measure()
    lock.release()
    assert measure() is not None


def test_a_wrong_candidate_is_counted_and_in_no_record(gpu: Bench) -> None:
    wrong = names(P)[0]
    gpu.wrong.add(wrong)
    record = measure()
    assert record is not None
    assert wrong not in record.times
    assert tuned() == {"tuned": 1, f"wrong, {wrong}": 1}


def test_nothing_to_choose_from(gpu: Bench) -> None:
    assert measure(request(m=64, n=64, k=64, dtype="s8", layout="nn")) is None
    assert tuned() == {"skipped, nothing to choose from": 1}
    assert gpu.launched == []
