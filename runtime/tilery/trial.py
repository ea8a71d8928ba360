"""One launch of a variant: random operands in guarded memory, and its result beside the float64 reference.

What tests, benchmarks and ``tilery debug`` share. The launch itself is on the host device; a GPU can be given the same
bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import reference
from .generator.variant import Variant
from .generator.work import ceil_div
from .host import Library, Operand
from .launch import GemmParams, Pointers, Strides, fill, grid, template
from .problem import ITEM_BYTES, Problem

Array = np.ndarray[Any, Any]

STORED = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "s8": np.int8, "s32": np.int32}
# Of a result and of what surrounds it: NaN in every float format. Around int8 inputs a large number.
POISON, POISON_S8 = 0xFF, 0x81
OPERANDS = ("a", "b", "c", "d", "bias")
THREADS = 1024  # a writer is the number of its block times this, plus that of its thread


class Shape(NamedTuple):
    """Sizes of a problem."""

    m: int
    n: int
    k: int
    batch: int = 1


class Epilogue(NamedTuple):
    """What is done to a product, and its dtype."""

    out_dtype: str
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False
    activation: str = "none"


class Odd(NamedTuple):
    """What makes pointers and strides odd, in elements."""

    pad: int = 0
    """Between rows."""
    shift: int = 0
    """Of the first element, from a 16-byte boundary on."""
    step: int = 1
    """From one element of a row of A or B to the next."""


PACKED = Odd()


class Wrong(NamedTuple):
    """An element of the result that is not what it must be, and the thread that wrote it; -1 where nobody did."""

    batch: int
    row: int
    col: int
    got: float
    expected: float
    bound: float
    block: int
    thread: int


@dataclass
class Placed:
    """An operand in memory that is poison around it and between its rows.

    Attributes:
        name: a, b, c, d or bias.
        flat: the whole of the memory, from a 16-byte boundary on.
        view: (batch, rows, columns) in it.
        writers: of a result: for each element from the first of ``view`` on who wrote it, -1 for nobody.
    """

    name: str
    flat: Array
    view: Array
    writers: Array | None = None

    @property
    def strides(self) -> Strides:
        """Of the view, in elements."""
        batch, row, col = (stride // self.view.itemsize for stride in self.view.strides)
        return Strides(row, col, batch)

    @property
    def offset(self) -> int:
        """Bytes from the beginning of the memory to the first element."""
        return int(self.view.ctypes.data) - int(self.flat.ctypes.data)

    @property
    def operand(self) -> Operand:
        """The range that a kernel may touch."""
        strides, size = self.strides, self.view.itemsize
        steps = zip(self.view.shape, (strides.batch, strides.row, strides.col), strict=True)
        last = sum((count - 1) * step for count, step in steps)
        return Operand(self.name, self.view.ctypes.data, (last + 1) * size if self.view.size else 0, size, self.writers)

    def stray(self, flat: Array) -> int:
        """How many bytes of ``flat``, the memory or a copy of it after a launch, were written outside of the view."""
        copy = flat.copy()
        self.like(copy)[...] = np.full(copy.itemsize, POISON, np.uint8).view(copy.dtype)[0]
        return int(np.count_nonzero(copy.view(np.uint8) != POISON))

    def like(self, flat: Array) -> Array:
        """The same view of a copy of the memory."""
        return np.lib.stride_tricks.as_strided(flat[self.offset // flat.itemsize :], self.view.shape, self.view.strides)


def place(name: str, values: Array, odd: Odd, *, transposed: bool = False, output: bool = False) -> Placed:
    """Values of (batch, rows, columns), columns running together in memory, or rows if ``transposed``."""
    batch, rows, cols = values.shape
    lines, length = (cols, rows) if transposed else (rows, cols)
    size, pitch = values.itemsize, length * odd.step + odd.pad
    matrix = lines * pitch + odd.pad
    count = odd.shift + batch * matrix + 16
    raw = np.full(count * size + 16, POISON_S8 if values.dtype == np.int8 else POISON, np.uint8)
    start = -raw.ctypes.data % 16
    flat = raw[start : start + count * size].view(values.dtype)
    inner = (size * odd.step, pitch * size) if transposed else (pitch * size, size * odd.step)
    view = np.lib.stride_tricks.as_strided(flat[odd.shift :], values.shape, (matrix * size, *inner))
    if output:
        return Placed(name, flat, view, np.full(count, -1, np.int64))
    view[...] = values
    return Placed(name, flat, view)


def input_dtype(variant: Variant) -> str:
    """The dtype of A and B in memory."""
    return "f32" if variant.dtype == "tf32" else variant.dtype


def chunk(variant: Variant) -> int:
    """Elements of which rows of A and B must be whole multiples."""
    whole: int = max(1, variant.align // ITEM_BYTES[input_dtype(variant)])
    return whole


def fit(variant: Variant, shape: Shape) -> Shape:
    """The shape with what runs along rows of A and B rounded up to whole chunks."""
    along = {"m": variant.layout[0] == "t", "n": variant.layout[1] == "n"}
    along["k"] = variant.layout[0] == "n" or variant.layout[1] == "t"
    whole = chunk(variant)
    return shape._replace(**{axis: ceil_div(getattr(shape, axis), whole) * whole for axis in along if along[axis]})


@dataclass
class Case:
    """One launch of a variant. Its inputs depend on variant, shape and seed alone.

    Attributes:
        variant, shape, epilogue, odd: what is launched.
        seed: of the inputs.
        layout: of a variant that takes any.
        placed: the operands by name.
        problem: as the runtime would see it.
    """

    variant: Variant
    shape: Shape
    epilogue: Epilogue
    odd: Odd = PACKED
    seed: int = 0
    layout: str = ""
    placed: dict[str, Placed] = field(init=False)
    problem: Problem = field(init=False)

    def __post_init__(self) -> None:
        v, s, e, odd = self.variant, self.shape, self.epilogue, self.odd
        layout = self.layout or (v.layout if v.layout != "any" else "nn")
        dtype, out = input_dtype(v), e.out_dtype
        rng = np.random.default_rng(zlib.crc32(f"{v.name} {tuple(s)} {self.seed}".encode()))
        a, b = _random(rng, dtype, (s.batch, s.m, s.k)), _random(rng, dtype, (s.batch, s.k, s.n))
        empty = np.zeros((s.batch, s.m, s.n), STORED[out])
        placed = [
            place("a", a, odd, transposed=layout[0] == "t"),
            place("b", b, odd, transposed=layout[1] == "t"),
            place("d", empty, odd._replace(step=1), output=True),
        ]
        if e.beta:
            placed.append(place("c", _random(rng, out, empty.shape), Odd(pad=3, shift=1), transposed=True))
        if e.bias:
            placed.append(place("bias", _random(rng, out, (1, 1, s.n)), Odd(shift=1)))
        self.placed = {operand.name: operand for operand in placed}
        precision = "tf32" if v.dtype == "tf32" else "ieee"
        kernel = ("gemm", *s, dtype, out, v.layout, v.align, precision)
        self.problem = Problem(*kernel, bias=e.bias, activation=e.activation, accumulate=e.beta != 0)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of the launch."""
        return grid(self.variant, self.shape.m, self.shape.n, self.shape.batch)

    def params(self, addresses: Mapping[str, int] | None = None) -> GemmParams:
        """The kernel's parameter, with the operands at ``addresses``; default: where they are placed."""
        strides = {name: placed.strides for name, placed in self.placed.items()}
        a, b, c, d, bias = (strides.get(name, Strides()) for name in OPERANDS)
        form = template(self.problem, a, b, c, d, Strides(0, bias.col, 0), self.epilogue.out_dtype)
        found = addresses or {name: placed.view.ctypes.data for name, placed in self.placed.items()}
        pointers = Pointers(*(found.get(name, 0) for name in OPERANDS))
        return fill(form, pointers, self.epilogue.alpha, self.epilogue.beta)

    def run(self, library: Library, *, order: int = 0, check: bool = True, workers: int = 0, **more: Any) -> Array:
        """Launch on the host device over a poisoned result.

        Args:
            library: holds the kernel.
            order: seed of the order of threads; 0 for none.
            check: tell the library what may be touched, and ask it who writes; without effect where it was compiled
                without checks.
            workers: CPU threads; 0 for as many as there are.
            more: further arguments of `Library.run`.

        Raises:
            HostError: what the device found.
        """
        d = self.placed["d"]
        d.flat.view(np.uint8)[...] = POISON
        assert d.writers is not None
        d.writers[...] = -1
        operands = [placed.operand for placed in self.placed.values()] if check else ()
        library.run(
            self.variant.name,
            self.params(),
            self.grid,
            (self.variant.threads,),
            shared_bytes=self.variant.shared_bytes,
            seed=order,
            workers=workers,
            operands=operands,
            **more,
        )
        return d.view

    def expected(self) -> tuple[Array, Array]:
        """The result in float64 (int64 for s32), and how far a right one may be from it."""
        e, placed, dtype = self.epilogue, self.placed, input_dtype(self.variant)
        a, b = placed["a"].view, placed["b"].view
        epilogue: dict[str, Any] = {
            "alpha": e.alpha,
            "beta": e.beta,
            "c": placed["c"].view if e.beta else None,
            "bias": placed["bias"].view[0, 0] if e.bias else None,
            "activation": e.activation,
            "out_dtype": e.out_dtype,
        }
        allowed = reference.bound(a, b, dtype=dtype, precision=self.problem.precision, **epilogue)
        return reference.exact(a, b, **epilogue), allowed

    def ratios(self) -> Array:
        """The error of each element of what `run` left, as a part of what is allowed."""
        return reference.ratios(self.placed["d"].view, *self.expected(), self.epilogue.out_dtype)

    def error(self) -> float:
        """The worst of `ratios`, at most 1.0 for a right result; inf where anything beside D was written."""
        d = self.placed["d"]
        return float("inf") if d.stray(d.flat) else float(np.max(self.ratios(), initial=0.0))

    def wrong(self) -> tuple[int, Wrong | None]:
        """How many elements are beyond the bound, or unwritten where writers are known, and the first of them."""
        d = self.placed["d"]
        expected, allowed = self.expected()
        bad = reference.ratios(d.view, expected, allowed, self.epilogue.out_dtype) > 1
        assert d.writers is not None
        writers = np.lib.stride_tricks.as_strided(
            d.writers, d.view.shape, tuple(stride // d.view.itemsize * 8 for stride in d.view.strides)
        )
        if (d.writers >= 0).any():
            bad |= writers < 0
        if not bad.any():
            return 0, None
        batch, row, col = at = tuple(int(index) for index in np.argwhere(bad)[0])
        got, right, bound = (float(values[at]) for values in (reference.decode(d.view), expected, allowed))
        block, thread = divmod(int(writers[at]), THREADS) if writers[at] >= 0 else (-1, -1)
        return int(np.count_nonzero(bad)), Wrong(batch, row, col, got, right, bound, block, thread)


def _random(rng: np.random.Generator, dtype: str, size: tuple[int, ...]) -> Array:
    if dtype == "s8":
        return rng.integers(-128, 128, size).astype(np.int8)
    if dtype == "s32":
        return rng.integers(-1000, 1000, size).astype(np.int32)
    return reference.round_to(rng.standard_normal(size), dtype)
