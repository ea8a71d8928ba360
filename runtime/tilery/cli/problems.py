"""The problems of ``tilery demo``, from problems.toml, and fresh random data for them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..arrays import ArrayView
from ..geometry import contiguous_strides
from ..operands import Options, Views, prepare
from ..problem import OUT_DTYPES, Problem

Array = np.ndarray[Any, Any]

# Unsigned type, the bits of sign, mantissa and the exponent's two lowest, and what is added, so that random bits become
# a number whose magnitude is from 1/16 to 1.
FLOAT_BITS = {
    "f32": (np.uint32, 0x81FF_FFFF, 123 << 23),
    "f16": (np.uint16, 0x8FFF, 11 << 10),
    "bf16": (np.uint16, 0x81FF, 123 << 7),
}
VIEWED_AS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


class Operands(NamedTuple):
    """Data of one problem as it is stored; bf16 as bits in uint16."""

    a: Array
    b: Array
    bias: Array | None


@dataclass(frozen=True, slots=True)
class DemoProblem:
    """One problem of the demo.

    Attributes:
        name: where it comes from.
        m, n, k: sizes.
        dtype, layout, bias, activation, precision: as in `tilery.explain`.
        uncovered: that the table does not cover it.
    """

    name: str
    m: int
    n: int
    k: int
    dtype: str
    layout: str
    bias: bool = False
    activation: str | None = None
    precision: str = "ieee"
    uncovered: bool = False

    @property
    def out_dtype(self) -> str:
        """Dtype of the result."""
        return OUT_DTYPES[self.dtype][0]

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Shapes of A and B as they are stored."""
        first = (self.k, self.m) if self.layout[0] == "t" else (self.m, self.k)
        return first, (self.n, self.k) if self.layout[1] == "t" else (self.k, self.n)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `tilery.gemm` beside the arrays."""
        trans_a, trans_b = (letter == "t" for letter in self.layout)
        return {"trans_a": trans_a, "trans_b": trans_b, "activation": self.activation, "precision": self.precision}

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        return self.m * self.n * self.k

    def __str__(self) -> str:
        extras = [self.precision] * (self.precision != "ieee") + ["+bias"] * self.bias + [self.activation or ""]
        kind = " ".join([self.dtype, self.layout, *extras]).strip()
        return f"{self.name}  {self.m}x{self.n}x{self.k} {kind}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        keys = ("name", "m", "n", "k", "dtype", "layout", "bias", "activation", "precision", "uncovered")
        return {key: getattr(self, key) for key in keys} | {"out_dtype": self.out_dtype}

    def request(self) -> Problem:
        """The Problem that `tilery.gemm` makes of arrays like these, as every allocator aligns them."""
        a, b = (_view(shape, self.dtype) for shape in self.shapes)
        bias = _view((self.n,), self.out_dtype) if self.bias else None
        trans_a, trans_b = (letter == "t" for letter in self.layout)
        options = Options(trans_a, trans_b, self.activation, None, self.precision, False)
        problem = prepare(Views(a, b, None, bias, None), options).problem
        assert problem is not None, f"{self} has no element"
        return problem

    def data(self, rng: np.random.Generator) -> Operands:
        """Random inputs."""
        a, b = (_random(rng, shape, self.dtype) for shape in self.shapes)
        return Operands(a, b, _random(rng, (self.n,), self.out_dtype) if self.bias else None)


def _view(shape: tuple[int, ...], dtype: str) -> ArrayView:
    return ArrayView(0, shape, contiguous_strides(shape), dtype, "cuda", 0)


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype not in FLOAT_BITS:
        kind = np.int8 if dtype == "s8" else np.int32
        return rng.integers(-128, 128, shape, kind)
    unsigned, mask, offset = FLOAT_BITS[dtype]
    bits = rng.integers(0, 1 << 8 * np.dtype(unsigned).itemsize, shape, unsigned)
    bits &= unsigned(mask)
    bits += unsigned(offset)
    return bits.view(VIEWED_AS[dtype])


def load() -> list[DemoProblem]:
    """The problems in the order of the file."""
    rows = tomllib.loads(Path(__file__).with_name("problems.toml").read_text(encoding="utf-8"))["problem"]
    problems = []
    for row in rows:
        sizes = row["m"] if isinstance(row["m"], list) else [row["m"]]
        problems += [DemoProblem(**row | {"m": m}) for m in sizes]
    return problems
