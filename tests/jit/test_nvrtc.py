"""NVRTC and the driver: what a failure leaves, that it happens once, and that a compilation blocks nobody else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tilery
from tests.runtime import simulated
from tests.runtime.simulated import H200, problem
from tests.runtime.world import World, driver_error
from tilery import device, image, jit, plan, policy
from tilery.errors import CompileError, DriverError, UnsupportedProblem
from tilery.generator import render
from tilery.generator.expand import find
from tilery.generator.load import load
from tilery.generator.variant import Variant
from tilery.plan import plan_for
from tilery.policy import Policy

SMALL = "gemm_naive_bf16_any_16x16x1"
LARGER = "gemm_simt_f32_nn_32x64x32_t4x4_b4"


def test_the_gil_is_released() -> None:
    """A Python thread goes on during a compilation; it would be stopped for all of it otherwise."""
    variant = find(load(), LARGER).variant
    source, headers = render.render(variant), render.headers(variant.family)
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.perf_counter()
    jit.compile_source(source, variant.name, headers, jit.options("sm_80"))
    ended = time.perf_counter()
    stop.set()
    thread.join()
    during = [began, *(at for at in ticks if began < at < ended), ended]
    longest = max(after - before for before, after in pairwise(during))
    assert longest < (ended - began) / 2
    assert len(during) > 10


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import tilery
from tilery import jit
from tilery.generator.expand import find
from tilery.generator.load import load
from tilery.store import Store
from pathlib import Path
assert tilery.__file__.startswith(sys.argv[1])
variant = find(load(), sys.argv[2]).variant
store = Store(Path(sys.argv[1]) / "Lager für Kerne")
print(jit.compile_variant(variant, "sm_90a", pack=None, store=store).origin)
print(jit.compile_variant(variant, "sm_90a", pack=None, store=store).origin)
"""


def test_installed_and_stored_below_spaces_and_letters(tmp_path: Path) -> None:
    place = tmp_path / "ein Ort mit Wörtern 日本 'und' $x"
    installed = place / "tilery"
    package = Path(tilery.__file__).parent
    skipped = shutil.ignore_patterns("images", "__pycache__", ".mypy_cache")
    shutil.copytree(package, installed, symlinks=False, ignore=skipped)
    environment = os.environ | {"PYTHONPATH": "", "LC_ALL": "C"}
    arguments = [sys.executable, "-c", PROGRAM, str(place), SMALL]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["nvrtc", "store"]), done.stderr


def test_a_failing_variant_is_compiled_once_whoever_asks(world: World) -> None:
    first = plan.decide(problem(layout="tt"), H200, simulated.pack(), Policy()).variant.name
    world.fault = lambda source, arch, v: CompileError("NVRTC failed") if v.name == first else None
    made = [plan_for(problem(m, layout="tt"), ordinal) for ordinal in (0, 1) for m in (512, 513, 514)]
    assert {one.tier for one in made} == {"jit"}
    assert first not in {one.decision.variant.name for one in made}
    assert [name for _, name in world.compiles].count(first) == 1
    assert all(any("NVRTC failed" in why for _, why in one.decision.rejections) for one in made)


def test_many_threads_of_many_problems_compile_each_variant_once(world: World) -> None:
    world.compiling = lambda variant: time.sleep(0.05)
    start, made = threading.Barrier(24), []

    def call(m: int) -> None:
        start.wait()
        made.append(plan_for(problem(m, layout="tt"), 0))

    threads = [threading.Thread(target=call, args=(500 + i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 24
    assert len(world.compiles) == len(set(world.compiles)) == 1


def test_a_failure_is_found_again_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = find(load(), SMALL).variant
    broken = render.render(variant).replace("gemm_naive<", "gemm_native<")
    monkeypatch.setattr(render, "render", lambda variant, *_: broken)
    with policy.scope(Policy(store=tmp_path)), pytest.raises(CompileError) as raised:
        jit.compile_variant(variant, "sm_90a", pack=simulated.pack())
    kept = Path(str(raised.value.source_path)).parent
    assert (kept / f"{SMALL}.cu").read_text() == broken
    assert (kept / "options.txt").read_text().splitlines() == list(raised.value.options)
    assert "gemm_native" in (kept / "log.txt").read_text()
    assert {path.name for path in kept.iterdir()} >= set(render.headers(variant.family))


@pytest.mark.parametrize(
    ("name", "cuda", "advises"),
    [
        ("NO_BINARY_FOR_GPU", "13.0", True),
        ("UNSUPPORTED_PTX_VERSION", "13.0", True),
        ("UNSUPPORTED_PTX_VERSION", "", True),
        ("NO_BINARY_FOR_GPU", "12.0", False),
    ],
)
def test_a_driver_that_is_too_old_names_both_versions(
    monkeypatch: pytest.MonkeyPatch, name: str, cuda: str, advises: bool
) -> None:
    def refuse(function: str, *args: Any) -> Any:
        raise DriverError(function, f"CUDA_ERROR_{name}")

    monkeypatch.setattr(device, "call", refuse)
    monkeypatch.setattr(device, "primary_context", lambda ordinal: 7)
    monkeypatch.setattr(device, "current_context", lambda: 7)
    monkeypatch.setattr(device, "info", lambda ordinal: replace(H200, driver_version=12040))
    with pytest.raises(DriverError) as raised:
        image.load_code("a key", b"code", find(load(), SMALL).variant, 0, "an.fatbin", cuda)
    told = str(raised.value)
    assert f"CUDA_ERROR_{name}" in told
    assert "the driver supports CUDA 12.4" in told
    assert not cuda or f"made by CUDA {cuda}" in told
    assert ("update the driver" in told) is advises
    assert raised.value.name in image.IMAGE_FAULTS


def test_the_table_says_which_cuda_made_its_images() -> None:
    made = {one.cuda for images in simulated.pack(CUDA="13.0").images.values() for one in images.values()}
    assert made == {"13.0"}
    assert {one.cuda for images in simulated.pack().images.values() for one in images.values()} == {""}


def test_a_driver_too_old_for_all_of_it_ends_with_every_reason(world: World) -> None:
    def refuse(source: str, arch: str, variant: Variant) -> Exception | None:
        return None if source == "jit" else driver_error("cuLibraryLoadData", "UNSUPPORTED_PTX_VERSION")

    world.fault = refuse
    with pytest.raises(UnsupportedProblem) as raised:
        plan_for(problem(), 0)
    assert "UNSUPPORTED_PTX_VERSION" in str(raised.value)
    assert isinstance(raised.value.__cause__, DriverError)
    assert len(world.loads) < 20  # an image is refused as a whole
