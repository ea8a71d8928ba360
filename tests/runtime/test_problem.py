"""Problem: what it refuses, and its use as a key."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from tilery.errors import InvalidInput, UnknownName
from tilery.problem import OUT_DTYPES, Problem, bucket

GOOD = Problem("gemm", 64, 32, 16, 1, "f32", "f32", "nn", 16)


def test_equal_problems_are_one_key_and_every_field_counts() -> None:
    assert {GOOD: 1}[replace(GOOD)] == 1
    changed = {"m": 1, "n": 1, "k": 1, "batch": 2, "out_dtype": "bf16", "layout": "nt", "align": 4}
    changed |= {"precision": "tf32", "bias": True, "activation": "relu", "accumulate": True}
    assert len({GOOD, *(replace(GOOD, **{name: value}) for name, value in changed.items())}) == len(changed) + 1


def test_problem_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        GOOD.m = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("size", [-1, 2**31, 2**40, 1.5, "64", True, None])
def test_sizes_out_of_range_or_no_int_are_refused_by_name(name: str, size: object) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name} "):
        replace(GOOD, **{name: size})


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("size", [0, 1, 2**31 - 1])
def test_sizes_at_the_limits_are_taken(name: str, size: int) -> None:
    assert getattr(replace(GOOD, **{name: size}), name) == size


@pytest.mark.parametrize(
    ("change", "near"),
    [
        ({"op": "gem"}, "gemm"),
        ({"dtype": "f23"}, "f32"),
        ({"dtype": "s32"}, "s8"),
        ({"layout": "nm"}, "nn"),
        ({"precision": "tf23"}, "tf32"),
        ({"activation": "rleu"}, "relu"),
        ({"activation": None}, "none"),
        ({"activation": ["relu"]}, "relu"),
        ({"out_dtype": "bf61"}, "bf16"),
    ],
)
def test_unknown_names_give_near_ones(change: dict[str, object], near: str) -> None:
    with pytest.raises(UnknownName, match=near):
        replace(GOOD, **change)


@pytest.mark.parametrize("align", [0, 3, 32, -1, "16"])
def test_align_is_a_power_of_two_up_to_16(align: object) -> None:
    with pytest.raises(InvalidInput, match="align"):
        replace(GOOD, align=align)


@pytest.mark.parametrize("dtype", OUT_DTYPES)
@pytest.mark.parametrize("out_dtype", ["f32", "f16", "bf16", "s32", "s8"])
def test_output_dtypes_of_each_input(dtype: str, out_dtype: str) -> None:
    allowed = {"s8": {"s32", "f32"}}.get(dtype, {"f32", "f16", "bf16"})
    if out_dtype in allowed:
        assert replace(GOOD, dtype=dtype, out_dtype=out_dtype).out_dtype == out_dtype
    else:
        with pytest.raises(InvalidInput, match=f"{dtype} inputs cannot write {out_dtype}"):
            replace(GOOD, dtype=dtype, out_dtype=out_dtype)


def test_tf32_is_for_f32_inputs_only() -> None:
    with pytest.raises(InvalidInput, match="tf32"):
        replace(GOOD, dtype="f16", precision="tf32")


def test_integer_results_have_no_smooth_activation() -> None:
    s8 = replace(GOOD, dtype="s8", out_dtype="s32")
    assert replace(s8, activation="relu").activation == "relu"
    with pytest.raises(InvalidInput, match="out_dtype='f32'"):
        replace(s8, activation="gelu")


def test_bucket_is_the_generators() -> None:
    assert [bucket(size) for size in (0, 1, 3, 64, 65)] == [0, 1, 4, 64, 128]
