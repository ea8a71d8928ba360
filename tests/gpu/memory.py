"""Arrays in memory that shows what should not be read, and results in memory that shows what should not be written."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

# Elements before and after an array.
MARGIN = 64
# Around a result: finite, and exact in every dtype.
SENTINEL = 77
POISON_INT = -123456789


def poison(dtype: Any) -> float:
    """What an unwritten or foreign element holds: NaN, or a conspicuous integer."""
    return float("nan") if dtype.is_floating_point else {torch.int8: 127}.get(dtype, POISON_INT)


def random(shape: tuple[int, ...], dtype: Any) -> Any:
    """Normal numbers, or integers over the whole range of int8."""
    if dtype.is_floating_point:
        return torch.randn(shape, device="cuda").to(dtype)
    return torch.randint(-128, 128, shape, device="cuda").to(dtype)


class Placed:
    """A (..., rows, cols) view in a larger buffer.

    Args:
        letter: n: columns are the inner axis in memory; t: rows are.
        step: stride of the inner axis.
        pad: unused elements after each line and after each matrix.
        offset: elements by which the view begins later than an aligned address.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        *,
        around: float,
        letter: str = "n",
        step: int = 1,
        pad: int = 0,
        offset: int = 0,
    ) -> None:
        *lead, rows, cols = shape
        outer, inner = (rows, cols) if letter == "n" else (cols, rows)
        pitch = inner * step + pad
        matrix = outer * pitch + pad
        steps = [matrix * prod(lead[i + 1 :]) for i in range(len(lead))]
        strides = (*steps, *((pitch, step) if letter == "n" else (step, pitch)))
        self.around = around
        self.place = (shape, strides, MARGIN + offset)
        self.memory = torch.full((prod(lead) * matrix + offset + 2 * MARGIN,), around, dtype=dtype, device="cuda")
        self.view = self.memory.as_strided(*self.place)

    def untouched_around(self) -> bool:
        """Whether everything but the view still holds what it was filled with, a number."""
        copy = self.memory.clone()
        copy.as_strided(*self.place).fill_(self.around)
        return bool((copy == self.around).all())


def operand(shape: tuple[int, ...], dtype: Any, **layout: Any) -> Any:
    """Random values in memory that is poisoned around them."""
    placed = Placed(shape, dtype, around=poison(dtype), **layout)
    placed.view.copy_(random(shape, dtype))
    return placed.view


def result(shape: tuple[int, ...], dtype: Any, **layout: Any) -> Placed:
    """Poison in memory that is guarded around it."""
    placed = Placed(shape, dtype, around=SENTINEL, **layout)
    placed.view.fill_(poison(dtype))
    return placed
