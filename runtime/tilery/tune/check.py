"""Whether a result is right, from a sample of its rows and columns, before its kernel may be timed."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from .. import reference
from ..problem import ITEM_BYTES, Problem
from .buffers import Array, Layout

# Elements of A and B that are looked at: 10 ms of the host's time at most.
SAMPLED = 1 << 19
LEAST_LINES, MOST_LINES = 8, 64
# Of the result's rows that are copied to the host.
STAGED_BYTES = 1 << 20
BF16_EXPONENT = 0x7F80
# Products of so few lines keep NumPy's BLAS on this thread: waiting for others can take it a hundred times as long.
CHUNK = 8


class Rows(NamedTuple):
    """Equidistant rows of one batch entry of the result, so that one strided copy fetches them: from ``first`` on."""

    entry: int
    first: int
    step: int
    lines: int

    @property
    def indices(self) -> Array:
        """The rows' numbers."""
        return self.first + self.step * np.arange(self.lines)


def _rows(entry: int, m: int, most: int) -> Rows:
    """From the first rows to the last one at an odd distance, so that they fall on all places of a tile."""
    step = 1 if m <= most else -(-(m - 1) // max(most - 1, 1)) | 1
    lines = min(most, (m - 1) // step + 1)
    return Rows(entry, m - 1 - step * (lines - 1), step, lines)


def _cols(n: int, count: int) -> Array:
    drawn = np.random.default_rng(n).integers(0, n, max(count - 2, 0))
    found: Array = np.unique(np.concatenate([[0, n - 1], drawn]))
    return found


class Sample:
    """The sampled elements of a problem's result for the first set, with what they must be.

    Attributes:
        rows: of which batch entries and rows; each is to be copied whole.
        bytes: of a row.
        staged: bytes of all rows.
    """

    def __init__(self, layout: Layout) -> None:
        p = layout.problem
        self.problem, self.bytes = p, p.n * ITEM_BYTES[p.out_dtype]
        entries = sorted({0, p.batch - 1})
        lines = min(MOST_LINES, max(LEAST_LINES, SAMPLED // p.k // len(entries)))
        count = max(1, min(lines // 3, STAGED_BYTES // (self.bytes * len(entries))))
        self.rows = [_rows(entry, p.m, count) for entry in entries]
        self.staged = sum(rows.lines for rows in self.rows) * self.bytes
        self.cols = _cols(p.n, lines - count)
        self.right = [_right(layout, rows, self.cols) for rows in self.rows]

    def error(self, results: list[Array]) -> float:
        """The largest error of the copied rows (count x n each, bf16 as bits) as a part of what is allowed.

        At most 1 if right; inf for a wrong or unwritten element.
        """
        worst = 0.0
        for got, (expected, allowed) in zip(results, self.right, strict=True):
            if not _finite(got):
                return math.inf
            worst = max(worst, reference.worst(got[:, self.cols], expected, allowed, self.problem.out_dtype))
        return worst


def _finite(got: Array) -> bool:
    """Whether no element is NaN or infinite, as unwritten ones are."""
    if got.dtype == np.uint16:
        return not bool(((got & np.uint16(BF16_EXPONENT)) == BF16_EXPONENT).any())
    return bool(np.isfinite(got).all())


def _right(layout: Layout, rows: Rows, cols: Array) -> tuple[Array, Array]:
    """The exact values, and how far a right result may be from them."""
    p, inner = layout.problem, np.arange(layout.problem.k)
    a = layout.gather("a", rows.entry, rows.indices, inner)
    b = layout.gather("b", rows.entry, inner, cols)
    if p.dtype != "s8":
        a, b = reference.decode(a), reference.decode(b)
    c = layout.gather("c", rows.entry, rows.indices, cols) if p.accumulate else None
    bias = layout.gather("bias", 0, np.zeros(1, np.int64), cols)[0] if p.bias else None
    expected, allowed = np.empty((2, rows.lines, len(cols)))
    for i, j in product(range(0, rows.lines, CHUNK), range(0, len(cols), CHUNK)):
        part = slice(i, i + CHUNK), slice(j, j + CHUNK)
        epilogue: dict[str, Any] = {
            "activation": p.activation,
            "out_dtype": p.out_dtype,
            "beta": float(p.accumulate),
            "c": None if c is None else c[part],
            "bias": None if bias is None else bias[part[1]],
        }
        left, right = a[part[0]], b[:, part[1]]
        expected[part] = reference.exact(left, right, **epilogue)
        allowed[part] = reference.bound(left, right, dtype=p.dtype, precision=p.precision, **epilogue)
    return expected, allowed


def numpy_dtype(problem: Problem) -> Any:
    """Of a copied result."""
    return {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "s32": np.int32}[problem.out_dtype]
