"""The slow but correct GEMM on the CPU, and how far a kernel's result may be from it.

Products are summed in float64 (exactly, for int8) and rounded once to the output dtype. A and B are 2-D, or have equal
leading axes; bfloat16 comes as an ml_dtypes array or as its bits in uint16, so that ml_dtypes is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from .dtypes import LONG_NAMES
from .problem import OUT_DTYPES

Array = np.ndarray[Any, Any]

# Blocks of at most 512 x 512 results and 4096 products: 34 MB of float64 however large the arrays are.
BLOCK_OUT, BLOCK_K = 512, 4096

UNIT_F32 = 2.0**-24
# Tensor cores cut off what a sum cannot hold instead of rounding it, so they err by up to a whole unit.
UNIT_TENSOR_CORE = 2.0**-23
ROUND_TF32 = 2.0**-11
ROUND_OUT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
HALF_SUBNORMAL = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134}
LARGEST = {"f32": float(np.finfo(np.float32).max), "f16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127}
TINY = 2.0**-126
"""Smallest normal float32: what is lost where a unit flushes smaller numbers to zero."""


def decode(array: Array) -> Array:
    """Values as float64, exactly; uint16 holds the bits of bfloat16.

    >>> decode(np.array([0x3F80, 0xC000], np.uint16)).tolist()
    [1.0, -2.0]
    """
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    values: Array = array.astype(np.float64)
    return values


def round_to(values: Array, dtype: str) -> Array:
    """Values rounded once to a dtype, to nearest, ties to even; bf16 as bits in uint16, s32 modulo 2**32.

    >>> [hex(bits) for bits in round_to(np.array([1.0, 1.00390625, 1.01171875]), "bf16").tolist()]
    ['0x3f80', '0x3f80', '0x3f82']
    """
    if dtype == "s32":
        values = values.astype(np.int64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded: Array = _bf16_bits(values) if dtype == "bf16" else values.astype(LONG_NAMES[dtype])
    return rounded


def _bf16_bits(values: Array) -> Array:
    # Rounded to float32 first, a value just beside a tie would become that tie: so cut off, and keep a sticky last bit.
    single = values.astype(np.float32)
    cut = np.where(np.abs(single) > np.abs(values), np.nextafter(single, np.float32(0)), single)
    bits = cut.view(np.uint32) | (cut != values).astype(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    kept: Array = np.where(np.isnan(values), (bits >> np.uint32(16)) | np.uint32(0x40), rounded)
    return kept.astype(np.uint16)


def activate(values: Array, activation: str) -> Array:
    """relu, gelu (with erf) or silu of float64 values, or of integers for relu; NaN stays NaN."""
    if activation == "relu":
        return np.maximum(values, 0)
    with np.errstate(over="ignore", invalid="ignore"):
        if activation == "gelu":
            erf = np.asarray(np.frompyfunc(math.erf, 1, 1)(values * math.sqrt(0.5)), np.float64)
            return np.asarray(0.5 * values * (1.0 + erf))
        return values if activation == "none" else np.asarray(values / (1.0 + np.exp(-values)))


def _blocks(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _product(a: Array, b: Array, magnitude: bool = False) -> Array:
    """Sum over k in float64, exact for int8: below 2**31 terms of at most 2**14."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for part in _blocks(a.shape[1], BLOCK_K):
        left, right = decode(a[:, part]), decode(b[part])
        with np.errstate(over="ignore", invalid="ignore"):
            total += np.abs(left) @ np.abs(right) if magnitude else left @ right
    return total


def _epilogue(total: Array, alpha: float, beta: float, c: Array | None, bias: Array | None, out_dtype: str) -> Array:
    if out_dtype == "s32":
        return _integer_epilogue(total, int(alpha), int(beta), c, bias)
    with np.errstate(over="ignore", invalid="ignore"):
        values = float(np.float32(alpha)) * total
        if c is not None:
            values = values + float(np.float32(beta)) * decode(c)
        return values if bias is None else values + decode(bias)


def _integer_epilogue(total: Array, alpha: int, beta: int, c: Array | None, bias: Array | None) -> Array:
    values = total.astype(np.int64) * alpha
    if c is not None:
        values = values + c.astype(np.int64) * beta
    if bias is not None:
        values = values + bias.astype(np.int64)
    return values.astype(np.int32).astype(np.int64)


def _tiles(batch: tuple[int, ...], m: int, n: int) -> Iterator[tuple[Any, ...]]:
    rows, cols = _blocks(m, BLOCK_OUT), _blocks(n, BLOCK_OUT)
    yield from product(*(range(size) for size in batch), rows, cols)


def _tile(
    index: tuple[Any, ...],
    a: Array,
    b: Array,
    out_dtype: str,
    alpha: float,
    beta: float,
    c: Array | None,
    bias: Array | None,
    activation: str,
) -> Array:
    *batch, rows, cols = index
    total = _product(a[(*batch, rows)], b[(*batch, slice(None), cols)])
    if a.dtype == np.int8:
        total = total.astype(np.int64).astype(np.int32).astype(np.float64)  # the accumulator wraps
    bias_part = None if bias is None else bias[(*(batch if bias.ndim > 1 else ()), cols)]
    values = _epilogue(total, alpha, beta, None if c is None else c[index], bias_part, out_dtype)
    return activate(values, activation)


def gemm_into(
    out: Array,
    a: Array,
    b: Array,
    *,
    out_dtype: str,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Array | None = None,
    bias: Array | None = None,
    activation: str = "none",
) -> None:
    """Write activation(alpha * A @ B + beta * C + bias), rounded once, into ``out`` (uint16 for bf16).

    ``c`` may be ``out`` itself. ``bias`` is (n,), or (..., n) with the leading axes of A.
    """
    for index in _tiles(out.shape[:-2], *out.shape[-2:]):
        values = _tile(index, a, b, out_dtype, alpha, beta, c, bias, activation)
        out[index] = round_to(values, out_dtype)


def exact(
    a: Array,
    b: Array,
    *,
    out_dtype: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Array | None = None,
    bias: Array | None = None,
    activation: str = "none",
) -> Array:
    """The result before it is rounded: float64, or int64 wrapped to 32 bits for s32.

    >>> exact(np.float32([[1, 2]]), np.float32([[3], [-4]]), activation="relu").tolist()
    [[0.0]]
    """
    kind = out_dtype or OUT_DTYPES["s8" if a.dtype == np.int8 else "f32"][0]
    shape = (*a.shape[:-1], b.shape[-1])
    out = np.empty(shape, np.int64 if kind == "s32" else np.float64)
    for index in _tiles(shape[:-2], *shape[-2:]):
        out[index] = _tile(index, a, b, kind, alpha, beta, c, bias, activation)
    return out


def bound(
    a: Array,
    b: Array,
    *,
    dtype: str,
    out_dtype: str,
    precision: str = "ieee",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Array | None = None,
    bias: Array | None = None,
    activation: str = "none",
) -> Array:
    """How far each element of a right kernel's result may be from `exact`: 0 for s32.

    |C^ - C| <= gamma_k |alpha| |A||B| + the epilogue's four roundings + the activation's error + output rounding, with
    gamma_k = k u / (1 - k u) and u = 2**-24 for sums in float32, 2**-23 for sums in tensor cores (f16, bf16, tf32),
    whatever the order of summation. tf32 also rounds both inputs by 2**-11. int8 sums are exact.
    """
    shape = (*a.shape[:-1], b.shape[-1])
    if out_dtype == "s32":
        return np.zeros(shape)
    magnitude = np.empty(shape)
    for index in _tiles(shape[:-2], *shape[-2:]):
        *batch, rows, cols = index
        magnitude[index] = _product(a[(*batch, rows)], b[(*batch, slice(None), cols)], magnitude=True)
    with np.errstate(over="ignore", invalid="ignore"):
        error, scale = _linear_error(magnitude, a.shape[-1], dtype, precision, alpha, beta, c, bias)
        if activation in ("gelu", "silu"):
            # Both have slopes below 1.13; 8 u |x| is the error of erf and exp in float32.
            error = 1.13 * error + 8 * UNIT_F32 * scale
        value = np.abs(exact(a, b, out_dtype=out_dtype, alpha=alpha, beta=beta, c=c, bias=bias, activation=activation))
        return np.asarray(error + ROUND_OUT[out_dtype] * (value + error) + HALF_SUBNORMAL[out_dtype])


def _linear_error(
    magnitude: Array, k: int, dtype: str, precision: str, alpha: float, beta: float, c: Array | None, bias: Array | None
) -> tuple[Array, Array]:
    unit = UNIT_F32 if dtype == "f32" and precision == "ieee" else UNIT_TENSOR_CORE
    gamma = 0.0 if dtype == "s8" else k * unit / (1 - k * unit)
    inputs = (1 + ROUND_TF32) ** 2 - 1 if precision == "tf32" else 0.0
    summed = abs(alpha) * magnitude
    scale = summed * (1 + inputs)
    if c is not None:
        scale = scale + abs(beta) * np.abs(decode(c))
    if bias is not None:
        scale = scale + np.abs(decode(bias) if bias.ndim == 1 else decode(bias)[..., None, :])
    epilogue = 4 * UNIT_F32 / (1 - 4 * UNIT_F32)
    error = summed * (inputs + gamma * (1 + inputs)) + epilogue * scale * (1 + gamma) + (k * abs(alpha) + 4) * TINY
    return error, scale


def ratios(got: Array, expected: Array, allowed: Array, out_dtype: str) -> Array:
    """The error of each element, as a part of what is allowed: at most 1.0 if right, inf for a wrong NaN or Inf.

    Args:
        got: the kernel's result in its dtype; bf16 as bits or as an ml_dtypes array.
        expected: from `exact`.
        allowed: from `bound`.
        out_dtype: dtype of ``got``. An Inf is right where the exact value comes within the bound of the largest number.
    """
    values = decode(got)
    if values.shape != expected.shape:
        raise ValueError(f"a result of shape {values.shape} cannot be compared with one of shape {expected.shape}")
    if out_dtype == "s32":
        return np.where(values == expected, 0.0, math.inf)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(values - expected)
        ratio = np.where(error == 0, 0.0, error / allowed)
        overflow = (np.abs(expected) + allowed >= LARGEST[out_dtype]) & (values == np.copysign(np.inf, expected))
        right = overflow | (np.isnan(values) & np.isnan(expected)) | (values == expected)
        return np.where(right, 0.0, np.where(np.isfinite(values) & np.isfinite(expected), ratio, math.inf))


def worst(got: Array, expected: Array, allowed: Array, out_dtype: str) -> float:
    """The largest of `ratios`: at most 1.0 if ``got`` is right."""
    return float(np.max(ratios(got, expected, allowed, out_dtype), initial=0.0))
