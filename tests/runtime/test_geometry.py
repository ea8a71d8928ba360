"""Stride arithmetic against enumeration of every element."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilery.geometry import (
    Axis,
    alignment,
    collapse,
    extent,
    may_overlap_itself,
    merge_axes,
    orient,
    share_memory,
)

sizes = st.integers(1, 4)
strides = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 24, -1, -4])


def offsets(axes: list[Axis], operand: int) -> list[int]:
    return [sum(i * axis.strides[operand] for i, axis in zip(index, axes, strict=True)) for index in indices(axes)]


def indices(axes: list[Axis]) -> product[tuple[int, ...]]:
    return product(*(range(axis.size) for axis in axes))


axes_of_two = st.lists(st.builds(Axis, sizes, st.tuples(strides, strides)), max_size=4)


@given(axes_of_two)
def test_merged_axes_name_the_same_elements_in_the_same_order(axes: list[Axis]) -> None:
    merged = merge_axes(axes)
    assert all(axis.size > 1 for axis in merged)
    for operand in (0, 1):
        assert offsets(merged, operand) == offsets(axes, operand)


def test_contiguous_axes_merge_into_one_and_never_past_the_size_limit() -> None:
    assert merge_axes([Axis(3, (20, 0)), Axis(4, (5, 0)), Axis(5, (1, 0))]) == [Axis(60, (1, 0))]
    assert len(merge_axes([Axis(2**16, (2**16,)), Axis(2**16, (1,))])) == 2


@given(st.lists(st.builds(Axis, sizes, st.tuples(strides, strides)), max_size=3), sizes, strides)
def test_collapsed_space_covers_every_pair_of_elements_once(lead: list[Axis], rows: int, step: int) -> None:
    # Operand 0 has rows, operand 1 (as B and the bias) has none.
    axes = [*lead, Axis(rows, (step, 0))]
    found = collapse(lead, axes[-1], row_operands=(0,))
    assert found.rows.strides[1] == 0
    pairs = [
        (loop[0] + b * found.batch.strides[0] + r * found.rows.strides[0], loop[1] + b * found.batch.strides[1])
        for loop in found.loops
        for b in range(found.batch.size)
        for r in range(found.rows.size)
    ]
    assert sorted(pairs) == sorted(zip(offsets(axes, 0), offsets(axes, 1), strict=True))


def test_many_products_with_one_b_become_one_tall_product() -> None:
    found = collapse([Axis(10, (21, 0))], Axis(3, (7, 0)), row_operands=(0,))
    assert (found.rows.size, found.batch.size, found.loops) == (30, 1, ((0, 0),))
    vectors = collapse([Axis(10, (21, 0))], Axis(1, (999, 0)), row_operands=(0,))
    assert (vectors.rows, vectors.batch.size) == (Axis(10, (21, 0)), 1)
    shared_a = collapse([Axis(10, (0, 21))], Axis(3, (7, 0)), row_operands=(0,))
    assert (shared_a.rows.size, shared_a.batch) == (3, Axis(10, (0, 21)))


@pytest.mark.parametrize(("values", "expected"), [((4096,), 16), ((4096, 8), 8), ((2, -4), 2), ((3,), 1), ((0, 0), 16)])
def test_alignment(values: tuple[int, ...], expected: int) -> None:
    assert alignment(*values) == expected


@pytest.mark.parametrize(
    ("shape", "steps", "expected"),
    [
        ((64, 32), (32, 1), ("n", 32, 1, 16)),
        ((64, 32), (1, 64), ("t", 1, 64, 16)),
        ((64, 33), (33, 1), ("n", 33, 1, 4)),
        ((64, 32), (-32, 1), ("n", -32, 1, 16)),
        ((64, 32), (0, 1), ("n", 0, 1, 16)),
        ((64, 32), (1, 1), ("n", 1, 1, 4)),
        ((64, 32), (64, 2), ("", 64, 2, 4)),
        # An axis of size 1 has no stride: rows and columns of any stride are usable, and aligned.
        ((1, 33), (7, 1), ("n", 0, 1, 4)),
        ((1, 33), (7, 5), ("t", 1, 5, 4)),
        ((33, 1), (1, 7), ("n", 1, 1, 4)),
        ((32, 1), (1, 7), ("t", 1, 0, 16)),
        ((33, 1), (4, 7), ("n", 4, 1, 4)),
        ((1, 1), (3, 3), ("n", 0, 1, 4)),
        ((0, 5), (5, 1), ("n", 0, 1, 4)),
        # Rows that end within a 16-byte piece are not aligned, however they begin.
        ((64, 30), (32, 1), ("n", 32, 1, 8)),
        ((1, 32), (7, 1), ("n", 0, 1, 16)),
    ],
)
def test_orientation_of_f32(
    shape: tuple[int, int], steps: tuple[int, int], expected: tuple[str, int, int, int]
) -> None:
    assert orient(4096, 4, shape, steps, ()) == expected


def test_pointer_and_batch_steps_lower_the_alignment() -> None:
    assert orient(4096 + 8, 2, (4, 8), (8, 1), ()).align == 8
    assert orient(4096, 2, (4, 8), (8, 1), (33,)).align == 2
    assert orient(4096, 1, (4, 16), (16, 1), (16, 0)).align == 16


shaped = st.lists(st.tuples(st.integers(0, 4), st.integers(-6, 12)), min_size=1, max_size=3)


def bytes_of(shape: tuple[int, ...], steps: tuple[int, ...], item: int) -> list[int]:
    starts = [sum(i * s for i, s in zip(index, steps, strict=True)) * item for index in np.ndindex(*shape)]
    return [start + byte for start in starts for byte in range(item)]


@given(shaped, st.sampled_from([1, 2, 4]))
def test_extent_and_self_overlap_against_enumeration(axes: list[tuple[int, int]], item: int) -> None:
    shape, steps = (tuple(part) for part in zip(*axes, strict=True))
    named = bytes_of(shape, steps, item)
    assert extent(shape, steps, item) == ((min(named), max(named) + 1) if named else (0, 0))
    if len(set(named)) < len(named):
        assert may_overlap_itself(shape, steps)


@pytest.mark.parametrize("steps", [(5, 1), (1, 4), (-5, 1), (10, 2), (5, -1)])
def test_views_that_slicing_makes_do_not_overlap_themselves(steps: tuple[int, int]) -> None:
    assert not may_overlap_itself((4, 5), steps)


@given(shaped, shaped, st.integers(-40, 40), st.sampled_from([(1, 1), (4, 4), (2, 4)]))
def test_shared_memory_against_enumeration(
    first: list[tuple[int, int]], second: list[tuple[int, int]], distance: int, items: tuple[int, int]
) -> None:
    views = []
    for axes, item, start in ((first, items[0], 10**6), (second, items[1], 10**6 + distance)):
        shape, steps = (tuple(part) for part in zip(*axes, strict=True))
        views.append((start, shape, steps, item, {start + byte for byte in bytes_of(shape, steps, item)}))
    shared = bool(views[0][4] & views[1][4])
    assert share_memory(views[0][:4], views[1][:4]) == shared


def test_shared_memory_at_gpu_addresses_reads_nothing() -> None:
    gpu = 0x7F00_0000_0000
    assert share_memory((gpu, (8, 8), (8, 1), 2), (gpu + 126, (1,), (1,), 2))
    assert not share_memory((gpu, (4, 4), (8, 2), 4), (gpu + 4, (4, 4), (8, 2), 4))
