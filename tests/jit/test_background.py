"""jit='background': something serves at once, the compiled kernel replaces it, and no error reaches a call."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.runtime import simulated
from tests.runtime.simulated import H200, problem
from tests.runtime.world import STREAM, Params, World, driver_error
from tilery import background, plan, policy
from tilery.errors import CompileError
from tilery.generator.variant import Variant
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.stats import stats

UNCOVERED = {"layout": "tt"}  # no image of the simulated pack has it


class Gate:
    """Holds compilations back until it is opened."""

    def __init__(self) -> None:
        self.opened, self.running, self.most = threading.Event(), 0, 0
        self.lock = threading.Lock()

    def __call__(self, variant: Variant) -> None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.opened.wait(60)
        with self.lock:
            self.running -= 1


@pytest.fixture
def gate(world: World) -> Iterator[Gate]:
    policy.use(Policy("background"))
    made = world.compiling = Gate()
    yield made
    made.opened.set()


def finish(gate: Gate) -> None:
    gate.opened.set()
    assert background.workers.wait(60)


def test_the_fallback_serves_at_once_and_is_replaced(world: World, gate: Gate) -> None:
    first = plan_for(problem(**UNCOVERED), 0)
    assert (first.tier, first.decision.source) == ("fallback", "image")
    assert first.decision.pending == "gemm_mma_bf16_tt_64x64x64_s3_a16"
    assert plan_for(problem(**UNCOVERED), 0) is first
    finish(gate)
    second = plan_for(problem(**UNCOVERED), 0)
    assert (second.tier, second.decision.variant.name) == ("jit", first.decision.pending)
    assert not second.decision.pending
    first.launch(Params(1), STREAM)  # the old kernel stays loaded
    second.launch(Params(2), STREAM)
    assert [args[0] for args in world.launches] == [
        f"kernel {first.decision.variant.name}",
        f"kernel {first.decision.pending}",
    ]
    assert stats()["background"] == {"queued": 1, "swaps": 1}


def test_nvrtc_is_not_even_looked_for_by_the_call(world: World, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    tools = plan.choose.__defaults__[1]  # type: ignore[index]
    look = lambda: asked.append(threading.current_thread().name) or tools()  # noqa: E731
    monkeypatch.setattr(plan.choose, "__defaults__", ({}, look))
    plan_for(problem(**UNCOVERED), 0)
    assert threading.current_thread().name not in asked
    finish(gate)
    assert asked


def test_what_is_compiled_serves_another_problem_at_once(world: World, gate: Gate) -> None:
    plan_for(problem(**UNCOVERED), 0)
    finish(gate)
    other = plan_for(problem(513, **UNCOVERED), 0)
    assert other.tier == "jit"
    assert not other.decision.pending
    assert len(world.compiles) == 1


def test_a_lesser_one_that_is_compiled_serves_until_the_best_is(world: World, gate: Gate) -> None:
    small = plan_for(problem(64, 64, 64, **UNCOVERED), 0)
    finish(gate)
    gate.opened.clear()
    large = plan_for(problem(8192, 8192, 8192, **UNCOVERED), 0)
    assert large.tier == "jit"
    assert large.decision.variant.name == small.decision.pending
    assert large.decision.pending not in ("", small.decision.pending)
    finish(gate)
    assert plan_for(large.decision.problem, 0).decision.variant.name == large.decision.pending


def test_many_threads_over_the_swap(world: World, gate: Gate) -> None:
    stop, served, errors = threading.Event(), set(), []

    def call() -> None:
        try:
            while not stop.is_set():
                made = plan_for(problem(**UNCOVERED), 0)
                made.launch(Params(1), STREAM)
                served.add((made.tier, id(made)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(world.launches) < 50:
        time.sleep(0.001)
    finish(gate)
    seen = len(world.launches)
    while len(world.launches) < seen + 50:
        time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(tier for tier, _ in served) == ["fallback", "jit"]
    assert len(world.compiles) == 1


def test_workers_are_bounded_and_variants_are_compiled_once(world: World, gate: Gate) -> None:
    policy.use(Policy("background", compile_workers=2))
    sizes = [(64, 64, 64), (65, 64, 64), (8192, 8192, 8192), (8191, 8192, 8192), (512, 512, 512)]
    for m, n, k in sizes:
        plan_for(problem(m, n, k, **UNCOVERED), 0)
    time.sleep(0.1)
    finish(gate)
    assert 1 <= gate.most <= 2
    assert len(world.compiles) == len(set(world.compiles)) >= 2
    assert {plan_for(problem(m, n, k, **UNCOVERED), 0).tier for m, n, k in sizes} == {"jit"}


def test_a_failing_compile_gives_way_to_the_next_in_the_background_too(world: World, gate: Gate) -> None:
    bad = plan_for(problem(**UNCOVERED), 0).decision.pending
    world.fault = lambda source, arch, v: CompileError("NVRTC failed") if v.name == bad else None
    finish(gate)
    made = plan_for(problem(**UNCOVERED), 0)
    assert made.tier == "jit"
    assert made.decision.variant.name != bad
    assert any("NVRTC failed" in reason for name, reason in made.decision.rejections if name == bad)
    plan_for(problem(513, **UNCOVERED), 0)
    assert background.workers.wait(60)
    assert [name for _, name in world.compiles].count(bad) == 1
    assert stats()["rejected"] == {"NVRTC failed": 1}


@pytest.mark.parametrize(
    "fault", [driver_error("cuLibraryLoadData", "OUT_OF_MEMORY"), RuntimeError("unexpected"), CompileError("no")]
)
def test_an_error_is_remembered_and_never_raised_or_tried_again(world: World, gate: Gate, fault: Exception) -> None:
    world.fault = lambda source, arch, v: fault if source != "image" else None
    first = plan_for(problem(**UNCOVERED), 0)
    finish(gate)
    compiles = len(world.compiles)
    for _ in range(3):
        assert plan_for(problem(**UNCOVERED), 0).tier == "fallback"
    assert background.workers.wait(60)
    assert len(world.compiles) == compiles
    assert stats()["rejected"]
    told = str(plan.decide(problem(**UNCOVERED), replace(H200, ordinal=0), simulated.pack(), policy.current()))
    assert str(fault).partition("\n")[0] in told
    assert first.decision.pending in told


def test_nothing_is_queued_during_a_capture(world: World, gate: Gate) -> None:
    plan_for(problem(layout="any"), 0)  # loads the fallback
    world.capturing = True
    made = plan_for(problem(**UNCOVERED), 0, STREAM)
    assert made.tier == "fallback"
    assert background.workers.wait(0)
    assert stats()["background"] == {}
    world.capturing = False
    plan_for(problem(**UNCOVERED), 0, STREAM)
    finish(gate)
    world.capturing = True
    assert plan_for(problem(**UNCOVERED), 0, STREAM).tier == "jit"


def test_every_load_spares_the_captures_of_other_threads(world: World, gate: Gate) -> None:
    plan_for(problem(), 0)
    plan_for(problem(**UNCOVERED), 0)
    finish(gate)
    assert world.relaxed_loads == len(world.loads) == 3


def test_a_forced_variant_is_waited_for(world: World, gate: Gate) -> None:
    policy.use(Policy("background", force_variant="gemm_mma_bf16_tt_64x64x64_s3"))
    gate.opened.set()
    assert plan_for(problem(**UNCOVERED), 0).tier == "forced"


def test_clear_forgets_what_is_under_way(world: World, gate: Gate) -> None:
    plan_for(problem(**UNCOVERED), 0)
    plan.clear()
    finish(gate)
    assert plan_for(problem(**UNCOVERED), 0).decision.pending


def test_covered_problems_are_not_touched(world: World, gate: Gate) -> None:
    made = plan_for(problem(), 0)
    assert (made.tier, made.decision.pending, made.decision.miss) == ("model", "", "")
    assert world.compiles == []


@pytest.mark.parametrize(
    ("mode", "miss"),
    [
        ("auto", "NVRTC compiles gemm_mma_bf16_tt_64x64x64_s3_a16 before it serves"),
        ("require", "NVRTC compiles"),
        ("off", r"the fallback serves \(jit='off'\)"),
        ("background", "serves while gemm_mma_bf16_tt_64x64x64_s3_a16 is compiled in the background"),
    ],
)
def test_the_decision_says_what_a_miss_does(world: World, mode: str, miss: str) -> None:
    decision = plan.decide(problem(**UNCOVERED), H200, simulated.pack(), Policy(mode))
    assert re.search(miss, decision.miss)
    assert f"no image fits: {decision.miss}" in str(decision)
    assert decision.to_dict()["miss"] == decision.miss


EXIT = """
import threading, time
from tilery import background
started = threading.Event()
def task():
    started.set()
    time.sleep(0.3)
    print("done", flush=True)
background.workers.submit(task, 1)
for _ in range(1000):
    background.workers.submit(lambda: time.sleep(60), 1)
started.wait()
"""


def test_the_process_ends_cleanly_in_the_middle() -> None:
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_task_that_raises_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    workers, done = background.Workers(), threading.Event()

    def fail() -> None:
        raise RuntimeError("oops")

    workers.submit(fail, 1)
    workers.submit(done.set, 1)
    assert done.wait(10)
    assert workers.wait(10)
    assert "oops" in caplog.text
    workers.close()
    workers.submit(fail, 1)
    assert workers.wait(0)


IMPORTS = """
import sys
from tilery import jit
from tilery.pack import builtin
variant = next(iter(builtin().variants.values()))
assert "jinja2" not in sys.modules
jit.ready()
before = set(sys.modules)
jit._render(variant)
print(sorted({name.split(".")[0] for name in set(sys.modules) - before} - {"encodings"}))
"""


def test_a_compilation_imports_nothing_that_ready_has_not() -> None:
    """In the background an import takes the GIL from calls."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("changes", "times"), [({"jit": "background"}, 1), ({"specialise_after": 9}, 1), ({"jit": "auto"}, 0)]
)
def test_who_compiles_in_the_background_gets_ready_with_the_first_call(
    world: World, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], times: int
) -> None:
    called: list[int] = []
    monkeypatch.setattr(plan.jit, "ready", lambda: called.append(1))
    policy.use(Policy(**changes))
    for _ in range(2):
        plan_for(problem(), 0)
    assert len(called) == times
