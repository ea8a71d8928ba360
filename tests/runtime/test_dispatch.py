"""The pure choice, over made-up GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime import simulated
from tests.runtime.simulated import DEVICES, H200, NO_NVRTC, NVRTC, VARIANTS, problem
from tilery import image
from tilery.decision import Decision
from tilery.device import DeviceInfo
from tilery.dispatch import TIERS, choose
from tilery.errors import UnknownName, UnsupportedProblem
from tilery.generator.cost import Coefficients, predict
from tilery.jit import Toolchain
from tilery.lookup import record_key
from tilery.pack import Pack
from tilery.policy import Policy
from tilery.problem import OUT_DTYPES, Problem, bucket

PACK = simulated.pack()
BEST, SECOND, PLAIN = (f"gemm_mma_bf16_nt_{rest}" for rest in ("128x128x32_s4_a16", "64x64x64_s3_a16", "64x64x64_s3"))
UNIT = Coefficients(*[1.0] * len(Coefficients._fields))


def decide(
    asked: Problem,
    gpu: DeviceInfo = H200,
    pack: Pack = PACK,
    policy: Policy = Policy(),  # noqa: B008  # frozen
    failed: Any = None,
    tools: Toolchain = NVRTC,
) -> Decision:
    return choose(asked, gpu, pack, policy, failed or {}, lambda: tools)


SIZES = st.one_of(st.integers(0, 300), st.integers(0, 2**31 - 1))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    dtype = draw(st.sampled_from(list(OUT_DTYPES)))
    return Problem(
        "gemm",
        *(draw(SIZES) for _ in "mnk"),
        draw(st.one_of(st.integers(0, 4), st.integers(0, 2**31 - 1))),
        dtype,
        draw(st.sampled_from(OUT_DTYPES[dtype])),
        draw(st.sampled_from(["nn", "nt", "tn", "tt", "any"])),
        draw(st.sampled_from([1, 2, 4, 8, 16])),
        draw(st.sampled_from(["ieee", "tf32"])) if dtype == "f32" else "ieee",
        draw(st.booleans()),
        "none",
        draw(st.booleans()),
    )


@given(
    problems(),
    st.sampled_from(list(DEVICES.values())),
    st.sampled_from(["auto", "off", "require"]),
    st.sampled_from([NVRTC, NO_NVRTC, Toolchain("12.8", "1", (75, 80, 90))]),
    st.sets(
        st.tuples(st.sampled_from(["image", "jit"]), st.sampled_from(list(PACK.archs)), st.sampled_from(list(VARIANTS)))
    ),
)
def test_it_answers_with_what_runs_or_says_why_not(
    asked: Problem, gpu: DeviceInfo, jit: str, tools: Toolchain, failed: set[tuple[str, str, str]]
) -> None:
    reasons = dict.fromkeys(failed, "it failed before")
    try:
        decision = decide(asked, gpu, policy=Policy(jit), failed=reasons, tools=tools)
    except UnsupportedProblem as error:
        assert len(error.reasons) >= len(TIERS)
        return
    variant = decision.variant
    assert image.serves(decision.arch, gpu.cc)
    assert (decision.source, decision.arch, variant.name) not in failed
    assert decision.source == "image" or (jit != "off" and tools.archs)
    assert decision.tier != "fallback" or jit != "require"
    assert (variant.family == "gemm_naive") == (decision.tier == "fallback")
    if decision.source == "image":
        found = PACK.image_of(decision.arch, variant)
        assert found is not None and variant.name in found.variants
    assert variant.align <= asked.align
    assert variant.layout in (asked.layout, "any")
    assert variant.dtype == asked.dtype or (variant.dtype == "tf32" and asked.precision == "tf32")
    assert variant.shared_bytes <= gpu.shared_bytes
    assert [tier for tier, _ in decision.silent] == list(TIERS)[: list(TIERS).index(decision.tier)]
    assert decision == decide(asked, gpu, policy=Policy(jit), failed=reasons, tools=tools)
    json.dumps(decision.to_dict())


@pytest.mark.parametrize(
    ("cc", "tier", "arch"),
    [
        ((7, 5), "fallback", "compute_75"),  # no mma of bf16 on it
        ((8, 0), "model", "sm_80"),
        ((8, 6), "model", "sm_80"),
        ((8, 9), "model", "sm_80"),
        ((9, 0), "model", "sm_90a"),
        ((10, 3), "model", "sm_100f"),
        ((12, 1), "model", "sm_120f"),
        ((13, 0), "portable", "compute_80"),
    ],
)
def test_each_gpu_gets_its_image(cc: tuple[int, int], tier: str, arch: str) -> None:
    decision = decide(problem(), DEVICES[cc])
    assert (decision.tier, decision.source, decision.arch) == (tier, "image", arch)


def test_a_layout_without_image_is_compiled() -> None:
    decision = decide(problem(layout="tt"))
    assert (decision.tier, decision.source, decision.arch) == ("jit", "jit", "sm_90a")
    assert decide(problem(layout="tt"), DEVICES[8, 6]).arch == "sm_86"
    assert decide(problem(layout="tt"), DEVICES[13, 0]).arch == "compute_121"
    for policy, tools, why in (
        (Policy("off"), NVRTC, "jit='off'"),
        (Policy(), NO_NVRTC, "pip install nvidia-cuda-nvrtc"),
    ):
        decision = decide(problem(layout="tt"), policy=policy, tools=tools)
        assert decision.tier == "fallback"
        assert why in dict(decision.silent)["jit"]


def test_require_never_falls_back() -> None:
    with pytest.raises(UnsupportedProblem, match="jit='require'"):
        decide(problem(layout="any"), policy=Policy("require"))
    assert decide(problem(layout="tt"), policy=Policy("require")).tier == "jit"


def test_the_fallback_is_compiled_where_it_has_no_image() -> None:
    bare = simulated.pack(IMAGES={})
    decision = decide(problem(layout="any"), pack=bare)
    assert (decision.tier, decision.source) == ("fallback", "jit")
    with pytest.raises(UnsupportedProblem) as raised:
        decide(problem(layout="any"), pack=bare, tools=NO_NVRTC)
    assert "fallback: gemm_naive has no image" in str(raised.value)
    assert "pip install nvidia-cuda-nvrtc" in str(raised.value)
    assert len(str(raised.value).splitlines()) < 30


def test_a_grid_that_is_too_large() -> None:
    with pytest.raises(UnsupportedProblem, match="a grid has at most"):
        decide(problem(2**31 - 1, 2**31 - 1, 1))


def _rows(*names: str, gpu: DeviceInfo = H200) -> list[tuple[Any, ...]]:
    return [("gemm", "bf16", "nt", 16, bucket(512), bucket(512), bucket(512), str(gpu.gpu), names)]


def _records(*names: str, gpu: DeviceInfo = H200, **changes: Any) -> dict[str, Any]:
    key = record_key(problem(**changes))
    return {str(gpu.gpu): {tuple(key): tuple((name, 10.0 + i) for i, name in enumerate(names))}}


def test_exact_before_bucket_before_model() -> None:
    both = simulated.pack(TABLE=_rows(BEST), RECORDS=_records(PLAIN))
    assert (decide(problem(), pack=both).tier, decide(problem(), pack=both).variant.name) == ("exact", PLAIN)
    other_gpu = decide(problem(), DEVICES[8, 0], pack=both)
    assert other_gpu.tier == "model"
    near = decide(problem(batch=2), pack=both)
    assert (near.tier, near.variant.name) == ("bucket", BEST)
    assert decide(problem(align=8), pack=both).tier == "model"


def test_what_was_measured_says_so() -> None:
    decision = decide(problem(), pack=simulated.pack(RECORDS=_records(SECOND, PLAIN)))
    assert decision.ranked == ((SECOND, 10.0, "measured"), (PLAIN, 11.0, "measured"))
    assert decide(problem()).basis == "predicted"


@pytest.mark.parametrize(
    ("changes", "tier"),
    [
        ({"name": "NVIDIA H200 NVL"}, "exact"),
        ({"bandwidth_gbs": 4900}, "exact"),
        ({"bandwidth_gbs": 3350}, "model"),  # an H100
        ({"sms": 66}, "model"),  # a MIG slice
        ({"l2_bytes": 50 << 20}, "model"),
        ({"cc": (8, 9)}, "model"),
    ],
)
def test_measurements_hold_for_the_silicon_whatever_its_name(changes: dict[str, Any], tier: str) -> None:
    both = simulated.pack(TABLE=_rows(BEST), RECORDS=_records(PLAIN))
    gpu = replace(H200, **changes)
    assert decide(problem(), gpu, pack=both).tier == tier
    assert decide(problem(batch=2), gpu, pack=both).tier == ("bucket" if tier == "exact" else "model")


def test_an_epilogue_that_was_not_measured_is_served_by_the_product_that_was() -> None:
    plain = simulated.pack(RECORDS=_records(SECOND))
    with_bias = decide(problem(bias=True, activation="gelu", out_dtype="f32"), pack=plain)
    assert (with_bias.tier, with_bias.variant.name) == ("exact", SECOND)
    assert with_bias.reason.endswith("without bias+gelu and f32 output")
    both = _records(SECOND)
    both[str(H200.gpu)] |= _records(PLAIN, bias=True)[str(H200.gpu)]
    assert decide(problem(bias=True), pack=simulated.pack(RECORDS=both)).variant.name == PLAIN
    assert decide(problem(), pack=simulated.pack(RECORDS=both)).variant.name == SECOND


def test_this_machines_measurements_come_first() -> None:
    pack = simulated.pack(RECORDS=_records(PLAIN))
    local = choose(problem(), H200, pack, Policy(), local={SECOND: 5.0, PLAIN: 6.0})
    assert (local.variant.name, local.tier, local.us) == (SECOND, "exact", 5.0)
    assert "this machine's tuner" in local.reason
    gone = choose(problem(), H200, pack, Policy(), local={"gemm_mma_bf16_tt_64x64x64_s3": 5.0})
    assert gone.variant.name == PLAIN


def test_coefficients_rank_what_was_never_measured() -> None:
    slow = UNIT._replace(step_clocks=9000.0, block_clocks=9000.0, l2_bytes=1e3)
    fast = slow._replace(step_clocks=1.0, block_clocks=1.0)
    fitted = {str(H200.gpu): {SECOND: tuple(fast), BEST: tuple(slow)}}
    pack = simulated.pack(COEFFICIENTS=fitted)
    assert decide(problem(), pack=pack).variant.name == SECOND
    other_of_9_0 = replace(H200, sms=114, bandwidth_gbs=3350, l2_bytes=50 << 20)
    assert decide(problem(), other_of_9_0, pack=pack).variant.name == SECOND
    assert decide(problem(), DEVICES[8, 0], pack=pack).variant.name == decide(problem(), DEVICES[8, 0]).variant.name


NAIVE = "gemm_naive_bf16_any_16x16x1"


def test_the_fallback_contends_where_it_was_measured_and_can_win() -> None:
    quick = UNIT._replace(start_us=0.5, line_clocks=0.001, scalar_clocks=0.001, l2_bytes=1e4)
    fitted = simulated.pack(COEFFICIENTS={str(H200.gpu): {NAIVE: tuple(quick)}})
    tiny = problem(8, 8, 8)
    assert decide(tiny).variant.name != NAIVE
    assert (decide(tiny, pack=fitted).tier, decide(tiny, pack=fitted).variant.name) == ("model", NAIVE)
    assert decide(tiny, pack=fitted, policy=Policy("require")).variant.name != NAIVE
    assert decide(problem(4096, 4096, 4096), pack=fitted).variant.name != NAIVE


def test_the_fallback_serves_before_a_compilation_only_where_it_is_faster() -> None:
    quick = UNIT._replace(start_us=0.5, line_clocks=0.001, scalar_clocks=0.001, l2_bytes=1e4)
    fitted, slow = (
        simulated.pack(COEFFICIENTS={str(H200.gpu): {NAIVE: tuple(c)}}) for c in (quick, quick._replace(start_us=1e3))
    )
    assert decide(problem(8, 8, 8, layout="tt"), pack=fitted).variant.name == NAIVE
    assert decide(problem(8, 8, 8, layout="tt"), pack=slow).tier == "jit"
    assert decide(problem(8, 8, 8, layout="tt")).tier == "jit"


def test_names_that_cannot_serve_are_passed_over() -> None:
    tt = "gemm_mma_bf16_tt_64x64x64_s3"
    assert decide(problem(), pack=simulated.pack(RECORDS=_records(tt, SECOND))).variant.name == SECOND
    silent = dict(decide(problem(), pack=simulated.pack(RECORDS=_records(tt))).silent)
    assert "none of its 1 variants fits" in silent["exact"]


def test_a_failed_image_gives_way_and_says_so() -> None:
    first = decide(problem())
    failed = {("image", first.arch, first.variant.name): "CUDA_ERROR_INVALID_IMAGE"}
    second = decide(problem(), failed=failed)
    assert second.variant != first.variant
    assert (first.variant.name, "CUDA_ERROR_INVALID_IMAGE (image sm_90a)") in second.rejections
    all_images = {("image", arch, name): "broken" for arch in PACK.archs for name in VARIANTS}
    compiled = decide(problem(), failed=all_images)
    assert (compiled.tier, compiled.source) == ("jit", "jit")
    all_of_it = all_images | {("jit", "sm_90a", name): "log" for name in VARIANTS}
    with pytest.raises(UnsupportedProblem, match="log"):
        decide(problem(), failed=all_of_it)


def test_forced() -> None:
    decision = decide(problem(), policy=Policy(force_variant=PLAIN))
    assert (decision.tier, decision.variant.name, decision.arch) == ("forced", PLAIN, "sm_90a")
    naive = decide(problem(), policy=Policy(force_variant="gemm_naive_bf16_any_16x16x1"))
    assert naive.tier == "forced"
    compiled = decide(problem(layout="tt"), policy=Policy(force_variant="gemm_mma_bf16_tt_64x64x64_s3"))
    assert compiled.source == "jit"


@pytest.mark.parametrize(
    ("name", "asked", "policy", "text"),
    [
        (PLAIN[:-1], problem(), {}, f"did you mean '{PLAIN}'"),
        (BEST, problem(align=2), {}, "needs rows aligned to 16 bytes, the problem's are to 2"),
        (BEST, problem(layout="nn"), {}, "its layout is nt, the problem's nn"),
        (BEST, problem(dtype="f32"), {}, "it computes in bf16, the problem in f32"),
        ("gemm_mma_bf16_tt_64x64x64_s3", problem(layout="tt"), {"jit": "off"}, "jit='off'"),
    ],
)
def test_a_forced_name_that_cannot_serve_raises(name: str, asked: Problem, policy: dict[str, str], text: str) -> None:
    with pytest.raises(UnknownName, match=text):
        decide(asked, policy=Policy(force_variant=name, **policy))  # type: ignore[arg-type]


def test_tf32_only_where_it_is_allowed() -> None:
    big = problem(4096, 4096, 4096, dtype="f32")
    assert decide(big).variant.dtype == "f32"
    allowed = decide(problem(4096, 4096, 4096, dtype="f32", precision="tf32"))
    assert allowed.variant.dtype == "tf32"
    assert any(name.startswith("gemm_simt") for name, *_ in allowed.ranked)


def test_the_nvrtc_is_asked_only_when_it_matters() -> None:
    def never() -> Toolchain:
        raise AssertionError

    choose(problem(), H200, PACK, Policy(), {}, never)


def test_reading_a_decision() -> None:
    decision = decide(problem(align=2))
    text = str(decision)
    for part in (
        "m=512",
        "aligned to 2 bytes",
        "sm_90a",
        decision.variant.name,
        "no record of this problem",
        " x it needs rows",
    ):
        assert part in text
    assert all(len(line) < 200 for line in text.splitlines())
    assert decision.to_dict()["variant"] == decision.variant.name
    assert decision.us == min(one.us for one in decision.ranked)


# ---- the cost model


def cost(name: str, asked: Problem, gpu: DeviceInfo = H200) -> float:
    variant = VARIANTS[name]
    return predict(variant, asked, gpu, PACK.cost[variant.family])


@given(
    st.sampled_from(list(VARIANTS)),
    st.sampled_from(list(DEVICES.values())),
    st.tuples(*[st.integers(0, 800)] * 3),
    st.integers(1, 300),
    st.sampled_from(["m", "n", "k"]),
    st.integers(0, 80),
)
def test_more_work_never_takes_less_time(
    name: str, gpu: DeviceInfo, counts: tuple[int, int, int], batch: int, axis: str, count: int
) -> None:
    # Whole lines and whole tiles: such a problem can take less time than a smaller one that is not.
    unit = max(128, *VARIANTS[name]["tile"])
    fields = dict(zip("mnk", (unit * one for one in counts), strict=True))
    more = unit * count
    dtype = {"tf32": "f32"}.get(VARIANTS[name].dtype, VARIANTS[name].dtype)
    small = cost(name, problem(**fields, batch=batch, dtype=dtype), gpu)
    large = cost(name, problem(**fields | {axis: fields[axis] + more}, batch=batch, dtype=dtype), gpu)
    assert 0 < small <= large * (1 + 1e-9) < float("inf")


def test_big_tiles_for_big_problems_and_small_ones_for_small() -> None:
    big, small = decide(problem(4096, 4096, 4096)), decide(problem(256, 256, 256))
    assert big.variant["tile"][0] * big.variant["tile"][1] >= 128 * 128
    assert small.variant["tile"][:2] == (64, 64)
    f32 = [decide(problem(size, size, size, dtype="f32")).variant["tile"][0] for size in (4096, 256)]
    assert f32 == [128, 64]


def test_wide_loads_win_where_they_are_allowed() -> None:
    for dtype in ("bf16", "f32"):
        assert decide(problem(4096, 4096, 4096, dtype=dtype)).variant.align == 16
