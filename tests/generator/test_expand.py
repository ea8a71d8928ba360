from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.errors import SpecError, UnknownName
from generator.expand import expand, find, points, reject, tiers_of
from generator.load import TIERS, Spec, load
from generator.variant import Variant

if TYPE_CHECKING:
    from conftest import Project


def names(spec: Spec, arch: str | None, tier: str = "core") -> list[str]:
    return [variant.name for variant in expand(spec, arch, tier).variants]


def test_an_arch_without_features_gets_the_plain_family(spec: Spec) -> None:
    assert names(spec, "compute_75") == ["plain_f32_any_16x16x1"]


def test_pruned_points_carry_why_and_numbers(spec: Spec) -> None:
    reasons = {point.name: point.reason for point in expand(spec, "compute_80").pruned}
    big = "fast_bf16_nt_256x128x64_w4x2_s3_a16"
    assert reasons[big] == "the stages must fit: shared_bytes = 147456 > arch_shared_bytes = 101376"
    assert big in names(spec, "sm_90a")
    reasons = {point.name: point.reason for point in expand(spec, "compute_75").pruned}
    assert reasons[big] == "compute_75 lacks mma"


def test_a_rule_without_arch_prunes_everywhere(spec: Spec) -> None:
    reasons = {point.name: point.reason for point in expand(spec, None, "exhaustive").pruned}
    assert reasons["fast_bf16_nt_64x64x32_w8x2_s3_a16"] == (
        "a warp has whole fragments: tile_m % (16 * warps_m) = 64 != 0 (tile_m = 64, warps_m = 8)"
    )


def test_the_arch_limit_holds_without_a_rule(project: Project) -> None:
    project.edit('    { rule = "shared_bytes <= arch_shared_bytes", why = "the stages must fit" },\n', "")
    reasons = {point.name: point.reason for point in expand(project.spec, "compute_80").pruned}
    assert (
        reasons["fast_f16_nn_256x128x64_w4x2_s3"] == "shared memory: shared_bytes = 147456 > arch_shared_bytes = 101376"
    )


def test_kept_and_pruned_are_all_points(spec: Spec) -> None:
    for tier in TIERS:
        every = sorted(point.variant.name for point in points(spec, tier))
        for arch in (None, *spec.archs):
            expansion = expand(spec, arch, tier)
            assert sorted([v.name for v in expansion.variants] + [p.name for p in expansion.pruned]) == every


def test_tiers_include_the_lower_ones(spec: Spec) -> None:
    core, wide, exhaustive = (set(names(spec, "sm_90a", tier)) for tier in TIERS)
    assert core == wide < exhaustive
    assert tiers_of("exhaustive") == TIERS


def test_axes_leave_out_what_a_lower_tier_has(spec: Spec) -> None:
    every = [point.variant.name for point in points(spec)]
    assert len(every) == len(set(every))
    assert find(spec, "fast_bf16_nt_128x128x32_w2x2_s3_a16").variant.tier == "core"
    assert find(spec, "fast_bf16_nt_128x128x32_w2x2_s4_a16").where == "family.fast.rows[1]"


def test_launch_numbers(spec: Spec) -> None:
    variant = find(spec, "fast_bf16_nt_256x128x64_w4x2_s3_a16").variant
    assert (variant.threads, variant.shared_bytes, variant.features) == (256, 3 * (256 + 128) * 64 * 2, ("mma",))


def test_two_rows_with_one_variant(project: Project) -> None:
    project.edit(
        "axes = { tile = [[128, 128, 32], [64, 64, 32]], warps = [[2, 2], [8, 2]], stages = [3, 4] }",
        "config = [{ tile = [128, 128, 32], warps = [2, 2], stages = 3 }]",
    )
    with pytest.raises(
        SpecError, match=r"family.fast.rows\[1\]: 'fast_bf16_nt_128x128x32_w2x2_s3_a16' .* family.fast.rows\[0\] too"
    ):
        expand(project.spec, None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'threads = "32 * warps_m * warps_n"',
            'threads = "warps_m - 2"',
            r"family.fast: threads: 'warps_m - 2' is 0 with .*least 1",
        ),
        ('shared_bytes = "stages *', 'shared_bytes = "0 - stages *', "family.fast: shared_bytes: .*least 0"),
        ('shared_bytes = "stages *', 'shared_bytes = "stages // (stages - 3) *', "family.fast: .*division .*zero"),
        ('threads = "32 * warps_m * warps_n"', 'threads = "warps_m == 2"', "is True with"),
    ],
)
def test_numbers_that_make_no_launch(project: Project, old: str, new: str, message: str) -> None:
    project.edit(old, new)
    with pytest.raises(SpecError, match=message):
        expand(project.spec, "sm_90a")


def test_unknown_names_have_the_nearest(spec: Spec) -> None:
    with pytest.raises(UnknownName, match="unknown arch 'sm_90'; nearest: sm_90a"):
        expand(spec, "sm_90")
    with pytest.raises(UnknownName, match="unknown tier 'wid'; nearest: wide"):
        expand(spec, None, "wid")
    with pytest.raises(UnknownName, match=r"'plain_f32_any_16x16x2': .*nearest: plain_f32_any_16x16x1"):
        find(spec, "plain_f32_any_16x16x2")


_numbers = st.integers(1, 512)
_config = st.tuples(st.tuples(_numbers, _numbers, _numbers), st.tuples(_numbers, _numbers), _numbers)
_variants = st.builds(
    lambda dtype, layout, align, config, constants: Variant(
        "fast",
        "gemm",
        dtype,
        layout,
        align,
        tuple(zip(("tile", "warps", "stages"), config, strict=True)),
        constants=constants,
    ),
    st.sampled_from(["f32", "f16", "bf16", "tf32", "s8"]),
    st.sampled_from(["nn", "nt", "tn", "tt", "any"]),
    st.sampled_from([1, 2, 4, 8, 16]),
    _config,
    st.lists(st.tuples(st.sampled_from(["m", "n", "k"]), _numbers), unique_by=lambda pair: pair[0], max_size=3).map(
        tuple
    ),
)


@given(_variants, _variants)
def test_two_variants_never_share_a_name(a: Variant, b: Variant) -> None:
    assert (a.name == b.name) == (a == b)
    assert a.name.isidentifier()


def test_the_real_pack_has_a_variant_of_every_fallback_on_every_arch() -> None:
    spec = load()
    for arch in spec.archs:
        kept = {variant.family for variant in expand(spec, arch).variants}
        assert {op.fallback for op in spec.ops.values()} <= kept


def test_reject_agrees_with_expand(spec: Spec) -> None:
    kept = set(names(spec, "compute_80", "exhaustive"))
    assert {p.variant.name for p in points(spec) if reject(spec, p.variant, "compute_80") is None} == kept
