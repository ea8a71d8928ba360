"""Plans: memoised, made ready once, and what happens where something cannot be loaded; against a made-up driver."""

from __future__ import annotations

import threading

import pytest

from tests.runtime.simulated import problem
from tests.runtime.world import CONTEXT, STREAM, Params, World, driver_error
from tilery import plan, policy
from tilery.errors import CompileError, DriverError, PackError, UnknownName, UnsupportedProblem
from tilery.generator.variant import Variant
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.stats import stats


def test_the_same_problem_gets_the_same_plan(world: World) -> None:
    first = plan_for(problem(), 0)
    assert plan_for(problem(), 0) is first
    assert plan_for(problem(), 1) is not first
    policy.use(Policy(jit="off"))
    assert plan_for(problem(), 0) is not first
    policy.use(Policy())
    assert plan_for(problem(), 0) is first


def test_many_threads_make_one_plan(world: World) -> None:
    found: list[plan.Plan] = []
    threads = [threading.Thread(target=lambda: found.append(plan_for(problem(layout="tt"), 0))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(map(id, found))) == 1
    assert len(world.loads) == 1


def test_the_launch(world: World) -> None:
    policy.use(Policy(force_variant="gemm_mma_bf16_nt_128x256x64_s4_a16"))
    made = plan_for(problem(1000, 600, 64, batch=70000), 0)
    made.launch(Params(7), STREAM)
    kernel, *numbers, stream, _, extra = world.launches[0]
    assert kernel == "kernel gemm_mma_bf16_nt_128x256x64_s4_a16"
    assert numbers == [8 * 3, 1, 65535, 128, 1, 1, 196608]
    assert (stream, extra) == (STREAM, 0)
    assert world.params == [7]
    assert made.calls == 1


@pytest.mark.parametrize("empty", [{"m": 0}, {"n": 0}, {"batch": 0}])
def test_an_empty_result_launches_nothing(world: World, empty: dict[str, int]) -> None:
    plan_for(problem(**empty), 0).launch(Params(), STREAM)
    assert world.launches == []


@pytest.mark.parametrize(("stream", "context", "pushed"), [(0, 5, 1), (2, 0, 1), (0, CONTEXT, 0), (STREAM, 5, 0)])
def test_the_default_streams_get_the_right_context(world: World, stream: int, context: int, pushed: int) -> None:
    world.context = context
    plan_for(problem(), 0).launch(Params(), stream)
    assert (world.pushed, len(world.launches)) == (pushed, 1)


def test_a_refused_launch_says_what_it_was(world: World) -> None:
    made = plan_for(problem(), 0)
    world.status = 1
    with pytest.raises(DriverError) as raised:
        made.launch(Params(), STREAM)
    for part in (made.decision.variant.name, "grid (", "CUDA_LAUNCH_BLOCKING", "m=512"):
        assert part in str(raised.value)
    assert made.calls == 0


def test_a_broken_image_is_passed_over_as_a_whole(world: World) -> None:
    world.fault = lambda source, arch, v: PackError("truncated") if arch == "sm_90a" else None
    made = plan_for(problem(), 0)
    assert (made.tier, made.decision.arch) == ("portable", "compute_80")
    assert len(world.loads) == 2
    assert any("truncated (image sm_90a)" in reason for _, reason in made.decision.rejections)
    assert plan_for(problem(64), 0).tier == "portable"
    assert len(world.loads) == 3
    assert stats()["rejected"] == {"truncated": 1}


def test_a_driver_too_old_for_any_image(world: World) -> None:
    refused = driver_error("cuLibraryLoadData", "UNSUPPORTED_PTX_VERSION")
    world.fault = lambda source, arch, v: refused if source == "image" else None
    made = plan_for(problem(), 0)
    assert (made.tier, made.decision.source) == ("jit", "jit")


def test_one_kernel_missing_spares_the_rest_of_its_image(world: World) -> None:
    first = plan_for(problem(), 0).decision.variant
    plan.clear()
    missing = driver_error("cuLibraryGetKernel", "NOT_FOUND")
    world.fault = lambda source, arch, v: missing if v == first else None
    made = plan_for(problem(), 0)
    assert (made.tier, made.decision.arch) == ("model", "sm_90a")
    assert made.decision.variant != first


@pytest.mark.parametrize("name", ["OUT_OF_MEMORY", "ILLEGAL_ADDRESS"])
def test_what_is_not_the_images_fault_is_raised(world: World, name: str) -> None:
    world.fault = lambda source, arch, v: driver_error("cuLibraryLoadData", name)
    with pytest.raises(DriverError, match=name):
        plan_for(problem(), 0)
    world.fault = lambda source, arch, v: None
    assert plan_for(problem(), 0).tier == "model"


def test_a_failing_compile_gives_way_to_the_next_and_at_last_to_the_fallback(world: World) -> None:
    seen: list[str] = []

    def fail(source: str, arch: str, variant: Variant) -> Exception | None:
        seen.append(variant.name)
        return CompileError("NVRTC failed", log="log") if source == "jit" else None

    world.fault = fail
    made = plan_for(problem(layout="tt"), 0)
    assert made.tier == "fallback"
    assert len(set(seen)) == len(seen) == 7
    assert stats()["fallbacks"] == {dict(made.decision.silent)["jit"]: 1}
    plan_for(problem(64, layout="tt"), 0)
    assert len(seen) == 8


def test_nothing_left_carries_the_last_error(world: World) -> None:
    world.fault = lambda source, arch, v: CompileError("NVRTC failed") if source == "jit" else PackError("truncated")
    with pytest.raises(UnsupportedProblem, match="truncated") as raised:
        plan_for(problem(), 0)
    assert "NVRTC failed" in str(raised.value)
    assert isinstance(raised.value.__cause__, CompileError)


def test_require_raises_the_compilers_error(world: World) -> None:
    policy.use(Policy("require"))
    world.fault = lambda source, arch, v: CompileError("NVRTC failed")
    with pytest.raises(CompileError):
        plan_for(problem(layout="tt"), 0)


def test_a_forced_variant_is_never_replaced(world: World) -> None:
    policy.use(Policy(force_variant="gemm_mma_bf16_nt_64x64x64_s3"))
    world.fault = lambda source, arch, v: PackError("truncated")
    with pytest.raises(PackError):
        plan_for(problem(), 0)
    policy.use(Policy(force_variant="gemm_mma_bf16_nt_64x64x64_s"))
    with pytest.raises(UnknownName):
        plan_for(problem(), 0)


@pytest.mark.parametrize("layout", ["nt", "tt"])
def test_nothing_is_loaded_during_a_capture(world: World, layout: str) -> None:
    world.capturing = True
    with pytest.raises(UnsupportedProblem, match=r"m=512.*Before the capture, call"):
        plan_for(problem(layout=layout), 0, STREAM)
    assert world.loads == []
    world.capturing = False
    made = plan_for(problem(layout=layout), 0, STREAM)
    world.capturing = True
    assert plan_for(problem(layout=layout), 0, STREAM) is made
    similar = plan_for(problem(513, layout=layout), 0, STREAM)
    assert similar.decision.variant == made.decision.variant


def test_counting(world: World) -> None:
    made = plan_for(problem(), 0)
    for _ in range(3):
        made.launch(Params(), STREAM)
    plan_for(problem(layout="any"), 0)
    report = stats()
    assert report["plans"] == {"model": 1, "fallback": 1}
    assert report["calls"] == {"model": 3, "fallback": 0}
