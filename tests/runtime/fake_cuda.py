"""A GPU made of host memory: arrays that claim to be on it, and a launch that does what the kernels' ABI says.

The parameters are read as a kernel reads them, so a wrong stride, offset or size gives a wrong result, and what a
vectorised kernel takes for granted (unit strides, alignment) is checked at each launch.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tilery
from tilery import reference
from tilery.arrays import ArrayView, NumpyAdapter
from tilery.launch import GemmParams
from tilery.problem import DTYPE_CODES, ITEM_BYTES, Problem

Array = np.ndarray[Any, Any]

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "s32": np.int32, "s8": np.int8}
DTYPES = {code: name for name, code in DTYPE_CODES.items()}
STREAM = 77


class FakeArray:
    """Host memory that claims to be on GPU ``ordinal``."""

    def __init__(self, data: Array, ordinal: int = 0) -> None:
        self.data, self.ordinal = data, ordinal


class FakeAdapter(NumpyAdapter):
    """The library of FakeArray."""

    name = "fake"

    def __init__(self) -> None:
        self.allocated: list[FakeArray] = []

    def view(self, array: FakeArray, role: str) -> ArrayView:
        return super().view(array.data, role)._replace(kind="cuda", ordinal=array.ordinal)

    def empty(self, like: FakeArray, shape: tuple[int, ...], dtype: str) -> FakeArray:
        data = super().empty(None, shape, dtype)
        data.view(np.uint8).fill(0xAB)
        self.allocated.append(FakeArray(data, like.ordinal))
        return self.allocated[-1]

    def stream(self, ordinal: int) -> int:
        return STREAM


def memory(ptr: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Array:
    """A writable array over memory at an address; strides in elements."""
    item = ITEM_BYTES[dtype]

    class Holder:
        __array_interface__ = {  # noqa: RUF012
            "data": (ptr, False),
            "shape": shape,
            "strides": tuple(s * item for s in strides),
            "typestr": np.dtype(NUMPY[dtype]).str,
            "version": 3,
        }

    return np.asarray(Holder())


def check_promises(problem: Problem, p: GemmParams) -> None:
    """What a kernel of this layout and alignment takes for granted."""
    item, align = ITEM_BYTES[problem.dtype], problem.align
    if problem.layout == "any":
        return
    sides = (
        (problem.layout[0], p.a, p.a_row, p.a_col, p.a_batch, problem.m, problem.k),
        (problem.layout[1], p.b, p.b_row, p.b_col, p.b_batch, problem.k, problem.n),
    )
    for letter, ptr, row, col, batch, rows, cols in sides:
        unit, length, lead, lead_size = (col, cols, row, rows) if letter == "n" else (row, rows, col, cols)
        assert unit == 1
        assert length * item % align == 0
        assert (ptr or 0) % align == 0
        assert lead_size <= 1 or lead * item % align == 0
        assert problem.batch <= 1 or batch * item % align == 0


def run_kernel(problem: Problem, p: GemmParams) -> None:
    """D = activation(alpha * A @ B + beta * C + bias) over the parameters, element by element where they say."""
    assert (p.m, p.n, p.k, p.batch) == (problem.m, problem.n, problem.k, problem.batch)
    check_promises(problem, p)
    out, bias_dtype = DTYPES[p.out_dtype], DTYPES[p.bias_dtype]
    a = memory(p.a or 8, (p.batch, p.m, p.k), (p.a_batch, p.a_row, p.a_col), problem.dtype)
    b = memory(p.b or 8, (p.batch, p.k, p.n), (p.b_batch, p.b_row, p.b_col), problem.dtype)
    d = memory(p.d, (p.batch, p.m, p.n), (p.d_batch, p.d_row, p.d_col), out)
    c = memory(p.c, (p.batch, p.m, p.n), (p.c_batch, p.c_row, p.c_col), out) if p.c else None
    bias = memory(p.bias, (p.batch, p.n), (p.bias_batch, p.bias_stride), bias_dtype) if p.bias else None
    activation = ("none", "relu", "gelu", "silu")[p.activation]
    scale = {"alpha": p.alpha, "beta": p.beta, "c": c, "bias": bias, "activation": activation}
    reference.gemm_into(d, a, b, out_dtype=out, **scale)


class FakePlan:
    """A Plan of the fake GPU."""

    def __init__(self, problem: Problem, ordinal: int) -> None:
        self.problem, self.ordinal = problem, ordinal
        self.launches: list[GemmParams] = []

    def launch(self, params: ctypes.Structure, stream: int) -> None:
        assert stream == STREAM
        self.launches.append(GemmParams.from_buffer_copy(params))
        run_kernel(self.problem, params)


@dataclass
class FakeGpu:
    """What happened on the fake GPU."""

    adapter: FakeAdapter = field(default_factory=FakeAdapter)
    plans: list[FakePlan] = field(default_factory=list)

    def plan_for(self, problem: Problem, ordinal: int, stream: int | None = None) -> FakePlan:
        self.plans.append(FakePlan(problem, ordinal))
        return self.plans[-1]

    @property
    def launches(self) -> int:
        return sum(len(plan.launches) for plan in self.plans)

    def array(self, data: Array, ordinal: int = 0) -> FakeArray:
        return FakeArray(data, ordinal)


def f32(*shape: int, seed: int = 0) -> Array:
    """Small integers, whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def run_on(gpu: FakeGpu, call: dict[str, Any]) -> Array:
    """gemm with every array on the fake GPU."""
    on_gpu = {name: gpu.array(value) if isinstance(value, np.ndarray) else value for name, value in call.items()}
    found: Array = tilery.gemm(**on_gpu).data
    return found
