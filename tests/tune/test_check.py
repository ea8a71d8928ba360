"""The sample of a result that is compared before a candidate may be timed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilery import reference
from tilery.asked import request
from tilery.tune.buffers import Layout
from tilery.tune.check import MOST_LINES, Sample, _rows, numpy_dtype


@given(st.integers(1, 5000), st.integers(1, 100))
def test_rows_are_apart_by_an_odd_distance_from_the_first_to_the_last(m: int, most: int) -> None:
    rows = _rows(0, m, most)
    indices = rows.indices
    assert len(indices) == rows.lines <= most
    assert 0 <= indices[0] <= indices[-1] == m - 1
    assert rows.step % 2 == 1
    assert indices[0] < rows.step or most == 1
    if m <= most:
        assert indices.tolist() == list(range(m))


def right(sample: Sample, layout: Layout) -> list[Any]:
    """The sampled rows, whole and right."""
    p, found = layout.problem, []
    for rows in sample.rows:
        a = layout.gather("a", rows.entry, rows.indices, np.arange(p.k))
        b = layout.gather("b", rows.entry, np.arange(p.k), np.arange(p.n))
        found.append(reference.round_to(reference.exact(a, b, out_dtype=p.out_dtype), p.out_dtype))
    return found


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "s8"])
@pytest.mark.parametrize("batch", [1, 3])
def test_faults_are_seen(dtype: str, batch: int) -> None:
    asked = request(m=300, n=500, k=64, dtype=dtype, layout="nt", batch=batch)
    layout = Layout(asked, 0, 1 << 30)
    sample = Sample(layout)
    good = right(sample, layout)
    assert [rows.entry for rows in sample.rows] == sorted({0, batch - 1})
    assert all(got.dtype == numpy_dtype(asked) for got in good)
    assert sample.staged == sum(got.nbytes for got in good)
    assert sample.error(good) <= 1
    for place in ((0, 0), (-1, -1), (-1, 0), (0, -1)):
        bad = [got.copy() for got in good]
        bad[-1][place] = -bad[-1][place] if dtype != "bf16" else bad[-1][place] ^ 0x8000
        assert sample.error(bad) > 1


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_an_unwritten_element_between_the_sampled_columns_is_seen(dtype: str) -> None:
    layout = Layout(request(m=300, n=5000, k=64, dtype=dtype, layout="nt"), 0, 1 << 30)
    sample = Sample(layout)
    column = next(col for col in range(5000) if col not in set(sample.cols.tolist()))
    good = right(sample, layout)
    good[0].view(np.uint8).reshape(len(good[0]), 5000, -1)[2, column] = 0xFF
    assert sample.error(good) == math.inf


@pytest.mark.parametrize("k", [1, 4096, 500_000])
def test_the_sample_is_bounded(k: int) -> None:
    sample = Sample(Layout(request(m=5000, n=400, k=k, dtype="s8", layout="nn"), 0, 8 << 30))
    lines = sum(rows.lines for rows in sample.rows) + len(sample.cols)
    assert 4 <= lines <= MOST_LINES
    assert lines * k <= 8 * 500_000
