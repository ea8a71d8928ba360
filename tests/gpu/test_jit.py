"""Compiling at run time on a real GPU: the swap in the background, constants, prepare, captures, several GPUs, fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tilery
from tests.gpu.compare import Epilogue, check
from tests.gpu.memory import random
from tilery import background, device, image, plan, policy
from tilery.device import DeviceInfo
from tilery.errors import UnsupportedProblem
from tilery.plan import plan_for
from tilery.policy import Policy

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process that has loaded nothing, and an empty store; what is loaded stays referenced by the driver."""
    monkeypatch.setattr(image, "_kernels", {})
    monkeypatch.setattr(image, "_libraries", {})
    plan.clear()
    policy.use(Policy(store=tmp_path))
    yield tmp_path
    assert background.workers.wait(120)
    plan.clear()


def uncovered(m: int = 256, n: int = 192, k: int = 128) -> tuple[Any, Any]:
    """Both transposed: no image has it."""
    return random((k, m), torch.bfloat16).t(), random((n, k), torch.bfloat16).t()


def tier_of(a: Any, b: Any) -> str:
    before = dict(tilery.stats()["calls"])
    tilery.gemm(a, b)
    return next(tier for tier, calls in tilery.stats()["calls"].items() if calls != before.get(tier, 0))


def test_background_serves_swaps_and_stays_right() -> None:
    policy.use(replace(policy.current(), jit="background"))
    a, b = uncovered()
    streams = [torch.cuda.Stream() for _ in range(4)]
    results: list[Any] = []
    stop = threading.Event()
    torch.cuda.synchronize()

    def call(stream: Any) -> None:
        with torch.cuda.stream(stream):
            while not stop.is_set():
                results.append(tilery.gemm(a, b))
                del results[:-8]

    first = tilery.gemm(a, b)
    assert tilery.explain("gemm", m=256, n=192, k=128, dtype="bf16", layout="tt").pending
    threads = [threading.Thread(target=call, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    assert background.workers.wait(120)
    stop.set()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert tier_of(a, b) == "jit"
    for got in (first, *results, tilery.gemm(a, b)):
        check(got, a, b)


def test_a_compile_in_the_background_spares_the_capture() -> None:
    policy.use(replace(policy.current(), jit="background"))
    a, b = random((128, 96), torch.float32), random((96, 64), torch.float32)
    out = tilery.gemm(a, b)
    cold_a, cold_b = uncovered()
    torch.cuda.synchronize()
    tilery.gemm(cold_a, cold_b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # its mode forbids unsafe calls of every thread
        tilery.gemm(a, b, out=out)
        assert background.workers.wait(120)  # compiled and loaded while the capture goes on
        tilery.gemm(a, b, out=out)
    out.zero_()
    graph.replay()
    check(out, a, b)
    assert tier_of(cold_a, cold_b) == "jit"


def test_a_graph_outlives_the_swap_and_the_store(cold: Path) -> None:
    policy.use(replace(policy.current(), jit="background"))
    a, b = uncovered()
    out = tilery.gemm(a, b)
    graphs = []
    for _ in range(2):  # of the fallback, then of what replaced it
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            tilery.gemm(a, b, out=out)
        assert background.workers.wait(120)
    for path in sorted(cold.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    plan.clear()
    for graph in graphs:
        a.copy_(random((128, 256), torch.bfloat16).t())
        out.zero_()
        graph.replay()
        check(out, a, b)


def test_what_a_refused_capture_asks_for_helps() -> None:
    a, b = uncovered()
    out = torch.empty((256, 192), dtype=torch.bfloat16, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(UnsupportedProblem) as raised:
        tilery.gemm(a, b, out=out)
    report = eval(str(raised.value).splitlines()[-1], {"tilery": tilery})
    assert [one.origin for one in report.results] == ["nvrtc"]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tilery.gemm(a, b, out=out)
    graph.replay()
    check(out, a, b)


def test_constants_give_the_same_bits() -> None:
    for make in (uncovered, lambda: (random((300, 136), torch.bfloat16), random((136, 200), torch.bfloat16))):
        a, b = make()
        bias = random((b.shape[1],), torch.float32)
        general = tilery.gemm(a, b, bias=bias, activation="relu")
        policy.use(replace(policy.current(), specialise_after=2))
        before = tilery.stats()["specialised"].get("kernels", 0)
        for _ in range(3):
            tilery.gemm(a, b, bias=bias, activation="relu")
        assert background.workers.wait(120)
        assert tilery.stats()["specialised"]["kernels"] == before + 1
        special = tilery.gemm(a, b, bias=bias, activation="relu")
        assert torch.equal(special, general)
        other = random((a.shape[0], 2 * a.shape[1]), torch.bfloat16)[:, ::2].contiguous()
        check(tilery.gemm(other, b, bias=bias), other, b, Epilogue(bias=bias))
        policy.use(replace(policy.current(), specialise_after=0))


def test_prepare_from_an_empty_and_from_a_warm_store() -> None:
    problems = [tilery.request(m=m, n=n, k=128, dtype=d, layout="tt") for m in (64, 2048) for n in (64, 2048)
                for d in ("bf16", "f16")]  # fmt: skip
    first = tilery.prepare(problems, workers=8)
    assert first.errors == ()
    assert first.origins["nvrtc"] >= 2
    image._kernels.clear()
    image._libraries.clear()
    plan.clear()
    again = tilery.prepare(problems, workers=8)
    assert set(again.origins) <= {"store", "memory"}


def test_the_right_code_for_each_gpu(gpu: DeviceInfo) -> None:
    if len(device.devices()) < 2:
        pytest.skip("this machine has one GPU")
    problem = tilery.request(m=256, n=192, k=128, dtype="bf16", layout="tt")
    for one in device.devices():
        chosen = plan_for(problem, one.ordinal or 0).decision
        assert image.serves(chosen.arch, one.cc)
    for ordinal in (1, 0):
        with torch.cuda.device(ordinal):
            a, b = (x.to(f"cuda:{ordinal}") for x in uncovered())
            check(tilery.gemm(a, b), a, b)
            covered_a, covered_b = (random((64, 64), torch.float32).to(f"cuda:{ordinal}") for _ in range(2))
            check(tilery.gemm(covered_a, covered_b), covered_a, covered_b)


FORK = """
import os, torch, tilery
a = torch.ones(64, 64, device="cuda")
tilery.gemm(a, a)
pid = os.fork()
if pid == 0:
    try:
        tilery.explain("gemm", m=64, n=64, k=64, dtype="f32", arch="sm_90a")
        tilery.plan.plan_for(tilery.request(m=64, n=64, k=64, dtype="f32"), 0)
    except tilery.TileryError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(float(tilery.gemm(a, a).sum()))
"""


def test_a_forked_child_is_told_and_its_parent_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "get_context('spawn')" in done.stdout
    assert done.stdout.splitlines()[-1] == str(float(64**3))
