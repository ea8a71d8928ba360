"""The tuner on a real GPU: plausible times, records, untouched inputs, and autotuning of a program that runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilery
from tests.gpu.compare import check
from tests.gpu.memory import random
from tilery import background, device, plan, policy
from tilery.asked import request
from tilery.device import DeviceInfo
from tilery.generator.records import ranked, read_file
from tilery.lookup import record_key
from tilery.pack import builtin
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.problem import ITEM_BYTES, Problem
from tilery.requirements import compute_dtype
from tilery.stats import reset
from tilery.store import store_for
from tilery.tune import online
from tilery.tune.buffers import block
from tilery.tune.gpu import Gpu
from tilery.tune.session import tune
from tilery.tune.tuner import Tuner

pytestmark = pytest.mark.gpu

PROBLEMS = [
    request(m=16, n=4096, k=4096, dtype="bf16", layout="nt"),
    request(m=2048, n=2048, k=2048, dtype="bf16", layout="nn"),
    request(m=1000, n=1000, k=1000, dtype="f16", layout="tn", align=2),
    request(m=512, n=512, k=512, dtype="f32", layout="nn", precision="tf32"),
    request(m=509, n=251, k=127, dtype="f32", layout="tt"),
    request(m=256, n=256, k=1024, dtype="s8", layout="nt", batch=3),
    request(m=100, n=60, k=200, dtype="bf16", layout="any"),
    request(m=128, n=256, k=64, dtype="f16", layout="nt", bias=True, activation="gelu", accumulate=True),
]
# Operations of an SM in a clock that no GPU of today exceeds.
MOST_PER_CLOCK = {"bf16": 16384, "f16": 16384, "tf32": 8192, "f32": 512, "s8": 32768}


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path) -> Iterator[None]:
    policy.use(Policy(store=tmp_path / "store"))
    plan.clear()
    reset()
    yield
    assert background.workers.wait(120)
    plan.clear()


def test_records(gpu: DeviceInfo, tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    report = tune(PROBLEMS, out=out)
    assert not report.wrong, report
    assert set(report.counts) <= {"measured", "noisy"}, report
    found = {record.key: record for record in read_file(out)}
    for result in report.results:
        flops = 2 * result.problem.m * result.problem.n * result.problem.k * result.problem.batch
        best = min(result.times.values())
        per_clock = MOST_PER_CLOCK[compute_dtype(result.problem)]
        assert all(one.us > 0.5 for one in result.times.values()), result
        assert flops / best.us / 1e6 < per_clock * gpu.sms * gpu.clock_mhz * 1e-6, result
        if result.status == "measured":
            record = found[record_key(result.problem)]
            assert set(record.times) == set(result.times)
            assert record.gpu == gpu.gpu
            assert record.driver
            assert record.toolchain
    again = tune([r.problem for r in report.results if r.status == "measured"], out=out)
    assert set(again.counts) == {"kept"}


def test_the_store_serves_what_was_measured(gpu: DeviceInfo) -> None:
    store = store_for(policy.current())
    report = tune(PROBLEMS[:2], store=store)
    for result in report.results:
        if result.status == "measured":
            chosen = plan_for(result.problem, 0).decision
            assert chosen.tier == "exact"
            assert chosen.variant.name == result.best
            us = {name: one.us for name, one in result.times.items()}
            assert ranked(us, result.default)[0] == result.best
    assert set(tune(PROBLEMS[:2], store=store).counts) <= {"kept", "noisy"}


@pytest.mark.parametrize("asked", PROBLEMS, ids=str)
def test_inputs_are_untouched(gpu: DeviceInfo, asked: Problem) -> None:
    with Gpu(0) as bench:
        tuner = Tuner(bench, builtin(), policy.current(), store_for(policy.current()))
        tuner.measure(tuner.ask(asked))
        for dtype, pool in bench._pools.items():
            got = np.empty(pool.filled * ITEM_BYTES[dtype], np.uint8)
            device.call("cuMemcpyDtoH", got.ctypes.data, pool.address, got.nbytes)
            assert (got.view(block(dtype).dtype) == np.resize(block(dtype), pool.filled)).all()


def test_kernels_with_constants_are_measured_beside_the_best(gpu: DeviceInfo, tmp_path: Path) -> None:
    (result,) = tune(PROBLEMS[:1], out=tmp_path / "out", specialise=1).results
    assert len(result.specialised) == 2
    assert not any("_m16_" in name for record in read_file(tmp_path / "out") for name in record.times)


def operands(m: int = 333, n: int = 776, k: int = 512) -> tuple[Any, Any]:
    return random((m, k), torch.bfloat16), random((n, k), torch.bfloat16).t()


def on_repeat(tmp_path: Path, **changes: Any) -> None:
    policy.use(Policy(**{"store": tmp_path / "store", "tune": "on_repeat", "tune_after": 8} | changes))


def tuned() -> dict[str, float]:
    assert background.workers.wait(120)
    found: dict[str, float] = tilery.stats()["tune"]
    return found


def test_a_program_that_runs_gets_the_winner(gpu: DeviceInfo, tmp_path: Path) -> None:
    on_repeat(tmp_path, tune_budget_ms=1000)
    a, b = operands()
    for _ in range(8):
        got = tilery.gemm(a, b)
    check(got, a, b)
    counts = tuned()
    assert counts.get("tuned", 0) + counts.get("skipped, noisy", 0) == 1, counts
    assert counts["gpu_ms"] <= 1000
    check(tilery.gemm(a, b), a, b)
    asked = request(m=333, n=776, k=512, dtype="bf16", layout="nt")
    if "tuned" in counts:
        assert plan_for(asked, 0).tier == "exact"
    before = tuned()
    for _ in range(20):
        tilery.gemm(a, b)
    assert tuned() == before


def test_nothing_is_measured_in_a_capture(gpu: DeviceInfo, tmp_path: Path) -> None:
    on_repeat(tmp_path)
    a, b = operands()
    tilery.gemm(a, b)
    out = torch.empty_like(tilery.gemm(a, b))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            tilery.gemm(a, b, out=out)
    assert tuned() == {}
    out.zero_()
    graph.replay()
    check(out, a, b)


def test_a_capture_survives_a_measurement(gpu: DeviceInfo, tmp_path: Path) -> None:
    """The program captures graphs again and again while its other problems are measured in the background."""
    on_repeat(tmp_path, tune_budget_ms=1000)
    warm = operands(64, 72, 80)
    out = torch.empty_like(tilery.gemm(*warm))
    others = [operands(128 * (i + 1)) for i in range(6)]
    for _ in range(8):
        for a, b in others:
            tilery.gemm(a, b)
    done = threading.Event()
    threading.Thread(target=lambda: (background.workers.wait(120), done.set())).start()
    captures = 0
    while not done.is_set() or captures < 3:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tilery.gemm(*warm, out=out)
        out.zero_()
        graph.replay()
        check(out, *warm)
        captures += 1
    assert tuned()["queued"] >= 6
    assert "failures" not in tuned()


def test_a_measurement_leaves_no_memory_behind(gpu: DeviceInfo, tmp_path: Path) -> None:
    settings = Policy(store=tmp_path / "store", tune="on_repeat", tune_budget_ms=1000)
    asked = request(m=512, n=512, k=512, dtype="bf16", layout="nt")
    online.measure(asked, 0, builtin(), settings)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(3):
        online.measure(asked, 0, builtin(), settings)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] >= before - (32 << 20)
