"""The bits themselves, from kernels that run: a row is the same among few rows and many, whichever variant serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilery
from tests.numerics.conftest import CONFIGS, computing
from tilery import policy
from tilery.errors import UnknownName, UnsupportedProblem
from tilery.host import plan as plans
from tilery.pack import Pack

Array = np.ndarray[Any, Any]
Gemm = Callable[[Array, Array], Array]

# Around the edges of tiles of 16, 32, 64 and 128 rows.
ROWS = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 150)
DTYPES = {
    "f32": np.float32,
    "tf32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "s8": np.int8,
}
# k is a multiple of 16 bytes for every dtype, and of no tile; 77 is a multiple of nothing.
DEPTHS = (208, 77)


def operands(dtype: str, k: int, n: int = 80) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(k)
    if dtype == "s8":
        a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((ROWS[-1], k), (k, n)))
        return a, b, rng.integers(-9, 9, n).astype(np.float32)
    a, b, bias = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((ROWS[-1], k), (k, n), (n,)))
    return a, b, bias


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def differing(gemm: Gemm, a: Array, b: Array) -> list[int]:
    """The numbers of rows with which some row has other bits than among all rows."""
    whole = bits(gemm(a, b))
    return [m for m in ROWS if not np.array_equal(bits(gemm(a[:m], b)), whole[:m])]


def call(dtype: str, bias: Array | None) -> Gemm:
    """The call under test, plain or with a whole epilogue."""
    options: dict[str, Any] = {"precision": "tf32"} if dtype == "tf32" else {}
    if bias is not None:
        options |= {"bias": bias, "activation": "gelu", "alpha": 0.3}
        options |= {"out_dtype": "f32"} if dtype == "s8" else {}
    return lambda a, b: tilery.gemm(a, b, **options)


def used() -> set[str]:
    return {made.decision.variant.name for made in plans._memory.plans.values() if made}


@pytest.mark.parametrize("epilogue", [False, True], ids=["plain", "epilogue"])
@pytest.mark.parametrize("k", DEPTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_number_of_rows(host: Pack, dtype: str, k: int, epilogue: bool) -> None:
    a, b, bias = operands(dtype, k)
    with policy.scope(numerics="batch_invariant"):
        assert differing(call(dtype, bias if epilogue else None), a, b) == []
    assert {host.variants[name].sums for name in used()} == {computing(dtype)[-1].sums}


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_nor_on_the_layout_and_the_batch(host: Pack, dtype: str) -> None:
    a, b, _ = operands(dtype, 208)
    upright = np.asfortranarray(a)
    several = np.stack([b, b, -b])
    with policy.scope(numerics="batch_invariant"):
        whole = bits(tilery.gemm(a, b))
        assert differing(lambda a, b: tilery.gemm(np.asfortranarray(a), b), a, b) == []
        assert np.array_equal(bits(tilery.gemm(upright, b)), whole)
        assert np.array_equal(bits(tilery.gemm(a[:33], several))[1], whole[:33])
        assert np.array_equal(bits(tilery.gemm(np.stack([a[:33]] * 2), b))[1], whole[:33])
    assert len({host.variants[name].layout for name in used()}) > 1


@pytest.mark.parametrize("k", DEPTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_variants_that_declare_the_same_sums_have_the_same_bits(host: Pack, dtype: str, k: int) -> None:
    """Each variant alone, forced on all rows and on some."""
    a, b, bias = operands(dtype, k)
    gemm, results = call(dtype, bias), {}
    for variant in computing(dtype):
        left = np.asfortranarray(a) if variant.layout == "tn" else a
        with policy.scope(force_variant=variant.name):
            if variant.align == 16 and k % 16:
                with pytest.raises(UnknownName, match="aligned"):
                    gemm(left, b)
                continue
            results[variant.name] = bits(gemm(left, b))
            if variant.layout != "tn":
                assert differing(gemm, left, b) == []
    by_sums: dict[tuple[str, str], list[Array]] = {}
    for name, result in results.items():
        by_sums.setdefault(host.variants[name].sums, []).append(result)
    assert all(np.array_equal(group[0], other) for group in by_sums.values() for other in group)
    assert max(map(len, by_sums.values())) > 1


def test_the_check_sees_a_choice_that_mixes_families(host: Pack) -> None:
    """Planted: from 64 rows on another family serves, as the cost model alone might have it."""
    a, b, _ = operands("tf32", 208)
    few, many = CONFIGS["tf32"][1], CONFIGS["f32"][1]

    def planted(a: Array, b: Array) -> Array:
        with policy.scope(force_variant=few if len(a) < 64 else many):
            return tilery.gemm(a, b, precision="tf32")

    assert differing(planted, a, b) == [m for m in ROWS if m < 64]
    with policy.scope(numerics="batch_invariant"), pytest.raises(UnknownName, match="batch_invariant"):
        planted(a, b)


def test_equal_calls_have_equal_bits(host: Pack) -> None:
    a, b, bias = operands("bf16", 77)
    gemm = call("bf16", bias)
    with policy.scope(numerics="deterministic"):
        first = bits(gemm(a, b))
        assert all(np.array_equal(first, bits(gemm(a.copy(), b.copy()))) for _ in range(5))


def test_the_reference_does_not_stand_in(host: Pack) -> None:
    """It sums in float64, in an order that NumPy chooses by the sizes."""
    a, b, _ = operands("f16", 208)
    with policy.scope(numerics="batch_invariant"), pytest.raises(UnsupportedProblem, match="pass copies with adjacent"):
        tilery.gemm(a[:, ::2], b[::2])
    with policy.scope(numerics="deterministic"):
        assert tilery.gemm(a[:, ::2], b[::2]).shape == (len(a), b.shape[1])


def test_a_sum_that_underflows_has_one_sign(host: Pack) -> None:
    """A sum can underflow to -0, and the zeros behind k, of which a deeper tile has more, would make it +0."""
    a, b = np.full((40, 16), -1e-30, np.float32), np.full((16, 80), 1e-30, np.float32)
    results = {}
    for variant in computing("f32"):
        with policy.scope(force_variant=variant.name):
            results[variant.name] = bits(tilery.gemm(np.asfortranarray(a) if variant.layout == "tn" else a, b))
    assert {name for name, result in results.items() if result.any()} == set()
