"""The kernels' parameter struct, and what surrounds a launch."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from .generator.variant import Variant
from .generator.work import ceil_div
from .problem import ACTIVATIONS, DTYPE_CODES, Problem

MAX_GRID_Z = 65535
"""Blocks beyond this many batch entries take several in turn."""

_POINTERS = ("a", "b", "c", "d", "bias")
_STRIDES = ("a_row", "a_col", "b_row", "b_col", "c_row", "c_col", "d_row", "d_col")
_STEPS = ("a_batch", "b_batch", "c_batch", "d_batch", "bias_stride", "bias_batch")
_INTS = ("m", "n", "k", "batch")


def grid(variant: Variant, m: int, n: int, batch: int) -> tuple[int, int, int]:
    """Blocks of a launch: one for each tile of the result, and for each batch entry up to `MAX_GRID_Z`."""
    tile_m, tile_n, _ = variant["tile"]
    return ceil_div(m, tile_m) * ceil_div(n, tile_n), 1, min(batch, MAX_GRID_Z)


class GemmParams(ctypes.Structure):
    """The only parameter of every GEMM kernel, by value: struct GemmParams of the templates, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_longlong) for name in (*_STRIDES, *_STEPS)),
        *((name, ctypes.c_int) for name in _INTS),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("activation", ctypes.c_int),
        ("out_dtype", ctypes.c_int),
        ("bias_dtype", ctypes.c_int),
        ("pad", ctypes.c_int),
    )


class Strides(NamedTuple):
    """Strides in elements of one operand; ``bias`` has no row."""

    row: int = 0
    col: int = 0
    batch: int = 0


class Pointers(NamedTuple):
    """Addresses of the operands; 0 where there is none."""

    a: int
    b: int
    c: int
    d: int
    bias: int


def template(problem: Problem, a: Strides, b: Strides, c: Strides, d: Strides, bias: Strides, bias_dtype: str) -> bytes:
    """Everything of the parameters that stays the same between calls of one form, as bytes of the struct."""
    matrices = {"a": a, "b": b, "c": c, "d": d}
    params = GemmParams(
        **{f"{name}_{axis}": value for name, strides in matrices.items() for axis, value in strides._asdict().items()},
        bias_stride=bias.col,
        bias_batch=bias.batch,
        **{name: getattr(problem, name) for name in _INTS},
        activation=ACTIVATIONS[problem.activation],
        out_dtype=DTYPE_CODES[problem.out_dtype],
        bias_dtype=DTYPE_CODES[bias_dtype],
    )
    return bytes(params)


def fill(form: bytes, pointers: Pointers, alpha: float, beta: float) -> GemmParams:
    """The parameters of one launch."""
    params = GemmParams.from_buffer_copy(form)
    params.a, params.b, params.c, params.d, params.bias = pointers
    params.alpha, params.beta = alpha, beta
    return params


def synchronize(ordinal: int, stream: int) -> None:
    """Wait until the work on ``stream`` of GPU ``ordinal`` is done; the caller's current context stays as it was."""
    from .device import call, current

    with current(ordinal):
        call("cuStreamSynchronize", stream)
