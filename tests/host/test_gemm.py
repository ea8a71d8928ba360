"""Real variants on the host device, every access watched, against the float64 reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from generator.variant import Variant
from tests.host.cases import SEEDS, check, edges, epilogues, odd_edges, out_dtype, told
from tests.host.conftest import WATCHED, variants_of
from tilery.errors import HostError
from tilery.host import Library
from tilery.trial import PACKED, Case, Epilogue, Odd, Shape, fit

by_variant = pytest.mark.parametrize("variant", WATCHED.values(), ids=list(WATCHED))


@by_variant
def test_tile_edges(kernels: Library, variant: Variant) -> None:
    for case in edges(variant):
        check(case, kernels)


@by_variant
def test_odd_strides_and_pointers(kernels: Library, variant: Variant) -> None:
    for case in odd_edges(variant):
        check(case, kernels)


@by_variant
def test_epilogue(kernels: Library, variant: Variant) -> None:
    for case in epilogues(variant):
        check(case, kernels)


@pytest.mark.parametrize(
    ("dtype", "out"), [("s8", "f32"), ("bf16", "f32"), ("bf16", "f16"), ("f16", "bf16"), ("tf32", "f16")]
)
def test_out_dtypes(kernels: Library, dtype: str, out: str) -> None:
    for variant in WATCHED.values():
        if variant.dtype == dtype:
            shape = fit(variant, Shape(70, 41, 50))
            check(Case(variant, shape, Epilogue(out, bias=True), PACKED, 5), kernels)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_naive_takes_every_layout(kernels: Library, layout: str) -> None:
    for variant in WATCHED.values():
        if variant.layout == "any":
            strange = Odd(pad=5, shift=1, step=3)
            case = Case(variant, Shape(19, 35, 21, 2), Epilogue(out_dtype(variant)), strange, layout=layout)
            check(case, kernels)


@by_variant
def test_bits_depend_on_no_order(kernels: Library, variant: Variant) -> None:
    shape = fit(variant, Shape(variant["tile"][0] + 1, variant["tile"][1] + 1, 70))
    case = Case(variant, shape, Epilogue(out_dtype(variant)))
    first = case.run(kernels, workers=1).copy()
    for order, workers in itertools.product(SEEDS, (1, 2)):
        text = told(case, order)
        got = case.run(kernels, order=order, workers=workers)
        assert np.array_equal(got.view(np.uint8), first.view(np.uint8)), text


@by_variant
def test_every_element_has_its_writer(kernels: Library, variant: Variant) -> None:
    tile_m, tile_n, _ = variant["tile"]
    case = Case(variant, fit(variant, Shape(2 * tile_m, 2 * tile_n, 8)), Epilogue(out_dtype(variant)))
    case.run(kernels)
    writers = case.placed["d"].writers
    assert writers is not None
    writers = writers[: 4 * tile_m * tile_n].reshape(2 * tile_m, 2 * tile_n)
    blocks = writers // 1024
    assert writers.min() >= 0
    for i, j in itertools.product((0, 1), (0, 1)):
        tile = blocks[i * tile_m : (i + 1) * tile_m, j * tile_n : (j + 1) * tile_n]
        assert (tile == i + 2 * j).all()
    assert (writers % 1024).max() < variant.threads


def test_operand_out_of_its_range_is_refused(kernels: Library) -> None:
    variant = next(v for v in WATCHED.values() if (v.family, v.align) == ("gemm_mma", 16))
    case = Case(variant, Shape(128, 128, 128), Epilogue(out_dtype(variant)))
    along_k = np.s_[:, :-28] if variant.layout[0] == "t" else np.s_[:, :100]
    case.placed["a"].view = case.placed["a"].view[along_k]
    who = r"^kernel gemm_mma_\w+, block \(\d, 0, 0\), thread \d+: "
    what = r"reads 16 bytes at gemm_mma.cuh:\d+, up to \d+ bytes after the end of a$"
    with pytest.raises(HostError, match=who + what):
        case.run(kernels)


def test_the_first_wrong_element_is_found(kernels: Library) -> None:
    """One bit of the result is changed after the run."""
    variant = variants_of("gemm_naive", "f32", "any", 1)[0]
    case = Case(variant, Shape(40, 20, 5, 2), Epilogue("f32"), Odd(pad=3, shift=1))
    d = case.run(kernels)
    assert case.wrong() == (0, None)
    d[1, 17, 3] *= 2
    d[1, 18, 0] *= 2
    count, wrong = case.wrong()
    assert wrong is not None
    assert (count, wrong[:3], wrong.got / 2) == (2, (1, 17, 3), pytest.approx(wrong.expected))
    assert 0 < wrong.bound < abs(wrong.expected)
    # 3 x 2 tiles of 16 x 16 in each of two products
    assert (wrong.block, wrong.thread) == (1 * 6 + 1, 1 * 16 + 3)
    placed = case.placed["d"]
    assert placed.stray(placed.flat) == 0
    placed.flat[0] = 0
    assert placed.stray(placed.flat) == 4
    assert case.error() == float("inf")
