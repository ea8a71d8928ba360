"""Real variants on the host device, every access watched, against the float64 reference."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from generator.render import render
from generator.variant import Variant
from tests.host.conftest import VARIANTS, variants_of
from tests.host.harness import SANITIZED, HostFault, Library, build
from tests.host.problems import STORED, Case, Epilogue, Shape

OUT = {"f32": "f32", "tf32": "f32", "f16": "f16", "bf16": "bf16", "s8": "s32"}
by_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))


def shapes(variant: Variant) -> list[Shape]:
    """Both sides of every tile edge, one element, and no k at all."""
    tile_m, tile_n, tile_k = variant["tile"]
    deep = variant["stages"] * tile_k if "stages" in dict(variant.config) else 2 * tile_k
    wanted = [
        Shape(1, 1, 1),
        Shape(tile_m, tile_n, 0),
        Shape(tile_m - 1, tile_n + 1, tile_k),
        Shape(tile_m + 1, tile_n - 1, tile_k + 1),
        Shape(3, 2 * tile_n + 5, deep - 1),
        Shape(2 * tile_m + 7, 9, deep + tile_k + 1),
        Shape(17, 33, 2 * tile_k - 1, batch=3),
    ]
    return [fit(variant, shape) for shape in wanted]


def fit(variant: Variant, shape: Shape) -> Shape:
    """Rows of A and B are a multiple of the alignment long."""
    chunk = max(1, variant.align // STORED[variant.dtype]().itemsize)
    m, n, k = shape.m, shape.n, shape.k
    if variant.layout[0] == "t":
        m = -(-m // chunk) * chunk
    if variant.layout[1] == "n":
        n = -(-n // chunk) * chunk
    if variant.layout[0] == "n" or variant.layout[1] == "t":
        k = -(-k // chunk) * chunk
    return Shape(m, n, k, shape.batch)


def odd(variant: Variant) -> dict[str, int]:
    """Pads, shifts and steps as odd as a variant allows."""
    if variant.align > 1:
        return {"pad": 3 * variant.align // STORED[variant.dtype]().itemsize}
    return {"pad": 3, "shift": 1, "step": 2 if variant.layout == "any" else 1}


def check(case: Case, library: Library) -> None:
    case.run(library)
    assert case.error() <= 1, f"{case.variant.name} {case.shape} {case.epilogue} seed {case.seed}"


@by_variant
def test_tile_edges(kernels: Library, variant: Variant) -> None:
    for seed, shape in enumerate(shapes(variant)):
        check(Case(variant, shape, Epilogue(OUT[variant.dtype]), seed=seed), kernels)


@by_variant
def test_odd_strides_and_pointers(kernels: Library, variant: Variant) -> None:
    for seed, shape in enumerate(shapes(variant)):
        check(Case(variant, shape, Epilogue(OUT[variant.dtype]), seed=seed, **odd(variant)), kernels)


@by_variant
def test_epilogue(kernels: Library, variant: Variant) -> None:
    shape = fit(variant, Shape(variant["tile"][0] + 5, 23, 40))
    activations = ("none", "relu") if variant.dtype == "s8" else ("relu", "gelu", "silu")
    for seed, activation in enumerate(activations):
        epilogue = Epilogue(OUT[variant.dtype], alpha=-3, beta=2, bias=True, activation=activation)
        check(Case(variant, shape, epilogue, seed=seed, **odd(variant)), kernels)


@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [("s8", "f32"), ("bf16", "f32"), ("bf16", "f16"), ("f16", "bf16"), ("tf32", "f16")]
)
def test_out_dtypes(kernels: Library, dtype: str, out_dtype: str) -> None:
    for variant in VARIANTS.values():
        if variant.dtype == dtype:
            check(Case(variant, fit(variant, Shape(70, 41, 50)), Epilogue(out_dtype, bias=True), seed=5), kernels)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_naive_takes_every_layout(kernels: Library, layout: str) -> None:
    for variant in VARIANTS.values():
        if variant.layout == "any":
            check(
                Case(
                    variant, Shape(19, 35, 21, 2), Epilogue(OUT[variant.dtype]), layout=layout, pad=5, shift=1, step=3
                ),
                kernels,
            )


@by_variant
def test_bits_depend_on_no_order(kernels: Library, variant: Variant) -> None:
    shape = fit(variant, Shape(variant["tile"][0] + 1, variant["tile"][1] + 1, 70))
    case = Case(variant, shape, Epilogue(OUT[variant.dtype]))
    first = case.run(kernels, workers=1).copy()
    for seed, workers in itertools.product((1, 2, 3), (1, 2)):
        case.seed = seed
        case.placed["d"].writers[:] = -1
        assert np.array_equal(case.run(kernels, workers=workers).view(np.uint8), first.view(np.uint8)), f"seed {seed}"


@by_variant
def test_every_element_has_its_writer(kernels: Library, variant: Variant) -> None:
    tile_m, tile_n, _ = variant["tile"]
    case = Case(variant, fit(variant, Shape(2 * tile_m, 2 * tile_n, 8)), Epilogue(OUT[variant.dtype]))
    case.run(kernels)
    writers = case.placed["d"].writers[: 4 * tile_m * tile_n].reshape(2 * tile_m, 2 * tile_n)
    blocks = writers // 1024
    assert writers.min() >= 0
    for i, j in itertools.product((0, 1), (0, 1)):
        tile = blocks[i * tile_m : (i + 1) * tile_m, j * tile_n : (j + 1) * tile_n]
        assert (tile == i + 2 * j).all()
    assert (writers % 1024).max() < variant.threads


def test_operand_out_of_its_range_is_refused(kernels: Library) -> None:
    variant = variants_of("gemm_mma", "bf16", "nt", 16)[0]
    case = Case(variant, Shape(128, 128, 64), Epilogue("bf16"))
    case.placed["a"].view = case.placed["a"].view[:, :100]
    who = r"^kernel gemm_mma_\w+, block \(0, 0, 0\), thread \d+: "
    with pytest.raises(
        HostFault, match=who + r"reads 16 bytes at gemm_mma.cuh:\d+, up to \d+ bytes after the end of a$"
    ):
        case.run(kernels)


@pytest.mark.skipif(SANITIZED, reason="times are of the plain build")
def test_speed(tmp_path_factory: pytest.TempPathFactory) -> None:
    variants = variants_of("gemm_mma", "bf16", "nt", 16)
    plain = build({variant.name: render(variant) for variant in variants}, tmp_path_factory.mktemp("plain"))
    for variant in variants:
        case = Case(variant, Shape(256, 256, 256), Epilogue("bf16"))
        start = time.perf_counter()
        case.run(plain, check=False, workers=1)
        assert time.perf_counter() - start < 1, variant.name
        assert case.error() <= 1
