"""GEMM problems in guarded memory: made, run, and compared with the float64 reference."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from generator.variant import Variant
from tests.host.harness import Library, Operand
from tilery import reference
from tilery.launch import Pointers, Strides, fill, template
from tilery.problem import Problem

Array = np.ndarray[Any, Any]
STORED = {"f32": np.float32, "tf32": np.float32, "f16": np.float16, "bf16": np.uint16, "s8": np.int8, "s32": np.int32}


@dataclass(frozen=True)
class Shape:
    m: int
    n: int
    k: int
    batch: int = 1


@dataclass(frozen=True)
class Epilogue:
    out_dtype: str
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False
    activation: str = "none"


@dataclass
class Placed:
    """An operand in memory that is poison around it and between its rows."""

    name: str
    flat: Array
    view: Array
    poison: int = 0
    writers: Array | None = None

    @property
    def strides(self) -> Strides:
        batch, row, col = (stride // self.view.itemsize for stride in self.view.strides)
        return Strides(row, col, batch)

    @property
    def operand(self) -> Operand:
        strides, size = self.strides, self.view.itemsize
        last = sum((n - 1) * s for n, s in zip(self.view.shape, (strides.batch, strides.row, strides.col), strict=True))
        return Operand(self.name, self.view.ctypes.data, (last + 1) * size if self.view.size else 0, size, self.writers)


def place(
    name: str, values: Array, *, transposed: bool, pad: int, shift: int, step: int = 1, output: bool = False
) -> Placed:
    """Values of (batch, rows, columns), columns running together in memory, or rows if `transposed`.

    Rows are `pad` elements apart, neighbours `step` elements, and the first element `shift` after a 16-byte boundary.
    """
    batch, rows, cols = values.shape
    lines, length = (cols, rows) if transposed else (rows, cols)
    pitch = length * step + pad
    count = shift + batch * (lines * pitch + pad) + 16
    size = values.itemsize
    raw = np.full(count * size + 16, 0x81 if values.dtype == np.int8 else 0xFF, np.uint8)
    start = -raw.ctypes.data % 16
    flat = raw[start : start + count * size].view(values.dtype)
    inner = (size * step, pitch * size) if transposed else (pitch * size, size * step)
    strides = ((lines * pitch + pad) * size, *inner)
    view = np.lib.stride_tricks.as_strided(flat[shift:], values.shape, strides)
    writers = None
    if output:
        writers = np.full(count, -1, np.int64)
    else:
        view[...] = values
    return Placed(name, flat, view, writers=writers)


@dataclass
class Case:
    """One launch of a variant. `shift`, `pad` and `step` (in elements) make pointers and strides odd."""

    variant: Variant
    shape: Shape
    epilogue: Epilogue
    pad: int = 0
    shift: int = 0
    step: int = 1
    seed: int = 0
    layout: str = ""
    placed: dict[str, Placed] = field(default_factory=dict)
    problem: Problem = field(init=False)

    def __post_init__(self) -> None:
        v, s, e = self.variant, self.shape, self.epilogue
        rng = np.random.default_rng(zlib.crc32(f"{v.name} {s} {self.seed}".encode()))
        layout = self.layout or (v.layout if v.layout != "any" else "nn")
        out = STORED[e.out_dtype]

        def values(dtype: str, *size: int) -> Array:
            if dtype == "s8":
                return rng.integers(-128, 128, size).astype(np.int8)
            if dtype == "s32":
                return rng.integers(-1000, 1000, size).astype(np.int32)
            return reference.round_to(rng.standard_normal(size), "f32" if dtype == "tf32" else dtype)

        odd = {"pad": self.pad, "shift": self.shift, "step": self.step}
        self.placed["a"] = place("a", values(v.dtype, s.batch, s.m, s.k), transposed=layout[0] == "t", **odd)
        self.placed["b"] = place("b", values(v.dtype, s.batch, s.k, s.n), transposed=layout[1] == "t", **odd)
        empty = np.zeros((s.batch, s.m, s.n), out)
        self.placed["d"] = place("d", empty, transposed=False, output=True, pad=self.pad, shift=self.shift)
        if e.beta:
            self.placed["c"] = place("c", values(e.out_dtype, s.batch, s.m, s.n), transposed=True, pad=3, shift=1)
        if e.bias:
            self.placed["bias"] = place("bias", values(e.out_dtype, 1, 1, s.n), transposed=False, pad=0, shift=1)
        dtype = "f32" if v.dtype == "tf32" else v.dtype
        precision = "tf32" if v.dtype == "tf32" else "ieee"
        rest = (e.out_dtype, layout, 1, precision, e.bias, e.activation, e.beta != 0)
        self.problem = Problem("gemm", s.m, s.n, s.k, s.batch, dtype, *rest)

    def run(self, library: Library, *, check: bool = True, workers: int = 0) -> Array:
        v, s = self.variant, self.shape
        none = Strides()
        strides = {name: p.strides for name, p in self.placed.items()}
        bias = Strides(0, strides["bias"].col, 0) if "bias" in strides else none
        form = template(
            self.problem,
            strides["a"],
            strides["b"],
            strides.get("c", none),
            strides["d"],
            bias,
            self.epilogue.out_dtype,
        )
        addresses = {name: p.view.ctypes.data for name, p in self.placed.items()}
        pointers = Pointers(*(addresses.get(name, 0) for name in ("a", "b", "c", "d", "bias")))
        params = fill(form, pointers, self.epilogue.alpha, self.epilogue.beta)
        tile_m, tile_n, _ = v["tile"]
        library.run(
            v.name,
            params,
            (-(-s.m // tile_m) * -(-s.n // tile_n), 1, min(s.batch, 65535)),
            (v.threads,),
            shared_bytes=v.shared_bytes,
            seed=self.seed,
            workers=workers,
            operands=[p.operand for p in self.placed.values()] if check else (),
        )
        return self.placed["d"].view

    def error(self) -> float:
        """The worst error of what run() left, as a part of what is allowed; inf where anything beside D was written."""
        e, placed = self.epilogue, self.placed
        epilogue: dict[str, Any] = {
            "alpha": e.alpha,
            "beta": e.beta,
            "c": placed["c"].view if "c" in placed else None,
            "bias": placed["bias"].view[0, 0] if "bias" in placed else None,
            "activation": e.activation,
            "out_dtype": e.out_dtype,
        }
        a, b, d = placed["a"].view, placed["b"].view, placed["d"]
        expected = reference.exact(a, b, **epilogue)
        precision = "tf32" if self.variant.dtype == "tf32" else "ieee"
        dtype = "f32" if self.variant.dtype == "tf32" else self.variant.dtype
        allowed = reference.bound(a, b, dtype=dtype, precision=precision, **epilogue)
        worst = reference.worst(d.view, expected, allowed, e.out_dtype)
        d.view[...] = np.frombuffer(b"\xff" * 4, d.view.dtype)[0]
        untouched = bool((d.flat.view(np.uint8) == 0xFF).all())
        return worst if untouched else float("inf")
