"""``tilery demo`` on a GPU made of host memory: allocation, copies, poison, events, and the report."""

from __future__ import annotations

import ctypes
import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from tests.runtime import fake_cuda
from tilery import device, plan, policy
from tilery.cli import matrix, problems, runs
from tilery.cli.problems import DemoProblem
from tilery.device import representative
from tilery.dispatch import choose
from tilery.errors import DriverError
from tilery.pack import builtin

GPU = replace(representative("sm_90a"), ordinal=0, driver_version=13000)
CASES = [
    DemoProblem("half", 33, 65, 40, "f16", "nn", bias=True, activation="gelu"),
    DemoProblem("brain", 17, 30, 29, "bf16", "tt"),
    DemoProblem("int", 20, 31, 64, "s8", "nt"),
]


class FakeDriver:
    """Memory of the host, and events whose times are given."""

    def __init__(self) -> None:
        self.memory: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.freed = 0
        self.events: set[int] = set()
        self.times = iter(range(1, 10**6))
        self.fail_at = ""

    def call(self, function, *args):
        if function == self.fail_at:
            raise DriverError(function, "CUDA_ERROR_OUT_OF_MEMORY")
        return getattr(self, function)(*args)

    def cuMemAlloc(self, size):
        # 256 bytes of alignment, as the driver gives.
        block = ctypes.create_string_buffer(size + 256)
        pointer = -(-ctypes.addressof(block) // 256) * 256
        self.memory[pointer] = block
        return pointer

    def cuMemFree(self, pointer):
        del self.memory[pointer]
        self.freed += 1

    def cuMemcpyHtoD(self, to, source, size):
        ctypes.memmove(to, source, size)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuMemsetD8(self, pointer, value, size):
        ctypes.memset(pointer, value, size)

    def cuMemsetD8Async(self, pointer, value, size, stream):
        ctypes.memset(pointer, value, size)

    def cuEventCreate(self, flags):
        event = next(self.times)
        self.events.add(event)
        return event

    def cuEventDestroy(self, event):
        self.events.remove(event)

    def cuEventRecord(self, event, stream):
        assert event in self.events

    def cuEventSynchronize(self, event):
        assert event in self.events

    def cuEventElapsedTime(self, start, stop):
        assert stop > start
        return 0.004


class DecidedPlan(fake_cuda.FakePlan):
    def __init__(self, problem, ordinal):
        super().__init__(problem, ordinal)
        self.decision = choose(problem, GPU, builtin(), policy.current())


class LazyPlan(DecidedPlan):
    """Leaves the last column unwritten."""

    def launch(self, params, stream):
        params.n -= 1
        self.problem = replace(self.problem, n=params.n)
        super().launch(params, stream)
        self.problem = replace(self.problem, n=params.n + 1)


@pytest.fixture
def driver(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(device, "devices", lambda: (GPU,))
    monkeypatch.setattr(device, "why_none", lambda: "")
    monkeypatch.setattr(device, "call", fake.call)
    monkeypatch.setattr(device, "current", lambda ordinal: nullcontext())
    monkeypatch.setattr(matrix, "FLUSH_BYTES", 64)
    monkeypatch.setattr(matrix, "STREAM", fake_cuda.STREAM)
    monkeypatch.setattr(problems, "load", lambda: CASES)
    use_plans(monkeypatch, DecidedPlan)
    return fake


def use_plans(monkeypatch, kind):
    plans = {}

    def plan_for(problem, ordinal, stream=None):
        return plans.setdefault((problem, ordinal), kind(problem, ordinal))

    monkeypatch.setattr(plan, "plan_for", plan_for)
    monkeypatch.setattr(runs, "plan_for", plan_for)
    return plans


def test_results_are_checked_timed_and_freed(run, driver, monkeypatch):
    plans = use_plans(monkeypatch, DecidedPlan)
    result = run("demo", "--json", "--seed", "5")
    data = json.loads(result.stdout)
    assert (result.exit_code, data["ok"], data["seed"]) == (0, True, 5)
    assert data["gpu"] == json.loads(json.dumps(GPU.to_dict()))
    # Each problem had one Plan: what the report asks for is what gemm launched.
    assert [key[0] for key in plans] == [case.request() for case in CASES]
    assert {len(made.launches) for made in plans.values()} == {1 + runs.REPETITIONS}
    for row, case, made in zip(data["results"], CASES, plans.values(), strict=True):
        decision = made.decision
        assert (row["name"], row["variant"], row["tier"]) == (case.name, decision.variant.name, decision.tier)
        assert row["elements"] == case.m * case.n
        assert 0 <= row["error"] <= 1
        assert row["us"] == pytest.approx(4.0)
        assert row["tflops"] == pytest.approx(2 * case.m * case.n * case.k / 4e-6 / 1e12)
    half = data["results"][0]
    assert half["tbs"] == pytest.approx(2 * (33 * 40 + 40 * 65 + 33 * 65) / 4e-6 / 1e12)
    assert driver.memory == {}
    assert driver.events == set()
    assert driver.freed == 3 * 4 + 1  # a, b, result and flush; one bias


def test_what_a_kernel_leaves_unwritten_fails(run, driver, monkeypatch):
    use_plans(monkeypatch, LazyPlan)
    result = run("demo", "--json")
    data = json.loads(result.stdout)
    assert (result.exit_code, data["ok"]) == (1, False)
    assert [(row["ok"], row["error"]) for row in data["results"]] == [(False, None)] * len(CASES)


def test_text_has_a_row_for_each_problem(run, driver):
    result = run("demo")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].startswith(f"GPU 0: {GPU}, random data of seed ")
    for case in CASES:
        (line,) = (line for line in lines if str(case) in line)
        assert line.split()[-1] == "ok"
    assert "3 of 3 results" in result.stdout


def test_a_failing_driver_fails_the_demo_and_frees(run, driver):
    driver.fail_at = "cuEventSynchronize"
    result = run("demo")
    assert result.exit_code == 1
    assert "cuEventSynchronize failed with CUDA_ERROR_OUT_OF_MEMORY" in result.stdout
    assert driver.memory == {}
    assert driver.events == set()


def test_a_gpu_that_is_not_there_is_bad_input(run, driver):
    result = run("demo", "--gpu", "3")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no GPU 3" in result.stderr


def test_poison_is_no_number():
    assert np.isnan(np.full(4, matrix.POISON, np.uint8).view(np.float32)[0])
    assert np.isnan(np.full(2, matrix.POISON, np.uint8).view(np.float16)[0])
