"""What a right result is: float64 on the GPU, and around it the bound of `tilery.reference.bound`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from tilery.reference import HALF_SUBNORMAL, ROUND_OUT, ROUND_TF32, TINY, UNIT_F32, UNIT_TENSOR_CORE

functional = torch.nn.functional

SHORT = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "s32",
    torch.int8: "s8",
}
DTYPES = {short: dtype for dtype, short in SHORT.items()}
# The slopes of gelu and silu stay below.
STEEPEST = 1.13


@dataclass(frozen=True)
class Epilogue:
    """What is done to a product: activation(alpha * product + beta * c + bias)."""

    alpha: float = 1.0
    beta: float = 0.0
    c: Any = None
    bias: Any = None
    activation: str = "none"

    def kept(self) -> Epilogue:
        """The same with a copy of ``c``, for a call that overwrites it."""
        return self if self.c is None else replace(self, c=self.c.clone())

    def arguments(self) -> dict[str, Any]:
        """As ``tilery.gemm`` takes it."""
        activation = None if self.activation == "none" else self.activation
        return vars(self) | {"activation": activation}


def expected(a: Any, b: Any, out: Any, epilogue: Epilogue, *, unit: float, tf32: bool = False) -> tuple[Any, Any]:
    """The exact result of (..., m, k) times (..., k, n), and how far a right one may be from it; None for int32.

    ``unit`` is the relative error of one addition.
    """
    if out is torch.int32:
        return _integer(a, b, epilogue), None
    values = _linear(epilogue.alpha * (a.double() @ b.double()), epilogue)
    error, scale = _error(a, b, epilogue, unit, tf32)
    if epilogue.activation in ("gelu", "silu"):
        error = STEEPEST * error + 8 * UNIT_F32 * scale
    values = {"none": lambda x: x, "relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu}[
        epilogue.activation
    ](values)
    short = SHORT[out]
    return values, error + ROUND_OUT[short] * (values.abs() + error) + HALF_SUBNORMAL[short]


def _columns(bias: Any) -> Any:
    return bias if bias.ndim == 1 else bias[..., None, :]


def _linear(values: Any, epilogue: Epilogue) -> Any:
    if epilogue.c is not None:
        values = values + epilogue.beta * epilogue.c.double()
    return values if epilogue.bias is None else values + _columns(epilogue.bias).double()


def _error(a: Any, b: Any, epilogue: Epilogue, unit: float, tf32: bool) -> tuple[Any, Any]:
    k = a.shape[-1]
    gamma = 0.0 if a.dtype is torch.int8 else k * unit / (1 - k * unit)
    inputs = (1 + ROUND_TF32) ** 2 - 1 if tf32 else 0.0
    summed = abs(epilogue.alpha) * (a.double().abs() @ b.double().abs())
    scale = summed * (1 + inputs)
    if epilogue.c is not None:
        scale = scale + abs(epilogue.beta) * epilogue.c.double().abs()
    if epilogue.bias is not None:
        scale = scale + _columns(epilogue.bias).double().abs()
    rounding = 4 * UNIT_F32 / (1 - 4 * UNIT_F32)
    error = summed * (inputs + gamma * (1 + inputs)) + rounding * scale * (1 + gamma)
    return error + (k * abs(epilogue.alpha) + 4) * TINY, scale


def _integer(a: Any, b: Any, epilogue: Epilogue) -> Any:
    """int64 wrapped to 32 bits; float64 sums of int8 products are exact."""
    values = (a.double() @ b.double()).long() * int(epilogue.alpha)
    if epilogue.c is not None:
        values = values + int(epilogue.beta) * epilogue.c.long()
    if epilogue.bias is not None:
        values = values + _columns(epilogue.bias).long()
    values = values.int().long()
    return values.clamp(min=0) if epilogue.activation == "relu" else values


def fault(got: Any, want: Any, allowed: Any) -> str:
    """What is wrong with a result, in one line; "" where it is right."""
    if tuple(got.shape) != tuple(want.shape):
        return f"shape {tuple(got.shape)}, not {tuple(want.shape)}"
    values = got.to(want.dtype)
    right = values == want
    if allowed is not None:
        near = ((values - want).abs() <= allowed) & want.isfinite() & values.isfinite()
        right = right | near | (values.isnan() & want.isnan())
    wrong = (~right).nonzero()
    if len(wrong) == 0:
        return ""
    at = tuple(wrong[0].tolist())
    limit = 0 if allowed is None else allowed.expand(want.shape)[at].item()
    first = f"got {values[at].item():.9g}, want {want[at].item():.9g} within {limit:.2g}"
    return f"{len(wrong)} of {want.numel()} elements wrong, first at {at}: {first}"


def check(got: Any, a: Any, b: Any, epilogue: Epilogue | None = None, *, tf32: bool = False) -> None:
    """Assert that a result of the public API is right, whatever variant computed it."""
    unit = UNIT_F32 if a.dtype is torch.float32 and not tf32 else UNIT_TENSOR_CORE
    problem = fault(got, *expected(a, b, got.dtype, epilogue or Epilogue(), unit=unit, tf32=tf32))
    assert not problem, problem
