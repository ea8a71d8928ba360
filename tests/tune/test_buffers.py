"""Data and layouts: what the host believes an element to be is what a kernel reads there."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.fake_cuda import check_promises, memory
from tilery.asked import request
from tilery.errors import InvalidInput
from tilery.problem import ALIGNMENTS, ITEM_BYTES, Problem
from tilery.reference import decode
from tilery.tune import buffers
from tilery.tune.buffers import BLOCK, Layout, Skip, block, places


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "s8", "s32"])
def test_no_value_is_zero_or_tiny(dtype: str) -> None:
    values = decode(block(dtype))
    assert len(values) == BLOCK
    assert BLOCK % 2 == 1
    assert np.isfinite(values).all()
    assert np.abs(values).min() >= (1 if dtype in ("s8", "s32") else 2.0**-8)
    assert values.min() < 0 < values.max()
    if dtype not in ("s8", "s32"):
        assert np.std(values) == pytest.approx(1.0, abs=0.01)
        assert abs(np.mean(values)) < 0.01


def test_data_is_the_same_in_every_process() -> None:
    assert (
        block("s8")[:4].tolist() == np.random.default_rng(buffers.SEED).integers(-127, 127, 4, np.int8).tolist()
        or (block("s8")[:4] == block("s8", 4)).all()
    )


def _problem(**given: Any) -> Problem | None:
    try:
        return request(**given)
    except InvalidInput:  # rows of these lengths cannot be aligned so
        return None


PROBLEMS = st.builds(
    _problem,
    m=st.integers(1, 40),
    n=st.integers(1, 40),
    k=st.integers(1, 40),
    batch=st.integers(1, 3),
    dtype=st.sampled_from(["f32", "f16", "bf16", "s8"]),
    layout=st.sampled_from(["nn", "nt", "tn", "tt", "any"]),
    align=st.sampled_from([None, *ALIGNMENTS]),
    bias=st.booleans(),
    accumulate=st.booleans(),
).filter(lambda problem: problem is not None)


class Host:
    """Pools of host memory, filled as those of a GPU are."""

    def __init__(self, layout: Layout) -> None:
        self.buffers = []
        self.addresses = {}
        for dtype, elements in layout.elements().items():
            item = ITEM_BYTES[dtype]
            raw = np.zeros(elements * item + 256, np.uint8)
            start = -raw.ctypes.data % 256
            values = np.resize(block(dtype, BLOCK), elements) if elements > BLOCK else block(dtype)[:elements]
            raw[start : start + elements * item] = values.view(np.uint8)
            self.buffers.append(raw)
            self.addresses[dtype] = raw.ctypes.data + start


@settings(max_examples=150, deadline=None)
@given(PROBLEMS)
def test_elements_are_where_the_parameters_say(asked: Problem) -> None:
    try:
        layout = Layout(asked, 0, 1 << 20)
    except Skip as reason:
        assert reason.kind == "alignment"
        assert asked.align < ITEM_BYTES[asked.dtype]
        return
    host = Host(layout)
    params = layout.params(host.addresses, 4096)
    assert len(params) == layout.sets
    for p in params:
        check_promises(asked, p)
    p = params[0]
    a = memory(p.a, (p.batch, p.m, p.k), (p.a_batch, p.a_row, p.a_col), asked.dtype)
    b = memory(p.b, (p.batch, p.k, p.n), (p.b_batch, p.b_row, p.b_col), asked.dtype)
    for entry in range(asked.batch):
        for name, view in (("a", a), ("b", b)):
            rows, cols = (np.arange(size) for size in view.shape[1:])
            assert (layout.gather(name, entry, rows, cols) == view[entry]).all()
    if asked.accumulate:
        c = memory(p.c, (p.batch, p.m, p.n), (p.c_batch, p.c_row, p.c_col), asked.out_dtype)
        assert (layout.gather("c", asked.batch - 1, np.arange(p.m), np.arange(p.n)) == c[-1]).all()
    if asked.bias:
        bias = memory(p.bias, (p.n,), (p.bias_stride,), asked.out_dtype)
        assert (layout.gather("bias", 0, np.zeros(1, int), np.arange(p.n))[0] == bias).all()


@settings(max_examples=100, deadline=None)
@given(PROBLEMS)
def test_operands_of_all_sets_are_apart_and_within_their_pools(asked: Problem) -> None:
    try:
        layout = Layout(asked, 0, 1 << 20)
    except Skip:
        return
    ends: dict[str, int] = {}
    for start in layout.starts:
        for part in layout.inputs:
            assert start[part.name] - part.place.shift >= ends.get(part.dtype, 0)
            ends[part.dtype] = start[part.name] - part.place.shift + part.place.size
    assert all(end <= layout.elements()[dtype] for dtype, end in ends.items())
    outputs = [start["d"] for start in layout.starts]
    assert all(after - before >= layout.output.place.size for before, after in itertools.pairwise(outputs))


def _alignment(problem: Problem) -> int:
    """The largest power of two, at most 16, that divides all that the kernel's loads are at."""
    p = Layout(problem, 0, 1 << 30).params(dict.fromkeys(("f32", "f16", "bf16", "s8", "s32"), 0), 0)[0]
    item, bits = ITEM_BYTES[problem.dtype], 16
    sides = (
        (problem.layout[0], p.a, p.a_row, p.a_col, problem.m, problem.k),
        (problem.layout[1], p.b, p.b_row, p.b_col, problem.k, problem.n),
    )
    for letter, pointer, row, col, rows, cols in sides:
        lead, length = (row, cols) if letter == "n" else (col, rows)
        bits |= (pointer or 0) | lead * item | length * item
    return bits & -bits


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("align", [2, 4, 8, 16])
def test_the_alignment_is_the_problems_and_no_better(layout: str, align: int) -> None:
    assert _alignment(request(m=64, n=64, k=64, dtype="bf16", layout=layout, align=align)) == align


def test_packed_where_packed_rows_are_aligned_so() -> None:
    a, b = places(request(m=5, n=6, k=7, dtype="bf16", layout="nt"))
    assert (a.strides.row, a.strides.col, a.shift) == (7, 1, 0)
    assert (b.strides.row, b.strides.col, b.shift) == (1, 7, 0)


def test_sets_rotate_past_the_cache() -> None:
    small = Layout(request(m=64, n=64, k=64, dtype="bf16"), 60 << 20, 100 << 30)
    large = Layout(request(m=8192, n=8192, k=8192, dtype="bf16"), 60 << 20, 100 << 30)
    middle = Layout(request(m=1024, n=1024, k=1024, dtype="bf16"), 60 << 20, 100 << 30)
    assert (small.sets, large.sets) == (128, 3)
    assert middle.sets * middle.bytes == pytest.approx(3 * (60 << 20), rel=0.05)
    assert Layout(request(m=1024, n=1024, k=1024, dtype="bf16"), 60 << 20, 3 * middle.bytes).sets == 3


def test_what_does_not_fit() -> None:
    with pytest.raises(Skip, match=r"0\.01 GB may be used"):
        Layout(request(m=8192, n=8192, k=8192, dtype="bf16"), 0, 10_000_000)


def test_a_pool_repeats_the_block(driver: Any) -> None:
    from tilery.tune.gpu import Gpu

    with Gpu(0) as gpu:
        pool = gpu._pool("s8")
        address = pool.reserve(3 * BLOCK + 5, gpu.stream)
        found = np.ctypeslib.as_array((ctypes.c_int8 * (3 * BLOCK + 5)).from_address(address)).copy()
        assert (found == np.resize(block("s8"), 3 * BLOCK + 5)).all()
        assert pool.reserve(5, gpu.stream) == address
        again = pool.reserve(4 * BLOCK, gpu.stream)
        last = np.ctypeslib.as_array((ctypes.c_int8 * 4).from_address(again + 4 * BLOCK - 4))
        assert (last == block("s8")[-4:]).all()
