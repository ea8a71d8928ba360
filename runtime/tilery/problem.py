"""Problem: one concrete request, in the words that tables, records and choices share."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvalidInput, UnknownName
from .generator.bucket import bucket

__all__ = [
    "ACTIVATIONS",
    "DTYPE_CODES",
    "ITEM_BYTES",
    "LAYOUTS",
    "OPS",
    "OUT_DTYPES",
    "PRECISIONS",
    "Problem",
    "bucket",
]

SIZE_LIMIT = 2**31
"""Each of m, n, k and batch must be below: the kernels hold sizes in 32 bits, offsets in 64."""

ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "s32": 4, "s8": 1}
DTYPE_CODES = {"f32": 0, "f16": 1, "bf16": 2, "s32": 3, "s8": 4}
OUT_DTYPES = {
    "f32": ("f32", "f16", "bf16"),
    "f16": ("f16", "f32", "bf16"),
    "bf16": ("bf16", "f32", "f16"),
    "s8": ("s32", "f32"),
}
"""Output dtypes by input dtype; the first is the default."""

ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}
LAYOUTS = ("nn", "nt", "tn", "tt", "any")
PRECISIONS = ("ieee", "tf32")
OPS = ("gemm",)
ALIGNMENTS = (1, 2, 4, 8, 16)


def _check_name(kind: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownName(kind, value, known)


def _check_size(name: str, size: object) -> None:
    if type(size) is not int:
        raise InvalidInput(f"{name} must be an int, got {size!r} of type {type(size).__name__}")
    if not 0 <= size < SIZE_LIMIT:
        raise InvalidInput(f"{name} = {size} is out of range: sizes are from 0 to 2**31 - 1 = {SIZE_LIMIT - 1}")


@dataclass(frozen=True, slots=True)
class Problem:
    """One concrete request.

    Attributes:
        op: the operator, e.g. ``gemm``.
        m, n, k: sizes; the result is (m, n), k is summed over.
        batch: number of independent products.
        dtype: dtype of both inputs: f32, f16, bf16 or s8.
        out_dtype: dtype of the result and of ``c``.
        layout: nn, nt, tn, tt, or ``any`` where an input has no unit stride.
        align: largest power of two, at most 16, that divides pointers, strides and row lengths of A and B, in bytes.
        precision: ``ieee``, or ``tf32`` where f32 inputs may be rounded to tf32.
        bias: whether a bias is added.
        activation: none, relu, gelu or silu.
        accumulate: whether ``beta * c`` is added.

    Raises:
        InvalidInput: a size below 0 or from 2**31 on; an output dtype, activation or precision that these inputs cannot
            have.
        UnknownName: a name that is not known; the message has the nearest ones.

    >>> Problem("gemm", 64, 64, 64, 1, "bf16", "bf16", "nn", 16).precision
    'ieee'
    """

    op: str
    m: int
    n: int
    k: int
    batch: int
    dtype: str
    out_dtype: str
    layout: str
    align: int
    precision: str = "ieee"
    bias: bool = False
    activation: str = "none"
    accumulate: bool = False

    def __post_init__(self) -> None:
        _check_name("op", self.op, OPS)
        for name in ("m", "n", "k", "batch"):
            _check_size(name, getattr(self, name))
        _check_name("dtype", self.dtype, tuple(OUT_DTYPES))
        _check_name("layout", self.layout, LAYOUTS)
        _check_name("precision", self.precision, PRECISIONS)
        _check_name("activation", self.activation, tuple(ACTIVATIONS))
        if self.align not in ALIGNMENTS:
            raise InvalidInput(f"align = {self.align!r} is not one of {', '.join(map(str, ALIGNMENTS))} (bytes)")
        self._check_combination()

    @property
    def row_lengths(self) -> tuple[int, int]:
        """Elements of a row of A and of B, along the axis of adjacent elements; (1, 1) where an input has none."""
        if self.layout == "any":
            return 1, 1
        return (self.k if self.layout[0] == "n" else self.m), (self.n if self.layout[1] == "n" else self.k)

    def _check_combination(self) -> None:
        allowed = OUT_DTYPES[self.dtype]
        if self.out_dtype not in allowed:
            _check_name("out_dtype", self.out_dtype, tuple(DTYPE_CODES))
            raise InvalidInput(
                f"{self.op} of {self.dtype} inputs cannot write {self.out_dtype}; out_dtype can be {', '.join(allowed)}"
            )
        if self.precision == "tf32" and self.dtype != "f32":
            raise InvalidInput(f"precision='tf32' is for f32 inputs, and these are {self.dtype}; leave precision out")
        if self.out_dtype == "s32" and self.activation not in ("none", "relu"):
            raise InvalidInput(
                f"activation {self.activation!r} needs a floating-point result; pass out_dtype='f32', or use 'relu'"
            )
