"""What a numerics contract lets `choose` pick: one way of summing for every size, alignment and layout, or a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.numerics.packs import GPU_ARCHS, declared, shipped, with_images
from tests.runtime import simulated
from tilery.decision import Decision
from tilery.device import DeviceInfo
from tilery.dispatch import choose
from tilery.errors import UnknownName, UnsupportedProblem
from tilery.generator.variant import UNORDERED
from tilery.jit import Toolchain
from tilery.pack import Pack
from tilery.policy import Policy
from tilery.problem import OUT_DTYPES, Problem

LAYOUTS = ("nn", "nt", "tn", "tt")
MANY_M = (1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1024, 4095, 4096, 65536)
BEST = {
    ("f32", "ieee"): ("f32", "fma"),
    ("f32", "tf32"): ("f32", "mma_k8"),
    ("f16", "ieee"): ("f32", "mma_k16"),
    ("bf16", "ieee"): ("f32", "mma_k16"),
    ("s8", "ieee"): ("s32", "exact"),
}
NAIVE = "gemm_naive_bf16_any_16x16x1"


def h200(pack: Pack) -> DeviceInfo:
    return pack.archs["sm_90a"].gpu


def ask(
    problem: Problem,
    device: DeviceInfo,
    pack: Pack,
    policy: Policy,
    toolchain: Toolchain = simulated.NVRTC,
    **known: Any,
) -> Decision:
    return choose(problem, device, pack, policy, toolchain=lambda: toolchain, no_compiler=lambda: "", **known)


def bf16(m: int = 512, **changes: Any) -> Problem:
    return simulated.problem(m, **changes)


def ways(problems: Iterable[Problem], choice: Callable[[Problem], Decision]) -> dict[tuple[str, str], list[Problem]]:
    """The problems by how what was chosen for them sums; those without a choice are left out."""
    found: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        try:
            found.setdefault(choice(problem).variant.sums, []).append(problem)
        except UnsupportedProblem:
            continue
    return found


problems = st.sampled_from(list(BEST)).flatmap(
    lambda dtype: st.builds(
        lambda n, k, out, bias, activation: Problem(
            "gemm", 1, n, k, 1, dtype[0], out, "nn", 16, dtype[1], bias=bias, activation=activation
        ),
        st.integers(1, 9000),
        st.integers(0, 9000),
        st.sampled_from(OUT_DTYPES[dtype[0]]),
        st.booleans(),
        st.sampled_from(["none", "relu"]),
    )
)
sizes = st.one_of(st.sampled_from(MANY_M), st.integers(1, 2**20))
placements = st.lists(
    st.tuples(sizes, st.integers(1, 70), st.sampled_from((*LAYOUTS, "any")), st.sampled_from((1, 2, 4, 8, 16))),
    min_size=2,
    max_size=12,
)


def placed(problem: Problem, places: list[tuple[int, int, str, int]]) -> list[Problem]:
    """The problem with other numbers of rows and of products, and the layouts and alignments that may come of them."""
    return [replace(problem, m=m, batch=batch, layout=layout, align=align) for m, batch, layout, align in places]


@settings(max_examples=60, deadline=None, database=None)
@given(problems, placements, st.sampled_from([*GPU_ARCHS, "host"]), st.sampled_from(["auto", "background", "off"]))
def test_every_size_is_summed_one_way(problem: Problem, places: Any, arch: str, jit: str) -> None:
    pack, policy = shipped(), Policy(jit=jit, numerics="batch_invariant")
    found = ways(placed(problem, places), lambda p: ask(p, pack.archs[arch].gpu, pack, policy))
    assert len(found) <= 1


@settings(max_examples=60, deadline=None, database=None)
@given(problems, placements, st.sampled_from([(7, 5), (8, 6), (9, 0), (13, 0)]), st.sampled_from([True, False]))
def test_every_size_is_summed_one_way_by_a_pack_of_others(
    problem: Problem, places: Any, cc: tuple[int, int], waits: bool
) -> None:
    pack, policy = simulated.pack(), Policy(jit="background", numerics="batch_invariant")
    found = ways(placed(problem, places), lambda p: ask(p, simulated.DEVICES[cc], pack, policy, waits=waits))
    assert len(found) <= 1


@pytest.mark.parametrize(("dtype", "precision"), BEST)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_that_has_a_layout_is_served_the_best_way(dtype: str, precision: str, layout: str) -> None:
    pack, policy = shipped(), Policy(numerics="batch_invariant")
    for m in MANY_M:
        for align in (1, 4, 16):
            asked = Problem("gemm", m, 256, 512, 1, dtype, OUT_DTYPES[dtype][0], layout, align, precision)
            assert ask(asked, h200(pack), pack, policy).variant.sums == BEST[dtype, precision]


def test_the_check_sees_a_choice_that_mixes_families() -> None:
    """Without the contract the fallback serves what the tensor cores cannot, in other bits; the same check says so."""
    pack, many = shipped(), [bf16(m, layout=layout) for m in MANY_M for layout in ("nt", "any")]
    found = {
        numerics: set(ways(many, lambda p, numerics=numerics: ask(p, h200(pack), pack, Policy(numerics=numerics))))
        for numerics in ("fast", "deterministic", "batch_invariant")
    }
    mixed = {("f32", "mma_k16"), ("f32", "fma")}
    assert found == {"fast": mixed, "deterministic": mixed, "batch_invariant": {("f32", "mma_k16")}}


# ---- the order is that of the GPU


def test_a_gpu_without_tensor_cores_has_another_way_and_keeps_it() -> None:
    pack, policy = shipped(), Policy(numerics="batch_invariant")
    turing = pack.archs["compute_75"].gpu
    every = [bf16(m, layout=layout, align=align) for m in MANY_M for layout in (*LAYOUTS, "any") for align in (2, 16)]
    found = ways(every, lambda p: ask(p, turing, pack, policy))
    assert {way: len(served) for way, served in found.items()} == {("f32", "fma"): len(every)}


def test_sums_of_whole_numbers_may_come_from_any_family() -> None:
    pack, policy = shipped(), Policy(numerics="batch_invariant")
    layouts = {layout: ask(bf16(dtype="s8", layout=layout), h200(pack), pack, policy) for layout in ("nt", "any")}
    assert {layout: made.variant.family for layout, made in layouts.items()} == {"nt": "gemm_mma", "any": "gemm_naive"}


# ---- what the contract keeps from serving, in every tier


def test_a_view_without_adjacent_elements_is_refused_with_advice() -> None:
    pack = shipped()
    with pytest.raises(UnsupportedProblem) as caught:
        ask(bf16(layout="any", align=2), h200(pack), pack, Policy(numerics="batch_invariant"))
    (advice,) = [reason for reason in caught.value.reasons if reason.startswith("numerics='batch_invariant'")]
    assert NAIVE in advice and "pass copies with adjacent elements" in advice and "'deterministic'" in advice
    assert "it sums as fma in f32, and the policy is numerics='batch_invariant', which is mma_k16 in f32" in str(
        caught.value
    )


def test_the_fallback_does_not_stand_in() -> None:
    pack = shipped(without=("gemm_mma", "gemm_simt"))
    asked = bf16()
    assert ask(asked, h200(pack), pack, Policy(jit="off")).variant.name == NAIVE
    assert ask(asked, h200(pack), pack, Policy(jit="off", numerics="deterministic")).variant.name == NAIVE
    with pytest.raises(UnsupportedProblem, match="no variant of the fallback gemm_naive fits"):
        ask(asked, h200(pack), pack, Policy(jit="off", numerics="batch_invariant"))


@pytest.mark.parametrize("numerics", ["deterministic", "batch_invariant"])
def test_nothing_stands_in_while_another_is_compiled(numerics: str) -> None:
    pack, asked = shipped(), bf16(layout="tt")
    meanwhile = ask(asked, h200(pack), pack, Policy(jit="background"))
    assert (meanwhile.variant.name, bool(meanwhile.pending)) == (NAIVE, True)
    made = ask(asked, h200(pack), pack, Policy(jit="background", numerics=numerics))
    assert (made.variant.family, made.source, made.pending) == ("gemm_mma", "jit", "")


def test_a_forced_variant_that_breaks_the_contract_raises() -> None:
    pack = shipped()
    for numerics in ("fast", "deterministic"):
        made = ask(bf16(), h200(pack), pack, Policy(force_variant=NAIVE, numerics=numerics))
        assert (made.variant.name, made.tier) == (NAIVE, "forced")
    with pytest.raises(UnknownName, match="it sums as fma in f32, and the policy is numerics='batch_invariant'"):
        ask(bf16(), h200(pack), pack, Policy(force_variant=NAIVE, numerics="batch_invariant"))


def test_the_reasons_are_in_the_decision() -> None:
    pack = shipped()
    made = ask(bf16(layout="nn"), h200(pack), pack, Policy(numerics="batch_invariant"))
    reasons = {rejection.name: rejection.reason for rejection in made.rejections}
    assert reasons[NAIVE].startswith("it sums as fma in f32")
    assert "the policy is numerics='batch_invariant', which is mma_k16 in f32 here for bf16" in str(made)


# ---- families whose order is not fixed


def unordered(family: str, dtype: str) -> Pack:
    """The real pack, were this family to sum as it likes."""
    variants = {
        name: row | ({"reduction": UNORDERED} if (row["family"], row["dtype"]) == (family, dtype) else {})
        for name, row in declared()["VARIANTS"].items()
    }
    images = {
        arch: {name: vars_of(image) for name, image in images.items()} for arch, images in shipped().images.items()
    }
    return with_images(images, VARIANTS=variants)


def vars_of(image: Any) -> dict[str, Any]:
    return {"sha256": image.sha256, "bytes": image.bytes, "variants": image.variants}


@pytest.mark.parametrize("numerics", ["deterministic", "batch_invariant"])
def test_what_has_no_fixed_order_does_not_serve(numerics: str) -> None:
    pack = unordered("gemm_mma", "bf16")
    assert ask(bf16(), h200(pack), pack, Policy()).variant.family == "gemm_mma"
    made = ask(bf16(), h200(pack), pack, Policy(numerics=numerics))
    assert made.variant.sums == ("f32", "fma")
    assert f"numerics='{numerics}'" in str(made)


def test_where_nothing_has_a_fixed_order_the_error_says_so() -> None:
    pack = unordered("gemm_naive", "s8")
    everything = with_images(
        {},
        VARIANTS={name: row | {"reduction": UNORDERED} for name, row in declared()["VARIANTS"].items()},
    )
    assert ask(bf16(dtype="s8"), h200(pack), pack, Policy(numerics="batch_invariant")).variant.family == "gemm_mma"
    with pytest.raises(UnsupportedProblem, match="no variant has a fixed order for bf16 here"):
        ask(bf16(), h200(pack), everything, Policy(numerics="batch_invariant"))
    with pytest.raises(UnsupportedProblem, match="the order in which it sums differs from run to run"):
        ask(bf16(), h200(pack), everything, Policy(numerics="deterministic"))
