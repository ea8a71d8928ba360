"""The reference against explicit loops, its rounding against exact arithmetic, and the bound against wrong kernels."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilery import reference

Array = np.ndarray[Any, Any]


def loops(a: Array, b: Array, alpha: float, beta: float, c: Array, bias: Array, activation: str) -> Array:
    """activation(alpha * A @ B + beta * C + bias), one element at a time."""
    functions = {
        "none": lambda x: x,
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
        "silu": lambda x: x / (1 + math.exp(-x)),
    }
    out = np.empty((a.shape[0], b.shape[1]))
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = math.fsum(float(a[i, p]) * float(b[p, j]) for p in range(a.shape[1]))
            out[i, j] = functions[activation](alpha * total + beta * float(c[i, j]) + float(bias[j]))
    return out


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_exact_equals_explicit_loops(activation: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((5, 7), (7, 3), (5, 3)))
    bias = rng.standard_normal(3).astype(np.float32)
    found = reference.exact(a, b, alpha=1.25, beta=-0.5, c=c, bias=bias, activation=activation)
    np.testing.assert_allclose(found, loops(a, b, 1.25, -0.5, c, bias, activation), rtol=1e-14, atol=1e-15)


def test_blocks_cover_every_element_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_OUT", 3)
    monkeypatch.setattr(reference, "BLOCK_K", 4)
    rng = np.random.default_rng(2)
    a, b = rng.integers(-9, 9, (2, 7, 9)), rng.integers(-9, 9, (2, 9, 5))
    c, bias = rng.integers(-9, 9, (2, 7, 5)), rng.integers(-9, 9, (2, 5))
    out = np.full((2, 7, 5), -1, np.float32)
    as_f32 = [x.astype(np.float32) for x in (a, b, c, bias)]
    reference.gemm_into(out, *as_f32[:2], out_dtype="f32", beta=2, c=as_f32[2], bias=as_f32[3])
    assert np.array_equal(out, a @ b + 2 * c + bias[:, None, :])


def test_c_may_be_the_output_itself() -> None:
    a, c = np.eye(4, dtype=np.float32), np.arange(16, dtype=np.float32).reshape(4, 4)
    reference.gemm_into(c, a, a, out_dtype="f32", beta=2, c=c)
    assert np.array_equal(c, np.eye(4) + 2 * np.arange(16).reshape(4, 4))


def test_int8_is_exact_and_wraps_modulo_2_to_the_32() -> None:
    a = np.full((1, 1000), -128, np.int8)
    c, bias = np.array([[2**31 - 1]], np.int32), np.array([5], np.int32)
    found = reference.exact(a, a.T, alpha=2**24 - 1, beta=3, c=c, bias=bias)
    expected = ((2**24 - 1) * 128 * 128 * 1000 + 3 * (2**31 - 1) + 5 + 2**31) % 2**32 - 2**31
    assert found.tolist() == [[expected]]
    assert reference.exact(a, np.full_like(a.T, 2), activation="relu").tolist() == [[0]]


def test_int8_accumulator_wraps_before_it_becomes_f32() -> None:
    a = np.full((1, 2**17 + 1), -128, np.int8)
    assert reference.exact(a, a.T, out_dtype="f32").tolist() == [[float(-(2**31) + 2**14)]]


def test_empty_sum_gives_the_epilogue_alone() -> None:
    a, b, c = np.empty((2, 0), np.float32), np.empty((0, 2), np.float32), np.float32([[1, -2], [3, 4]])
    assert reference.exact(a, b, beta=2, c=c, activation="relu").tolist() == [[2, 0], [6, 8]]


def test_nan_and_inf_follow_ieee_arithmetic() -> None:
    a = np.float32([[np.nan, 1], [np.inf, 1], [np.inf, -np.inf], [1, 2]])
    found = reference.exact(a, np.float32([[1], [1]]), activation="relu")
    assert np.isnan(found[0, 0])
    assert found[1, 0] == np.inf
    assert np.isnan(found[2, 0])
    assert found[3, 0] == 3


def nearest_bf16(value: float) -> int:
    """Bits of the bfloat16 nearest to a positive value, ties to even, by exact comparison with both neighbours."""
    low, high = 0, 0x7F80
    as_number = lambda bits: Fraction(float(reference.decode(np.array([bits], np.uint16))[0]))  # noqa: E731
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if as_number(middle) <= Fraction(value) else (low, middle)
    upper = Fraction(2) ** 128 if high == 0x7F80 else as_number(high)
    below, above = Fraction(value) - as_number(low), upper - Fraction(value)
    return low if below < above or (below == above and low % 2 == 0) else high


@given(st.floats(min_value=0, max_value=2.0**129, allow_nan=False, allow_subnormal=True), st.integers(-3, 3))
def test_bf16_is_rounded_once(value: float, nudge: int) -> None:
    # Beside a tie of bfloat16 is where a first rounding to float32 would go wrong: bit 44 is half of its last place.
    tie = (np.array([value]).view(np.uint64) >> np.uint64(45) << np.uint64(45)) | np.uint64(1 << 44)
    near = float((tie.astype(np.int64) + nudge).view(np.float64)[0])
    for number in (value, near):
        if number < 2.0**129:
            assert int(reference.round_to(np.array([number]), "bf16")[0]) == nearest_bf16(number)


def test_bf16_rounding_of_signs_infinities_nan_and_overflow() -> None:
    values = np.array([-1.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 3.4e38, 1e-300])
    found = reference.decode(reference.round_to(values, "bf16"))
    expected = np.array([-1.0, -0.0, np.inf, -np.inf, np.nan, np.inf, -np.inf, np.inf, 0.0])
    expected[7] = float(np.array(3.4e38, ml_dtypes.bfloat16))
    np.testing.assert_array_equal(found, expected)
    assert np.signbit(found[1])


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bf16_rounding_of_float32_agrees_with_ml_dtypes(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    ours = reference.decode(reference.round_to(values.astype(np.float64), "bf16"))
    np.testing.assert_array_equal(ours, values.astype(ml_dtypes.bfloat16).astype(np.float64))


@pytest.mark.parametrize(("dtype", "parts"), [("f32", 24), ("f16", 11)])
def test_f32_and_f16_are_rounded_once(dtype: str, parts: int) -> None:
    tie = 1 + 2.0**-parts
    values = np.array([tie, np.nextafter(tie, 2), np.nextafter(tie, 0), 1e300])
    assert reference.round_to(values, dtype).astype(float).tolist() == [1, 1 + 2.0 ** (1 - parts), 1, math.inf]


CASES = [
    ("f32", "f32", "ieee"),
    ("f32", "bf16", "tf32"),
    ("f16", "f16", "ieee"),
    ("bf16", "f32", "ieee"),
    ("s8", "f32", "ieee"),
]
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s8": np.int8}


def problem(dtype: str, k: int = 33) -> tuple[Array, Array, dict[str, Any]]:
    rng = np.random.default_rng(k)
    scale = 50 if dtype == "s8" else 1
    a, b = ((scale * rng.standard_normal(shape)).astype(NUMPY[dtype]) for shape in ((6, k), (k, 4)))
    return a, b, {"alpha": 0.5, "bias": rng.standard_normal(4).astype(np.float32), "activation": "gelu"}


@pytest.mark.parametrize(("dtype", "out_dtype", "precision"), CASES)
def test_bound_admits_a_right_kernel_and_refuses_a_dropped_product(dtype: str, out_dtype: str, precision: str) -> None:
    a, b, epilogue = problem(dtype)
    expected = reference.exact(a, b, out_dtype=out_dtype, **epilogue)
    allowed = reference.bound(a, b, dtype=dtype, out_dtype=out_dtype, precision=precision, **epilogue)
    assert reference.worst(reference.round_to(expected, out_dtype), expected, allowed, out_dtype) <= 1
    without = reference.exact(a[:, :-1], b[:-1], out_dtype=out_dtype, **epilogue)
    assert reference.worst(reference.round_to(without, out_dtype), expected, allowed, out_dtype) > 1


@pytest.mark.parametrize("order", ["forward", "pairs"])
def test_bound_admits_float32_sums_in_any_order(order: str) -> None:
    a, b, _ = problem("f32", 1024)
    products = a[:, :, None] * b[None]
    total = np.zeros((6, 4), np.float32)
    if order == "forward":
        for p in range(1024):
            total += products[:, p]
    else:
        while products.shape[1] > 1:
            products = products[:, ::2] + products[:, 1::2]
        total = products[:, 0]
    allowed = reference.bound(a, b, dtype="f32", out_dtype="f32")
    assert 0 < reference.worst(total, reference.exact(a, b), allowed, "f32") <= 1


def test_tf32_inputs_pass_as_tf32_and_fail_as_ieee() -> None:
    a, b, _ = problem("f32", 64)
    cut = [((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b)]
    got = (cut[0].astype(float) @ cut[1].astype(float)).astype(np.float32)
    tf32, ieee = (reference.bound(a, b, dtype="f32", out_dtype="f32", precision=p) for p in ("tf32", "ieee"))
    assert reference.worst(got, reference.exact(a, b), tf32, "f32") <= 1
    assert reference.worst(got, reference.exact(a, b), ieee, "f32") > 1


def test_worst_sees_wrong_nan_inf_integers_and_shapes() -> None:
    exact, allowed = np.array([[1.0, np.inf, np.nan, 65504.0]]), np.array([[0.1, np.nan, np.nan, 16.0]])
    assert reference.worst(np.float16([[1, np.inf, np.nan, 65504]]), exact, allowed, "f16") == 0
    assert reference.worst(np.float16([[1, np.inf, np.nan, np.inf]]), exact, allowed, "f16") == 0
    for wrong in (
        [np.nan, np.inf, np.nan, 65504],
        [1, -np.inf, np.nan, 65504],
        [1, np.inf, 0, 65504],
        [1, 3, np.nan, 65504],
    ):
        assert reference.worst(np.float16([wrong]), exact, allowed, "f16") == math.inf
    assert reference.worst(np.int32([[3]]), np.array([[4]]), np.zeros((1, 1)), "s32") == math.inf
    with pytest.raises(ValueError, match="shape"):
        reference.worst(np.float32([1]), np.array([1.0, 2.0]), np.array([1.0, 1.0]), "f32")
