"""Stride arithmetic of a GEMM call: pure functions of shapes, strides and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .problem import SIZE_LIMIT

Ints = tuple[int, ...]


class Axis(NamedTuple):
    """One axis that several operands share: its size, and its stride in elements in each of them (0 = broadcast)."""

    size: int
    strides: Ints


class Oriented(NamedTuple):
    """A matrix operand as a kernel reads it: strides in elements, alignment in bytes."""

    letter: str
    """Of the layout; empty where neither stride is 1."""
    row: int
    col: int
    align: int


class Collapsed(NamedTuple):
    """A result's leading axes, rewritten as rows, one batch axis, and what remains for a loop on the host."""

    rows: Axis
    batch: Axis
    loops: tuple[Ints, ...]
    """For each launch, the offset in elements of each operand."""


def contiguous_strides(shape: Sequence[int]) -> Ints:
    """Row-major strides in elements.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _mergeable(outer: Axis, inner: Axis) -> bool:
    pairs = zip(outer.strides, inner.strides, strict=True)
    return outer.size * inner.size < SIZE_LIMIT and all(o == i * inner.size for o, i in pairs)


def merge_axes(axes: Sequence[Axis]) -> list[Axis]:
    """The same elements in the same order with as few axes as possible; axes of size 1 vanish."""
    merged: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if merged and _mergeable(merged[-1], axis):
            axis = Axis(merged.pop().size * axis.size, axis.strides)
        merged.append(axis)
    return merged


def collapse(leading: Sequence[Axis], rows: Axis, row_operands: Ints) -> Collapsed:
    """Rows, one batch axis and host loops for a result with these leading axes and this row axis.

    ``row_operands`` are the positions of the operands that have rows. A leading axis that the others do not have
    becomes more rows (many small products with one shared B are one tall product). All sizes must be positive.
    """
    axes = merge_axes([*leading, rows])
    still = [i for i in range(len(rows.strides)) if i not in row_operands]
    one = Axis(1, (0,) * len(rows.strides))
    has_rows = bool(axes) and (rows.size > 1 or all(axes[-1].strides[i] == 0 for i in still))
    new_rows = axes.pop() if has_rows else one
    widest = max(range(len(axes)), key=lambda i: axes[i].size, default=None)
    batch = axes.pop(widest) if widest is not None else one
    steps = product(*([tuple(i * s for s in axis.strides) for i in range(axis.size)] for axis in axes))
    loops = tuple(tuple(map(sum, zip(*step, strict=True))) if step else one.strides for step in steps)
    return Collapsed(new_rows, batch, loops)


def alignment(*values: int) -> int:
    """The largest power of two, at most 16, that divides every value.

    >>> alignment(4096, 24, 0)
    8
    """
    bits = 16
    for value in values:
        bits |= value
    return bits & -bits


def orient(ptr: int, item: int, sizes: tuple[int, int], strides: tuple[int, int], steps: Ints) -> Oriented:
    """How a kernel reads a matrix: 'n' where columns are adjacent, 't' where rows are, the better aligned where both.

    Rows must begin at aligned addresses and be whole pieces of that many bytes. An axis of size 1 has no stride: it
    counts as adjacent, and as a leading axis it does not lower the alignment.
    ``steps`` are the strides in elements by which the matrix moves between products.
    """
    (rows, cols), (row, col) = sizes, strides
    lead_n, lead_t = (row if rows > 1 else 0), (col if cols > 1 else 0)
    base = (ptr, *(step * item for step in steps))
    found = []
    if col == 1 or cols <= 1:
        found.append(Oriented("n", lead_n, 1, alignment(*base, lead_n * item, cols * item)))
    if row == 1 or rows <= 1:
        found.append(Oriented("t", 1, lead_t, alignment(*base, lead_t * item, rows * item)))
    return max(found, key=lambda o: o.align, default=Oriented("", row, col, alignment(ptr, item)))


def extent(shape: Sequence[int], strides: Sequence[int], item: int) -> tuple[int, int]:
    """First and one past the last byte of a view, relative to its pointer; equal where it has no element.

    >>> extent((2, 3), (-3, 1), 4)
    (-12, 12)
    """
    if prod(shape) == 0:
        return 0, 0
    spans = [(size - 1) * stride * item for size, stride in zip(shape, strides, strict=True)]
    return sum(s for s in spans if s < 0), sum(s for s in spans if s > 0) + item


def may_overlap_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices could name one element; True also where this simple test of nested strides cannot tell."""
    span = 0
    for stride, size in sorted((abs(stride), size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride <= span:
            return prod(shape) > 0
        span += (size - 1) * stride
    return False


# Enough for any view of a matrix that slicing makes; below 1 ms.
SEARCH_STEPS: Any = 10_000


class _Memory:
    """Memory at an address, in the form in which numpy compares it; it is never read."""

    def __init__(self, ptr: int, shape: Ints, strides: Ints, item: int) -> None:
        self.__array_interface__ = {
            "data": (ptr, False),
            "shape": shape,
            "strides": tuple(stride * item for stride in strides),
            "typestr": f"|V{item}",
            "version": 3,
        }


def share_memory(first: tuple[int, Ints, Ints, int], second: tuple[int, Ints, Ints, int]) -> bool:
    """Whether two views (ptr, shape, strides in elements, item bytes) have a byte in common.

    Exact for interleaved views too; what the search cannot decide in its steps counts as shared.
    """
    try:
        return np.shares_memory(np.asarray(_Memory(*first)), np.asarray(_Memory(*second)), max_work=SEARCH_STEPS)
    except np.exceptions.TooHardError:
        return True
