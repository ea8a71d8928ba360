"""tilery.prepare: everything ready before traffic, in parallel within bounds, and again where it stopped."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import tilery
from tests.runtime import simulated
from tests.runtime.simulated import problem
from tests.runtime.world import STREAM, World
from tilery import jit, plan, policy, warmup
from tilery.errors import CompileError, InvalidInput, UnknownName
from tilery.jit import Compiled
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.problem import Problem
from tilery.stats import stats
from tilery.warmup import Prepared, prepare

SIZES = [(64, 64, 64), (65, 64, 64), (512, 512, 512), (8192, 8192, 8192)]


def uncovered() -> list[Problem]:
    return [problem(m, n, k, layout="tt") for m, n, k in SIZES]


def test_what_is_prepared_is_ready(world: World) -> None:
    wanted = [problem(), *uncovered()]
    report = prepare([*wanted, *wanted])
    assert [one.problem for one in report.results] == wanted
    assert {one.tier for one in report.results} == {"model", "jit"}
    assert report.errors == ()
    assert sum(report.origins.values()) == 5
    assert report.origins["nvrtc"] == len(world.compiles) == len(set(world.compiles))
    before = len(world.loads), len(world.compiles)
    for one in report.results:
        assert plan_for(one.problem, 0).decision.variant.name == one.variant
    assert (len(world.loads), len(world.compiles)) == before


@pytest.mark.parametrize("mode", policy.JIT_MODES)
def test_each_mode(world: World, mode: str) -> None:
    policy.use(Policy(mode))
    report = prepare(uncovered())
    assert {one.tier for one in report.results} == ({"fallback"} if mode == "off" else {"jit"})
    before = len(world.loads)
    for one in uncovered():
        made = plan_for(one, 0)
        assert not made.decision.pending
    assert len(world.loads) == before
    assert stats()["background"] == {}


def test_one_that_fails_stops_no_other(world: World) -> None:
    policy.use(Policy("require"))
    world.fault = lambda source, arch, v: CompileError("NVRTC failed", log="a log") if "64x64x64" in v.name else None
    report = prepare([*uncovered(), problem()])
    assert 0 < len(report.errors) < 5
    assert all("a log" in one.error for one in report.errors)
    assert "NVRTC failed" in str(report)
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_results_come_one_by_one_in_the_callers_thread(world: World) -> None:
    seen: list[Prepared] = []
    threads = set()

    def progress(result: Prepared) -> None:
        seen.append(result)
        threads.add(threading.get_ident())

    report = prepare(uncovered(), progress=progress)
    assert sorted(map(repr, seen)) == sorted(map(repr, report.results))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(("workers", "free", "most"), [(1, 1 << 40, 1), (3, 1 << 40, 3), (3, 600 << 20, 2), (3, 0, 1)])
def test_bounds_of_threads_and_memory(
    world: World, monkeypatch: pytest.MonkeyPatch, workers: int, free: int, most: int
) -> None:
    lock, running, peak = threading.Lock(), 0, 0

    def compiling(variant: Any) -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.1)
        with lock:
            running -= 1

    world.compiling = compiling
    monkeypatch.setattr(warmup, "_free_bytes", lambda: free)
    policy.use(Policy("require"))
    wanted = [problem(*SIZES[i], dtype=d, align=a, precision=p, layout="tt", out_dtype=d) for i in (0, 3) for d, p in
              (("bf16", "ieee"), ("f32", "tf32")) for a in (1, 16)]  # fmt: skip
    prepare(wanted, workers=workers)
    assert len(world.compiles) >= 4
    assert peak == most


def test_free_memory_here() -> None:
    assert 1 << 20 < warmup._free_bytes() < 1 << 50


@pytest.mark.parametrize(("limit", "free"), [("max", 3 << 20), (str(2 << 20), 1 << 20), (None, 3 << 20)])
def test_the_limit_of_a_control_group_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str | None, free: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 8192 kB\nMemAvailable: 3072 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{1 << 20}\n")
    monkeypatch.setattr(warmup, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(warmup, "CGROUP", tmp_path)
    assert warmup._free_bytes() == free


def test_an_interrupted_run_drops_what_has_not_begun(world: World) -> None:
    def interrupt(result: Prepared) -> None:
        raise KeyboardInterrupt

    many = [problem(m, layout="tt") for m in range(1, 200)]
    with pytest.raises(KeyboardInterrupt):
        prepare(many, workers=1, progress=interrupt)
    assert len(plan._memory.plans) < 150


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stub of NVRTC, and the variants that it compiled; the store and all above it are real."""
    compiled: list[str] = []

    def compile_source(source: str, name: str, headers: Any, options: Any) -> Compiled:
        compiled.append(name)
        return Compiled(f"code of {name} for {options[0]}".encode(), "", 0.0)

    monkeypatch.setattr(jit, "compile_source", compile_source)
    monkeypatch.setattr(jit, "toolchain", lambda: simulated.NVRTC)
    monkeypatch.setattr(plan.choose, "__defaults__", ({}, lambda: simulated.NVRTC))
    plan.clear()
    return compiled


def of_the_pack() -> list[Problem]:
    """Large enough that no image of the fallback would be faster than what is compiled."""
    return [tilery.request(m=16 * m, n=16 * n, k=16 * k, dtype="bf16", layout="tt") for m, n, k in SIZES]


def test_without_a_gpu_into_the_store_and_resumed(compiler: list[str], tmp_path: Path) -> None:
    with policy.scope(Policy(store=tmp_path)):
        first = prepare(of_the_pack()[:2], arch="sm_90a")
        assert (sum(first.origins.values()), first.origins["nvrtc"]) == (2, len(compiler))
        second = prepare(of_the_pack(), arch="sm_90a")
        assert second.origins["store"] >= 1
        assert second.errors == ()
        assert len(compiler) == len(set(compiler))
        assert prepare(of_the_pack(), arch="sm_90a").origins == {"store": 4}
        assert prepare(of_the_pack(), arch="sm_80").origins["nvrtc"] == len(set(compiler))


@pytest.mark.parametrize(("arguments", "error"), [({"workers": 0}, InvalidInput), ({"arch": "sm_90"}, UnknownName)])
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        prepare([], **arguments)


def test_nothing_to_do(world: World) -> None:
    report = prepare([])
    assert (report.results, report.origins, report.errors) == ((), {}, ())


def test_a_stream_is_not_asked_for(world: World) -> None:
    prepare([problem()])
    world.capturing = True
    plan_for(problem(), 0, STREAM)
