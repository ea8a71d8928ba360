"""The frozen Variant, and the only place that forms a variant's name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Value = int | tuple[int, ...]

UNORDERED = "unordered"
"""The reduction of kernels that may sum in another order each time, as with atomics."""


def _tag(key: str, value: Value) -> str:
    text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if key == "tile" else key[0] + text


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel: Family + Config + dtype + layout + alignment (+ constants baked in by the JIT).

    The same Variant is compiled for several archs; a pair (arch, name) is an image entry.

    Attributes:
        family: name of the family, also of its template pair.
        op: the operator that it computes, e.g. ``gemm``.
        dtype: dtype of A and B as the kernel computes on them: f32, f16, bf16, tf32 or s8.
        layout: nn, nt, tn, tt, or ``any`` where the kernel takes every stride.
        align: the rows of A and B must begin at multiples of so many bytes, and be as many bytes long.
        config: tunable numbers in the family's order, e.g. (("tile", (128, 128, 32)), ("stages", 4)).
        tier: core, wide or exhaustive.
        threads: threads of a block.
        shared_bytes: dynamic shared memory of a block.
        features: arch features that the code needs.
        accumulator: dtype in which k is summed.
        reduction: the order in which k is summed, by name, see `sums`; ``unordered`` promises none.
        constants: run-time parameters made constant, e.g. (("k", 4096),).
        name: all of what a kernel's code depends on.

    >>> Variant("gemm_mma", "gemm", "bf16", "nt", 16, (("tile", (128, 128, 32)), ("stages", 4))).name
    'gemm_mma_bf16_nt_128x128x32_s4_a16'
    """

    family: str
    op: str
    dtype: str
    layout: str
    align: int
    config: tuple[tuple[str, Value], ...]
    tier: str = "core"
    threads: int = 0
    shared_bytes: int = 0
    features: tuple[str, ...] = ()
    accumulator: str = "f32"
    reduction: str = UNORDERED
    constants: tuple[tuple[str, int], ...] = ()
    name: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        parts = [self.family, self.dtype, self.layout]
        parts += [_tag(key, value) for key, value in self.config]
        if self.align > 1:
            parts.append(f"a{self.align}")
        parts += [f"{key}{value}" for key, value in self.constants]
        object.__setattr__(self, "name", "_".join(parts))  # read often, and the class is frozen

    @property
    def sums(self) -> tuple[str, str]:
        """(accumulator, reduction): where two variants have the same, and it is ordered, the same row and column of A
        and B give the same bits, whatever their tiles, layouts and alignments."""
        return self.accumulator, self.reduction

    @property
    def image(self) -> str:
        """The translation unit, and the image file, in which this variant is compiled ahead of time."""
        return f"{self.family}_{self.dtype}_{self.layout}"

    def __getitem__(self, key: str) -> Any:
        """A Config value by key, as the templates read it."""
        return dict(self.config)[key]
