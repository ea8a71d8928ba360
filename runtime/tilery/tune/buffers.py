"""The operands of a measurement: random data that is never zero, in as many sets as rotate past the L2 cache.

One block of random values per dtype is made on the host and repeated over all device memory that holds inputs, so the
host knows every element of every operand without a download: element ``i`` of such a pool is ``block[i % len(block)]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..errors import TileryError
from ..generator.work import ROTATED_SETS
from ..geometry import alignment
from ..launch import GemmParams, Pointers, Strides, fill, template
from ..problem import ITEM_BYTES, Problem

Array = np.ndarray[Any, Any]

# A prime, so that no row length divides it and rows differ; 16 MiB of bf16.
BLOCK = 8388593
SEED = 20260801
# Below this a value is moved away from zero: kernels that skip or flush small numbers must not look fast.
LEAST = 2.0**-8
# A GPU with a small L2 still has other caches and a TLB; large ones need more.
ROTATED_BYTES, ROTATED_L2 = 180_000_000, 3
# Small problems would need thousands of sets: they stay partly in L2, all candidates alike.
MIN_SETS, MAX_SETS = 3, ROTATED_SETS
# Elements to which the beginning of an operand is rounded up: 256 bytes at least, as an allocator does.
GRAIN = 256


class Skip(TileryError):
    """Why a problem is not measured; ``kind`` says it in a few words without numbers, to be counted by."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@lru_cache(maxsize=8)
def block(dtype: str, length: int = BLOCK) -> Array:
    """Random values of a dtype as they are stored (bf16 as bits in uint16), none of them zero; always the same.

    Floats are normal with deviation 1, integers uniform.
    """
    rng = np.random.default_rng(SEED)
    if dtype in ("s8", "s32"):
        values = rng.integers(-127, 127, length, np.int8)
        values[values >= 0] += 1
        return values if dtype == "s8" else values.astype(np.int32)
    drawn = rng.standard_normal(length, np.float32)
    small = np.abs(drawn) < LEAST
    drawn[small] = np.copysign(np.float32(LEAST), drawn[small])
    if dtype == "bf16":
        return (drawn.view(np.uint32) >> np.uint32(16)).astype(np.uint16)  # cut off: any value will do
    return drawn.astype(np.float16) if dtype == "f16" else drawn


class Place(NamedTuple):
    """Where an operand lies: strides in elements, and where its element (0, 0) is.

    Attributes:
        strides: of rows, columns and batch entries.
        shift: elements between a 256-byte boundary and element (0, 0).
        size: elements from the boundary to the end.
    """

    strides: Strides
    shift: int
    size: int


def _natural(problem: Problem) -> int:
    """The alignment in bytes that packed arrays of the problem have."""
    item = ITEM_BYTES[problem.dtype]
    return item if problem.layout == "any" else alignment(*(size * item for size in problem.row_lengths))


def places(problem: Problem) -> tuple[Place, Place]:
    """Where A (m, k) and B (k, n) lie in memory, so that layout and alignment are the problem's and no better.

    Packed where packed rows are aligned as the problem says; else rows are padded and pointers shifted by ``align``
    bytes. Layout ``any`` has two elements between neighbours along both axes.

    Raises:
        Skip: no arrays on a GPU can be aligned so.
    """
    item, natural = ITEM_BYTES[problem.dtype], _natural(problem)
    align = problem.align
    if not item <= align <= natural:
        raise Skip(
            f"no arrays of {problem.dtype} and these sizes are aligned to just {align} bytes on a GPU", "alignment"
        )
    extra = align // item if align < natural else 0
    sizes = ((problem.m, problem.k), (problem.k, problem.n))
    letters = "nn" if problem.layout == "any" else problem.layout
    step = 2 if problem.layout == "any" else 1
    first, second = (
        _place(*size, letter, extra, step, problem.batch) for size, letter in zip(sizes, letters, strict=True)
    )
    return first, second


def _place(rows: int, cols: int, letter: str, extra: int, step: int, batch: int) -> Place:
    lines, length = (rows, cols) if letter == "n" else (cols, rows)
    lead = length * step + extra
    matrix = lines * lead
    row, col = (lead, step) if letter == "n" else (step, lead)
    return Place(Strides(row, col, matrix if batch > 1 else 0), extra, extra + matrix * batch)


def _packed(rows: int, cols: int, batch: int) -> Place:
    return _place(rows, cols, "n", 0, 1, batch)


class Part(NamedTuple):
    """An operand of each set: from which pool it comes, and where it lies."""

    name: str
    dtype: str
    place: Place

    @property
    def grains(self) -> int:
        """Elements that one set takes."""
        return -(-self.place.size // GRAIN) * GRAIN


class Layout:
    """The operands of all sets of a problem, as offsets into pools.

    Attributes:
        inputs: parts that are read: a, b, and c and bias where the problem has them.
        output: the part that is written.
        sets: how many sets there are.
        starts: for each set, the element of its pool at which each input's (0, 0) is, and of the outputs' for ``d``.
        bytes: of one set.
    """

    def __init__(self, problem: Problem, l2_bytes: int, room: int) -> None:
        """
        Args:
            problem: what is measured.
            l2_bytes: of the GPU.
            room: bytes of device memory that all sets may take together.

        Raises:
            Skip: not even one set fits, or the problem has no work.
        """
        if 0 in (problem.m, problem.n, problem.k, problem.batch):
            raise Skip("it has no work: one of its sizes is 0", "no work")
        self.problem = problem
        a, b = places(problem)
        result = _packed(problem.m, problem.n, problem.batch)
        self.inputs = [Part("a", problem.dtype, a), Part("b", problem.dtype, b)]
        if problem.accumulate:
            self.inputs.append(Part("c", problem.out_dtype, result))
        if problem.bias:
            self.inputs.append(Part("bias", problem.out_dtype, _packed(1, problem.n, 1)))
        self.output = Part("d", problem.out_dtype, result)
        self.bytes = sum(part.grains * ITEM_BYTES[part.dtype] for part in [*self.inputs, self.output])
        if self.bytes > room:
            reason = f"its arrays take {self.bytes / 1e9:.2f} GB, and {room / 1e9:.2f} GB may be used"
            raise Skip(reason, "no memory")
        rotated = max(ROTATED_BYTES, ROTATED_L2 * l2_bytes)
        self.sets = min(MAX_SETS, max(MIN_SETS, round(rotated / self.bytes)), room // self.bytes)
        self.starts = self._starts()

    def elements(self) -> dict[str, int]:
        """Elements of each dtype that the inputs of all sets take."""
        found: dict[str, int] = {}
        for part in self.inputs:
            found[part.dtype] = found.get(part.dtype, 0) + part.grains * self.sets
        return found

    def _starts(self) -> list[dict[str, int]]:
        ends: dict[str, int] = {}
        found = []
        for index in range(self.sets):
            start = {"d": index * self.output.grains}
            for part in self.inputs:
                begin = ends.get(part.dtype, 0)
                ends[part.dtype] = begin + part.grains
                start[part.name] = begin + part.place.shift
            found.append(start)
        return found

    def params(self, pools: Mapping[str, int], output: int) -> list[GemmParams]:
        """The kernel's parameter for each set, given the addresses of the pools by dtype and of the outputs."""
        strides = {part.name: part.place.strides for part in self.inputs}
        nothing, p = Strides(), self.problem
        bias = strides.get("bias", nothing)
        result = self.output.place.strides
        form = template(
            p, strides["a"], strides["b"], strides.get("c", nothing), result, Strides(0, bias.col, 0), p.out_dtype
        )
        beta = 1.0 if p.accumulate else 0.0
        names = {part.name: part.dtype for part in self.inputs}
        made = []
        for start in self.starts:
            at = {name: pools[dtype] + start[name] * ITEM_BYTES[dtype] for name, dtype in names.items()}
            d = output + start["d"] * ITEM_BYTES[p.out_dtype]
            made.append(fill(form, Pointers(at["a"], at["b"], at.get("c", 0), d, at.get("bias", 0)), 1.0, beta))
        return made

    def gather(self, name: str, entry: int, rows: Array, cols: Array, length: int = BLOCK) -> Array:
        """Elements (rows x cols) of an input of the first set, of batch entry ``entry``, from the host's block."""
        part = next(part for part in self.inputs if part.name == name)
        strides = part.place.strides
        start = self.starts[0][name] + entry * strides.batch
        index = start + rows[:, None] * strides.row + cols[None, :] * strides.col
        values: Array = block(part.dtype, length)[index % length]
        return values
